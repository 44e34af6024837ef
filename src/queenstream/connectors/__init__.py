"""Connectors: what reads a source and what writes a sink, one file for each kind of thing.

``reader_for`` and ``writer_for`` give an engine the one for an endpoint; ``base`` says what it can ask of it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from queenstream.connectors.base import Context, Reader, Writer
from queenstream.connectors.broker.queues import QueueReader, QueueWriter
from queenstream.connectors.broker.streams import StreamReader
from queenstream.connectors.files.files import FilesReader, FilesWriter
from queenstream.connectors.functions import FunctionWriter
from queenstream.connectors.generators import GeneratorReader
from queenstream.connectors.memory import MemoryReader
from queenstream.errors import ConfigError
from queenstream.pipeline import endpoints
from queenstream.pipeline.endpoints import Endpoint, Sink, Source

__all__ = ["Context", "Reader", "Writer", "reader_for", "writer_for"]


@contextlib.contextmanager
def _library(name: str, extra: str) -> Iterator[None]:
    """Around the import of a connector: says what to install, if its library is not there."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != name:
            raise
        raise ConfigError(f"{name} is not installed: pip install 'queenstream[{extra}]'") from None


def _kafka_reader(source: endpoints.Kafka, context: Context) -> Reader:
    with _library("confluent_kafka", "kafka"):
        from queenstream.connectors.kafka.reader import (
            KafkaReader,  # with its library: not for who has no topic
        )

    return KafkaReader(source, context)


def _kafka_writer(sink: endpoints.Kafka, context: Context) -> Writer:
    with _library("confluent_kafka", "kafka"):
        from queenstream.connectors.kafka.writer import KafkaWriter  # as above

    return KafkaWriter(sink, context)


def _postgres_reader(source: endpoints.Postgres, context: Context) -> Reader:
    from queenstream.connectors.postgres.tables import (
        postgres_reader,  # with its driver: not for who has no table
    )

    return postgres_reader(source, context)


def _postgres_writer(sink: endpoints.Postgres, context: Context) -> Writer:
    from queenstream.connectors.postgres.tables import PostgresWriter  # as above

    return PostgresWriter(sink, context)


def _cassandra_reader(source: endpoints.Cassandra, context: Context) -> Reader:
    with _library("cassandra", "cassandra"):
        from queenstream.connectors.cassandra.tables import CassandraReader  # as above

    return CassandraReader(source, context)


def _cassandra_writer(sink: endpoints.Cassandra, context: Context) -> Writer:
    with _library("cassandra", "cassandra"):
        from queenstream.connectors.cassandra.tables import CassandraWriter  # as above

    return CassandraWriter(sink, context)


_READERS: Mapping[type[Endpoint], Callable[[Any, Context], Reader]] = {
    endpoints.Cassandra: _cassandra_reader,
    endpoints.Files: FilesReader,
    endpoints.Generator: GeneratorReader,
    endpoints.Kafka: _kafka_reader,
    endpoints.Memory: MemoryReader,
    endpoints.Postgres: _postgres_reader,
    endpoints.Queue: QueueReader,
    endpoints.Stream: StreamReader,
}
_WRITERS: Mapping[type[Endpoint], Callable[[Any, Context], Writer]] = {
    endpoints.Cassandra: _cassandra_writer,
    endpoints.Files: FilesWriter,
    endpoints.Function: FunctionWriter,
    endpoints.Kafka: _kafka_writer,
    endpoints.Postgres: _postgres_writer,
    endpoints.Queue: QueueWriter,
}


def reader_for(source: Source[Any], context: Context) -> Reader:
    """What reads a source.

    >>> type(reader_for(endpoints.Memory([]), Context("totals", "memory"))).__name__
    'MemoryReader'
    """
    made = _READERS.get(type(source))
    if made is None:
        raise ConfigError(
            f"nothing reads {source.title}: a {type(source).__name__} is not one of {_names(_READERS)}"
        )
    return made(source, context)


def writer_for(sink: Sink, context: Context) -> Writer:
    """What writes a sink; the same, the other way."""
    made = _WRITERS.get(type(sink))
    if made is None:
        raise ConfigError(
            f"nothing writes {sink.title}: a {type(sink).__name__} is not one of {_names(_WRITERS)}"
        )
    return made(sink, context)


def _names(kinds: Mapping[type[Endpoint], object]) -> str:
    return ", ".join(sorted(kind.__name__ for kind in kinds))
