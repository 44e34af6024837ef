"""Dead letters that come back: what one has to be, and where its record is let in again.

>>> doors = Doors("totals", "replay:failed", {"parse": (Door(),)})
>>> doors.open({"pipeline": "totals", "step": "parse", "record": {"n": 1}, "input": 0})
Entrant(step='parse', record={'n': 1}, along=Along(time=None, key=None, port=0), error=None)
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, is_typeddict

import msgspec

from queenstream.core.records import event_time, hashable, short
from queenstream.core.schemas import Schema
from queenstream.errors import PayloadInvalid
from queenstream.pipeline.arguments import returned_class
from queenstream.pipeline.plan.lineage import keys_of, time_of
from queenstream.pipeline.plan.nodes import (
    Apply,
    Deduplicate,
    EventTime,
    Filter,
    KeyBy,
    Node,
    Read,
    Replay,
    Stateful,
    Write,
)
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.failures import Along
from queenstream.runtime.keys import key_from_json

_FIELDS = ("pipeline", "step", "record")
_PASS_ON = (Filter, EventTime, KeyBy, Deduplicate)  # these give their input's records on as they are


class Entrant(NamedTuple):
    """A record that is let in at a step; ``error``: why it cannot be, which is an error of that step."""

    step: str
    record: Any
    along: Along
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class Door:
    """An input of a step. What comes through it must have a time if it is ``timed``, a key if ``keyed``.

    ``schema``: the fields of its records, if they are known, ``of``: their class, if it is one of the
    user's. ``strict``: they must fit, as at a source.
    """

    schema: Schema | None = None
    timed: bool = False
    keyed: bool = False
    strict: bool = False
    of: type | None = None

    def fitted(self, record: Any) -> Any:
        """The record as it was before JSON; what does not fit stays as it is, unless it must."""
        if self.schema is not None and self.strict:
            return self.schema.coerce(record)
        # What a function gives is not held to its annotation, and so what comes back is not either.
        with contextlib.suppress(PayloadInvalid, ValueError, TypeError):
            if self.of is not None:
                return _object(record, self.of)
            if self.schema is not None:
                return self.schema.coerce(record, extra="keep")
        return record


def _object(record: Any, of: type) -> Any:
    validate = getattr(of, "model_validate", None)  # pydantic's, which is not imported here
    return msgspec.convert(record, of) if validate is None else validate(record)


class Doors:
    """Where the letters of a ``Replay`` can go, by step. It can travel to another process."""

    def __init__(self, pipeline: str, replay: str, doors: Mapping[str, tuple[Door, ...]]) -> None:
        self._pipeline = pipeline
        self._replay = replay
        self._doors = dict(doors)

    @classmethod
    def of(cls, plan: Plan, replay: Replay, kinds: tuple[type[Node], ...] = (Node,)) -> Doors:
        """Those of a plan, at steps of these kinds."""
        steps = [each for each in map(plan.node, replay.steps) if isinstance(each, kinds)]
        return cls(plan.name, replay.name, {each.name: _doors_of(plan, each) for each in steps})

    def open(self, letter: Any) -> Entrant | None:
        """The record of a letter; None: it is another pipeline's. ``PayloadInvalid``: no step has it."""
        if not isinstance(letter, Mapping) or not all(name in letter for name in _FIELDS):
            raise PayloadInvalid(
                f"{short(letter)} is no dead letter, which has {', '.join(_FIELDS)}; replay what was in the "
                "dead letters, edited or not"
            )
        if letter["pipeline"] != self._pipeline:
            return None
        step = letter["step"]
        if step == self._replay:  # a letter that could not be opened before; its record is that letter
            return self.open(letter["record"])
        doors = self._doors.get(step) if isinstance(step, str) else None
        if doors is None:
            known = ", ".join(self._doors)
            raise PayloadInvalid(f"no step {step!r} takes letters back; edit the letter's step: {known}")
        return _entrant(step, *_chosen(step, doors, letter.get("input", 0)), letter)


def _entrant(step: str, door: Door, port: int, letter: Mapping[str, Any]) -> Entrant:
    record, key, time = letter["record"], None, None
    try:
        key = hashable(key_from_json(letter.get("key"))) if door.keyed else None
        time = _time(door, letter)
        return Entrant(step, door.fitted(record), Along(time, key, port))
    except (PayloadInvalid, TypeError, ValueError, ArithmeticError) as error:
        return Entrant(step, record, Along(time, key, port), error)


def _chosen(step: str, doors: tuple[Door, ...], port: Any) -> tuple[Door, int]:
    if isinstance(port, int) and 0 <= port < len(doors):
        return doors[port], port
    raise PayloadInvalid(
        f"what failed at {step!r} was no record that came in, and cannot come in again; delete the letter"
    )


def _time(door: Door, letter: Mapping[str, Any]) -> int | None:
    if not door.timed:
        return None
    # A message that a source could not read has no event time: then it is when that was found.
    found = letter.get("time") or (letter.get("failed_at") if door.strict else None)
    if found is None:
        raise PayloadInvalid(
            f"{letter['step']!r} goes by event time, and the letter has none; edit its time, in ISO 8601"
        )
    return event_time(found)


def _doors_of(plan: Plan, node: Node) -> tuple[Door, ...]:
    if isinstance(node, Read):
        # Of a message that is taken whole, a letter has only the payload.
        whole = getattr(node.source, "envelope", False)
        return () if whole else (Door(node.source.columns, timed=node.source.has_time, strict=True),)
    return tuple(
        Door(
            plan.schema(each),
            # What is written has no use for a time, and a letter about it has none.
            timed=not isinstance(node, Write) and time_of(each) is not None,
            keyed=bool(keys_of(each)),
            of=_class_of(each),
        )
        for each in node.inputs
    )


def _class_of(node: Node) -> type | None:
    """The class of a node's records, if a function before it says that they are objects of one."""
    while isinstance(node, _PASS_ON) or (isinstance(node, Apply) and node.mode == "filter"):
        node = node.inputs[0]
    if not isinstance(node, Apply | Stateful):
        return None
    found = returned_class(node.function, node.mode if isinstance(node, Apply) else "map")
    return None if found is None or is_typeddict(found) else found
