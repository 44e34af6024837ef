"""The rows of a plan's sources, as a query takes them: typed for a plan without Python, or as they come."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import DataFrame, SparkSession

from queenstream.core.schemas import Schema
from queenstream.engines.spark.checkpoints.directory import Home
from queenstream.engines.spark.datasource.database import database_url
from queenstream.engines.spark.maintenance.positions import Positions, kafka_start, queue_start
from queenstream.engines.spark.native.steps import source_columns
from queenstream.engines.spark.sinks.delivery import is_ordered
from queenstream.engines.spark.sinks.names import sinks_of
from queenstream.engines.spark.sources.files import FileSource
from queenstream.engines.spark.sources.kafka import KafkaDecoder, read_kafka, typed_rows
from queenstream.engines.spark.sources.sources import (
    FED,
    Decoder,
    FedDecoder,
    QueueDecoder,
    StreamDecoder,
    is_fed,
    marks_end,
    place_of,
    read_broker,
    read_fed,
)
from queenstream.engines.spark.sources.tables.load import read_table
from queenstream.pipeline.endpoints import Cassandra, Files, Kafka, Postgres, Queue, Stream
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.nodes import Read
from queenstream.pipeline.plan.planner import Plan


class Sources:
    """Loads the sources of a plan. ``home`` is where those that are fed will be; until it is known, these
    are empty frames of the same columns.
    """

    def __init__(self, spark: SparkSession, plan: Plan, told: RunOptions) -> None:
        self._spark = spark
        self._plan = plan
        self._told = told
        self.home: Home | None = None
        self.files: dict[str, FileSource] = {}

    def open_files(self, home: Home) -> None:
        """Look which files there are, for the sources of which tasks read them."""
        for read in self._plan.sources:
            if isinstance(read.source, Files) and not is_fed(read.source):
                in_order = any(is_ordered(sink) for sink in sinks_of(self._plan).values())
                source = FileSource(self._spark, self._plan, read, self._told, home, in_order=in_order)
                source.open()
                self.files[read.name] = source

    def rows(self, read: Read, schema: Schema | None) -> DataFrame:
        """For a plan without Python: in typed columns, or without a schema as its decoder takes it."""
        return self.plain(read) if schema is None else self.typed(read, schema)

    def typed(self, read: Read, schema: Schema) -> DataFrame:
        """Its records in typed columns, with some of the fields that it has."""
        columns = source_columns(read, schema)
        if is_fed(read.source):
            empty = self.home is None
            return self._spark.createDataFrame([], columns) if empty else self._fed(read, columns)
        if isinstance(read.source, Postgres | Cassandra):
            return read_table(self._spark, read.source, read.name, self._told, columns, typed=True)
        if isinstance(read.source, Files):
            files = self.files.get(read.name)
            return self._spark.createDataFrame([], columns) if files is None else files.typed(schema)
        if isinstance(read.source, Kafka):
            messages = self._of_kafka(read, typed=True)
            return typed_rows(messages, read.source, schema, columns)
        return self._of_broker(read, schema)

    def plain(self, read: Read) -> DataFrame:
        """As its decoder takes it."""
        if is_fed(read.source):
            return self._fed(read, FED)
        if isinstance(read.source, Postgres | Cassandra):
            return read_table(self._spark, read.source, read.name, self._told, FED, typed=False)
        if isinstance(read.source, Files):
            return self.files[read.name].plain()
        if isinstance(read.source, Kafka):
            return self._of_kafka(read, typed=False)
        return self._of_broker(read, None)

    def decoder(self, number: int, read: Read) -> Decoder:
        """What makes records of the plain rows of the plan's source of this number."""
        files = self.files.get(read.name)
        return decoder(number, read) if files is None else files.decoder(number)

    def _fed(self, read: Read, columns: str) -> DataFrame:
        assert self.home is not None, "it is fed from there"
        return read_fed(self._spark, self.home.feed(read.name), columns)

    def _of_kafka(self, read: Read, *, typed: bool) -> DataFrame:
        source, positions = read.source, self._positions(read)
        assert isinstance(source, Kafka), "it reads a topic"
        source = source if positions is None else replace(source, start=kafka_start(positions))
        return read_kafka(self._spark, source, self._plan.name, self._told.max_batch_rows, typed=typed)

    def _of_broker(self, read: Read, schema: Schema | None) -> DataFrame:
        source, positions = read.source, self._positions(read)
        assert isinstance(source, Queue | Stream), "all others are fed, or Kafka's"
        after = None
        if positions is not None and isinstance(source, Queue):
            after = queue_start(source, database_url(place_of(source, self._told)), positions)
        return read_broker(self._spark, source, self._plan.name, self._told, schema, after)

    def _positions(self, read: Read) -> Positions | None:
        """Where the source of a savepoint of the local engine was; None: the run does not begin with one."""
        return None if self.home is None else self.home.positions.get(read.name)


def decoder(number: int, read: Read) -> Decoder:
    """What makes records of the plain rows of the plan's source of this number."""
    source = read.source
    if marks_end(source):
        return FedDecoder(number)
    if isinstance(source, Queue):
        schema = None if source.schema is None else Schema.of(source.schema)
        return QueueDecoder(number, schema, envelope=source.envelope)
    return KafkaDecoder(number, source) if isinstance(source, Kafka) else StreamDecoder(number)
