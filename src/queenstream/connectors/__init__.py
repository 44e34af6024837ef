"""Connectors: what reads a source and what writes a sink, one file for each kind of thing.

``reader_for`` and ``writer_for`` give an engine the one for an endpoint; ``base`` says what it can ask of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from queenstream.connectors.base import Context, Reader, Writer
from queenstream.connectors.files import FilesReader, FilesWriter
from queenstream.connectors.functions import FunctionWriter
from queenstream.connectors.generators import GeneratorReader
from queenstream.connectors.memory import MemoryReader
from queenstream.connectors.queues import QueueReader, QueueWriter
from queenstream.connectors.streams import StreamReader
from queenstream.errors import ConfigError
from queenstream.pipeline import endpoints
from queenstream.pipeline.endpoints import Endpoint, Sink, Source

__all__ = ["Context", "Reader", "Writer", "reader_for", "writer_for"]

_READERS: Mapping[type[Endpoint], Callable[[Any, Context], Reader]] = {
    endpoints.Files: FilesReader,
    endpoints.Generator: GeneratorReader,
    endpoints.Memory: MemoryReader,
    endpoints.Queue: QueueReader,
    endpoints.Stream: StreamReader,
}
_WRITERS: Mapping[type[Endpoint], Callable[[Any, Context], Writer]] = {
    endpoints.Files: FilesWriter,
    endpoints.Function: FunctionWriter,
    endpoints.Queue: QueueWriter,
}


def reader_for(source: Source[Any], context: Context) -> Reader:
    """What reads a source.

    >>> reader_for(endpoints.Kafka("events"), Context("totals", "kafka:events"))
    Traceback (most recent call last):
    queenstream.errors.ConfigError: the local engine cannot read kafka yet; run with engine='spark'
    """
    made = _READERS.get(type(source))
    if made is None:
        raise ConfigError(f"the local engine cannot read {source.kind} yet; run with engine='spark'")
    return made(source, context)


def writer_for(sink: Sink, context: Context) -> Writer:
    """What writes a sink; the same, the other way."""
    made = _WRITERS.get(type(sink))
    if made is None:
        raise ConfigError(f"the local engine cannot write {sink.kind} yet; run with engine='spark'")
    return made(sink, context)
