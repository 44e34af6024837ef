"""The jars that do not come with PySpark: in ``$QUEENSTREAM_CACHE``, or else ``~/.cache/queenstream``.

Spark's source for Kafka is in a folder ``spark-kafka-…`` there, with all that it needs.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pyspark

from queenstream.errors import ConfigError

KAFKA = "spark-sql-kafka-0-10_2.13"
KAFKA_VERSIONS = {(4, 2): "4.2.0", (4, 3): "4.2.0"}
"""The source for Kafka for each version of Spark. There is none for 4.3, which runs that of 4.2."""


def kafka_version(spark: str = pyspark.__version__) -> str:
    """The version of the source for Kafka that goes with a version of Spark: the installed one by default.

    >>> kafka_version("4.2.1")
    '4.2.0'
    """
    found = re.match(r"(\d+)\.(\d+)", spark)
    version = KAFKA_VERSIONS.get((int(found[1]), int(found[2]))) if found else None
    if version is None:
        known = " or ".join(f"{major}.{minor}" for major, minor in KAFKA_VERSIONS)
        raise ConfigError(f"Kafka on Spark {spark} is not supported; install pyspark {known}")
    return version


def kafka_jars() -> list[Path]:
    """Those of the source for Kafka that goes with this Spark; none, if they are not there.

    >>> kafka_jars()  # doctest: +SKIP
    [PosixPath('/home/me/.cache/queenstream/spark-kafka-2798de89/commons-pool2-2.13.1.jar'), …]
    """
    told = os.environ.get("QUEENSTREAM_CACHE")
    cache = Path(told) if told else Path.home() / ".cache" / "queenstream"
    found = sorted(cache.glob(f"spark-kafka-*/{KAFKA}-{kafka_version()}.jar"))
    return sorted(found[-1].parent.glob("*.jar")) if found else []
