"""The steps of a stream processor as a pipeline, whose records are events with other clothes on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from queenstream.core import paths
from queenstream.core.windows import from_us
from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Record, Source, function_name
from queenstream.processor.events import Event
from queenstream.processor.steps import Step, checked

RECORD = "id string, data variant, key string, timestamp timestamp"
"""An event as a record of a pipeline."""

# A path is read once, not for every record; and here, as ToRecord travels to other machines.
_reader = lru_cache(maxsize=256)(paths.getter)


def pipeline_of(
    name: str, source: Source[Record], to_record: ToRecord, steps: Sequence[Step]
) -> Pipeline[Record]:
    """A pipeline that makes events of a source's records and takes them through the steps.

    A step that raises does not stop it, as it does not stop a stream processor.
    """
    pipeline = Pipeline(name).on_error("skip").source(source).transform("event", to_record, schema=RECORD)
    # The event time is read once, after the last map: that may give an event another one.
    mapped = 1 + max((at for at, step in enumerate(steps) if step.kind == "map"), default=-1)
    return _with_steps(_with_steps(pipeline, steps[:mapped]).event_time("timestamp"), steps[mapped:])


def _with_steps(pipeline: Pipeline[Record], steps: Iterable[Step]) -> Pipeline[Record]:
    for step in steps:
        if step.kind == "filter":
            pipeline = pipeline.filter(OnEvent(step.function), name=step.name)
        elif step.kind == "map":
            pipeline = pipeline.transform(step.name, MapOnEvent(step.function), schema=RECORD)
        else:
            pipeline = pipeline.to(Function(OnEvent(step.function), name=step.name), name=step.name)
    return pipeline


@dataclass(frozen=True)
class OnEvent:
    """A function of an event, as a function of its record."""

    function: Callable[[Event], Any]

    def __post_init__(self) -> None:
        # A description of the pipeline shows the user's function, not this one.
        object.__setattr__(self, "__qualname__", function_name(self.function))

    def __call__(self, record: Record) -> Any:
        return self.function(event_of(record))


@dataclass(frozen=True)
class MapOnEvent(OnEvent):
    """A function from event to event, as one from record to record."""

    def __call__(self, record: Record) -> Record:
        return record_of(checked(self.function(event_of(record))))


@dataclass(frozen=True)
class ToRecord:
    """Makes the record of an event from what a source gives, by the paths of the event's parts in it."""

    id: str
    data: str
    key: str
    time: str

    def __call__(self, record: Record) -> Record:
        found, time = _reader(self.data)(record), _reader(self.time)(record)
        if not isinstance(found, Mapping):
            raise ConfigError(f"{self.data!r} of the record is no dictionary; say where it is: data='field'")
        if time is None:
            raise ConfigError(f"the record has no {self.time!r}; say where its time stands: time='field'")
        identity, key = _reader(self.id)(record), _reader(self.key)(record)
        named = "" if identity is None else str(identity)
        return record_of(Event(named, dict(found), None if key is None else str(key), time))


def event_of(record: Record) -> Event:
    """The event that a record stands for; it may be changed without changing the record."""
    return Event(record["id"], dict(record["data"]), record["key"], record["timestamp"])


def record_of(event: Event) -> Record:
    """An event as a record, with its time as a datetime.

    >>> record_of(Event("e1", {"value": 5}, timestamp=60.0))["timestamp"].isoformat()
    '1970-01-01T00:01:00+00:00'
    """
    return {
        "id": event.id,
        "data": event.data,
        "key": event.key,
        "timestamp": from_us(event.us),
    }
