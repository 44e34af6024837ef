"""``format("queen")``: queues and streams for anybody's Spark code.

>>> from queenstream.spark import register
>>> register(spark)  # doctest: +SKIP
>>> queue = spark.readStream.format("queen").option("queue", "orders")  # doctest: +SKIP
>>> orders = queue.option("schema", "user STRING, amount DOUBLE").load()  # doctest: +SKIP
"""

from __future__ import annotations

import os

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader
from pyspark.sql.types import StructType

from queenstream.engines.spark import versions
from queenstream.engines.spark.datasource import task_reader
from queenstream.engines.spark.datasource.options import sink_options, source_options
from queenstream.engines.spark.datasource.readers import QueenReader
from queenstream.engines.spark.datasource.writers import QueenStreamWriter, QueenWriter
from queenstream.engines.spark.session.active import activated
from queenstream.engines.spark.session.executors import cores_of
from queenstream.errors import ConfigError

__all__ = ["QueenDataSource", "register"]


class QueenDataSource(DataSource):
    """Messages of a queue, windows of a stream; docs/spark.md has the options and columns."""

    cores = os.cpu_count() or 1

    @classmethod
    def name(cls) -> str:
        """As in ``format("queen")``."""
        return "queen"

    def schema(self) -> str:
        """The columns, as DDL."""
        options = source_options(self.options)
        return task_reader.schema_of(_columns(options.stream), options.payload, options.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        """For ``spark.read``."""
        options = source_options(self.options)
        return QueenReader(options, _checked(schema, options.stream), self.cores)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802
        """For ``spark.readStream``."""
        options = source_options(self.options)
        about = (options, _checked(schema, options.stream), self.cores)
        if versions.ADMISSION_CONTROL.is_available():
            from queenstream.engines.spark.datasource.stream_reader import QueenStreamReader

            return QueenStreamReader(*about)
        from queenstream.engines.spark.datasource.stream_reader_4_1 import CappedStreamReader

        return CappedStreamReader(*about)

    def writer(self, schema: StructType, overwrite: bool) -> QueenWriter:
        """For ``df.write``."""
        return QueenWriter(sink_options(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> QueenStreamWriter:  # noqa: N802
        """For ``df.writeStream``."""
        return QueenStreamWriter(sink_options(self.options), schema, overwrite)


def register(spark: SparkSession) -> None:
    """Make ``format("queen")`` known to a session; ``queenstream.spark.session`` has done it already.

    >>> register(spark)  # doctest: +SKIP
    >>> spark.read.format("queen").option("queue", "orders").load().count()  # doctest: +SKIP
    """

    class Registered(QueenDataSource):
        cores = cores_of(spark)  # what the process that plans cannot ask

    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # the reader fails without
    with activated(spark):
        spark.dataSource.register(Registered)


def _columns(stream: str | None) -> dict[str, str]:
    if stream is not None:
        return task_reader.WINDOW_COLUMNS
    return {name: kind for name, (_, kind) in task_reader.MESSAGE_COLUMNS.items()}


def _checked(schema: StructType, stream: str | None) -> StructType:
    """A schema that the user gave must be of our columns; only a payload's type is free."""
    columns = _columns(stream)
    for field in schema:
        wanted = columns.get(field.name)
        if wanted is None:
            raise ConfigError(
                f"there is no column {field.name}, only {', '.join(columns)}; "
                "fields of the payload go into the option schema"
            )
        if "{payload}" not in wanted and field.dataType.simpleString() != wanted.lower():
            raise ConfigError(f"the column {field.name} is a {wanted}; read it as that and cast")
    return schema
