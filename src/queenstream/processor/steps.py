"""The steps of a stream processor, and how an event passes them."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, TypeAlias

from queenstream.errors import ConfigError
from queenstream.pipeline.arguments import is_async
from queenstream.processor.events import Event, LateEvent, shown

Kind: TypeAlias = Literal["filter", "map", "sink"]
Fate: TypeAlias = Literal["processed", "filtered", "failed"]


@dataclass(frozen=True, slots=True)
class Step:
    """A function of the user's and its place in the stream, by a name of its own."""

    kind: Kind
    name: str
    function: Callable[[Event], Any]


@dataclass(frozen=True, slots=True)
class LateStep:
    """A function that takes what came too late."""

    name: str
    function: Callable[[LateEvent], object]


@dataclass(frozen=True, slots=True)
class Failure:
    """A step that raised, and on which event; ``text`` says so in one line."""

    step: str
    event_id: str
    error: Exception
    text: str = field(init=False)

    def __post_init__(self) -> None:
        # Not str(error), which is a user's code as well and may raise.
        cause = traceback.format_exception_only(self.error)[-1].strip()
        object.__setattr__(self, "text", f"step {self.step!r} failed on event {self.event_id!r}: {cause}")


@dataclass(frozen=True, slots=True)
class Passage:
    """What became of an event: as it came out, or None; and the steps that raised on the way."""

    event: Event | None
    fate: Fate
    failures: tuple[Failure, ...] = ()


def name_of(kind: str, function: object, name: str | None, taken: Collection[str]) -> str:
    """A name for a step that no other has: the second ``map`` is ``map-2``. The function is checked, too."""
    if not callable(function):
        raise ConfigError(f"{shown(function)} is no function; give {kind}() a function of an event")
    if is_async(function):
        raise ConfigError(f"{kind}() takes plain functions; for an async one write a Pipeline")
    if name in taken:
        raise ConfigError(f"there is a step {name!r} already; give this one another name")
    if name:
        return name
    return next(free for free in _numbered(kind) if free not in taken)


def _numbered(kind: str) -> Iterator[str]:
    yield kind
    yield from (f"{kind}-{number}" for number in count(2))


def run(steps: Iterable[Step], event: Event) -> Passage:
    """Through all steps in order. A filter or map that raises ends it for this event, a sink does not."""
    failures: list[Failure] = []
    seen = False
    for step in steps:
        try:
            if step.kind == "filter":
                if not step.function(event):
                    return Passage(None, "filtered", tuple(failures))
            elif step.kind == "map":
                # A sink may have kept what it got: a map must not change it under its hands.
                event = checked(step.function(event.copy() if seen else event))
                seen = False
            else:
                seen = True
                step.function(event)
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises hits this event alone
            failures.append(Failure(step.name, event.id, error))
            if step.kind != "sink":
                return Passage(None, "failed", tuple(failures))
    return Passage(event, "processed", tuple(failures))


def checked(returned: object) -> Event:
    """What a map step returned, if that is an event."""
    if not isinstance(returned, Event):
        raise ConfigError(f"it returned {type(returned).__name__}, no event; end it with: return event")
    return returned
