"""The jars that do not come with PySpark: in ``$QUEENSTREAM_CACHE``, or else ``~/.cache/queenstream``.

Spark's source for Kafka is in a folder ``spark-kafka-…`` there, with all that it needs.
"""

from __future__ import annotations

import os
from pathlib import Path

import pyspark

from queenstream.engines.spark.versions import kafka_version

KAFKA = "spark-sql-kafka-0-10_2.13"


def kafka_jars(spark: str = pyspark.__version__) -> list[Path]:
    """Those of the source for Kafka that goes with a version of Spark; none, if they are not there.

    >>> kafka_jars()  # doctest: +SKIP
    [PosixPath('/home/me/.cache/queenstream/spark-kafka-2798de89/commons-pool2-2.13.1.jar'), …]
    """
    told = os.environ.get("QUEENSTREAM_CACHE")
    cache = Path(told) if told else Path.home() / ".cache" / "queenstream"
    found = sorted(cache.glob(f"spark-kafka-*/{KAFKA}-{kafka_version(spark)}.jar"))
    return sorted(found[-1].parent.glob("*.jar")) if found else []
