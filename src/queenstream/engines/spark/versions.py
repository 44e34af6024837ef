"""Which versions of PySpark are supported, and which feature came with which of them.

Nothing else in the package compares versions. Code asks a feature whether it is there, because a platform may
bring a feature to an older version; a test compares the answers with the versions that stand here.

>>> ADMISSION_CONTROL.since
(4, 2)
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any

import pyspark

from queenstream.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

OLDEST, NEWEST = (4, 1), (4, 3)
"""The supported versions are these and those between them; pyproject.toml says the same."""

KAFKA_PACKAGES = {(4, 1): "4.1.3", (4, 2): "4.2.0", (4, 3): "4.2.0"}
"""The newest package for Kafka on Maven Central that works with a version. There is none for 4.3 yet."""


OLDEST_JAVA = 17
NEWEST_JAVA = {(4, 1): 23}
"""The newest Java that a version runs on, where that is known: the Hadoop of Spark 4.1 ends on Java 24."""


@dataclass(frozen=True)
class Feature:
    """Something that not every supported version has. ``module`` is a module that came with it."""

    name: str
    since: tuple[int, int]
    module: str

    def is_available(self) -> bool:
        """Whether the installed PySpark has it."""
        return importlib.util.find_spec(self.module) is not None


ADMISSION_CONTROL = Feature(
    "admission control for Python data sources", since=(4, 2), module="pyspark.sql.streaming.datasource"
)
"""Spark tells a Python source where the query is and how much to read, asks it how far it could read, and
runs ``trigger(availableNow=True)`` in several batches. Without it a source has to remember where the query
is, and available-now is one batch."""


def state_repartition(spark: SparkSession) -> Any:
    """The Java class that repartitions state, which came with 4.2; None: this version has none."""
    from py4j.java_gateway import JavaClass  # type: ignore[import-untyped]

    of_java: Any = spark
    found = of_java._jvm.org.apache.spark.sql.execution.streaming.state.OfflineStateRepartitionRunner
    return found if isinstance(found, JavaClass) else None


def release(version: str) -> tuple[int, int, int]:
    """The three numbers of a version of Spark, whatever follows them.

    >>> release("4.3.0.dev1"), release("4.1.2-amzn-0")
    ((4, 3, 0), (4, 1, 2))
    """
    found = re.match(r"(\d+)\.(\d+)(?:\.(\d+))?", version)
    if found is None:
        raise ConfigError(f"{version!r} is not a version of Spark; {_REMEDY}")
    return int(found[1]), int(found[2]), int(found[3] or 0)


_REMEDY = (
    f"install one from {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]}: "
    f"pip install 'pyspark[sql]>={OLDEST[0]}.{OLDEST[1]},<{NEWEST[0]}.{NEWEST[1] + 1}'"
)


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """Spark's schema as Arrow's, with times in UTC, which PySpark 4.1 does not need to be told.

    >>> from pyspark.sql.types import StructType, TimestampType
    >>> to_arrow_schema(StructType().add("at", TimestampType())).field("at").type
    TimestampType(timestamp[us, tz=UTC])
    """
    from pyspark.sql.pandas import types  # not before the version is known to be supported

    in_utc: dict[str, Any] = {}
    if "timezone" in signature(types.to_arrow_schema).parameters:
        in_utc["timezone"] = "UTC"
    return types.to_arrow_schema(schema, **in_utc)


def parse_offset(text: str | None) -> Any:
    """An offset in a query's progress: JSON, or the text of a Python value on PySpark 4.1.

    >>> parse_offset('{"id": 5}'), parse_offset("{'logOffset': 5}"), parse_offset("None"), parse_offset(None)
    ({'id': 5}, {'logOffset': 5}, None, None)
    """
    if text is None:
        return None
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise ValueError(f"{text!r} is not an offset of Spark") from None


def check_supported(version: str = pyspark.__version__) -> None:
    """Refuse a version of PySpark that is not supported: the installed one by default.

    >>> check_supported("3.5.9")
    Traceback (most recent call last):
    queenstream.errors.ConfigError: PySpark 3.5.9 is not supported; install one from 4.1 to 4.3: \
pip install 'pyspark[sql]>=4.1,<4.4'
    """
    if not OLDEST <= release(version)[:2] <= NEWEST:
        raise ConfigError(f"PySpark {version} is not supported; {_REMEDY}")


def newest_java(spark: str = pyspark.__version__) -> int | None:
    """The newest Java that a version of Spark runs on; None: there is none that is too new.

    >>> newest_java("4.1.4"), newest_java("4.2.0")
    (23, None)
    """
    return NEWEST_JAVA.get(release(spark)[:2])


def kafka_version(spark: str = pyspark.__version__) -> str:
    """The version of the package for Kafka that goes with a version of Spark: the installed one by default.

    The same version where there is a package for it, else the newest that works.

    >>> kafka_version("4.1.1"), kafka_version("4.2.1"), kafka_version("4.3.0")
    ('4.1.1', '4.2.0', '4.2.0')
    """
    check_supported(spark)
    running = release(spark)
    newest = KAFKA_PACKAGES[running[:2]]
    return ".".join(map(str, running)) if running <= release(newest) else newest
