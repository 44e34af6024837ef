"""The nodes of a plan: a handful of core ones, frozen, each with all that an engine needs to run it.

    Read ──► Apply · Lookup · Filter · Project · EventTime · KeyBy
         ──► Aggregation · Join · Stateful · Deduplicate ──► Write
                          Union brings branches together · Late has what came too late
                          Replay lets records in again that a step failed on

A builder's step is one of these, or a few. What flows is a record with an event time (maybe none) and a key
(maybe none), which only ``EventTime``, ``KeyBy`` and the nodes with state change; a callable sees the
record alone.

Nodes are equal only to themselves: a branch that two sinks share is one branch. In a ``Plan`` every node
has a name of its own, its error policy, and, where it has state, the names of its keys.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeAlias

from queenstream.core import windows
from queenstream.core.aggregates import Aggregate
from queenstream.core.schemas import Schema
from queenstream.pipeline.endpoints import Sink, Source
from queenstream.pipeline.expr.expressions import Expr
from queenstream.pipeline.policies import BLOCK, FAIL, Backpressure, ErrorPolicy

Mode: TypeAlias = Literal["map", "filter", "flat_map"]
Emit: TypeAlias = Literal["final", "update"]
How: TypeAlias = Literal["inner", "left", "right", "full"]
LookupHow: TypeAlias = Literal["left", "inner"]
Coordination: TypeAlias = Literal["arrival", "timestamp"]

WINDOW_START, WINDOW_END = "window_start", "window_end"

_OURS = str(Path(__file__).parents[2]) + "/"
_DEMO = f"{_OURS}cli"  # a user like any other


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the user's: shown relative to the working folder, if it lies in there."""

    file: str
    line: int

    def __str__(self) -> str:
        path = Path(self.file)
        shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        return f"{shown}:{self.line}"


def caller() -> Place:
    """The line outside of this package, or of its demo, that led here."""
    frame = sys._getframe(1)
    while frame.f_back is not None and _is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return Place(frame.f_code.co_filename, frame.f_lineno)


def _is_ours(file: str) -> bool:
    return file.startswith(_OURS) and not file.startswith(_DEMO)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Node:
    """What all nodes have. ``inputs`` are in the order in which the user gave them."""

    kind: ClassVar[str]
    keeps_state: ClassVar[bool] = False

    where: Place
    inputs: tuple[Node, ...] = ()
    name: str = ""
    on_error: ErrorPolicy | None = None

    @property
    def policy(self) -> ErrorPolicy:
        """What to do with a record that this node fails on."""
        return self.on_error or FAIL

    def __repr__(self) -> str:
        # Not with its inputs: of a long pipeline that would be a page.
        return f"<{type(self).__name__} {self.name or self.kind} at {self.where}>"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Read(Node):
    """Takes records from a source. A record that does not fit the source's schema is an error of this node.

    A source that was read to its end and quiet for ``idle_timeout`` no longer holds the watermark.
    """

    kind: ClassVar[str] = "read"

    source: Source[Any]
    backpressure: Backpressure = BLOCK
    idle_timeout: timedelta | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Replay(Read):
    """Takes dead letters that come back, and lets each record in again at the step that failed on it.

    It stands beside the graph: it is nobody's input, though what it takes goes on at the ``steps``. So it
    has no part in event time: nobody waits for it, and a record that it lets in moves no clock; whether that
    record is late, the step decides as for all others. What is no letter of one of the ``steps`` is an error
    of this node, and goes back to the dead letters; letters of other pipelines are passed over.
    """

    kind: ClassVar[str] = "replay"

    steps: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Apply(Node):
    """Calls the user's function with each record; results stay in the order of their records.

    ``map``: what it returns is the new record, and None is an error. ``filter``: the record stays if it
    returns something true. ``flat_map``: each of what it returns. Up to ``concurrency`` calls are under
    way, of an async function in one loop, of a plain one in threads; a call that takes longer than
    ``timeout`` is an error. ``schema``: of what it returns, where it is known.
    """

    kind: ClassVar[str] = "apply"

    function: Callable[[Any], Any]
    mode: Mode = "map"
    is_async: bool = False
    concurrency: int = 1
    timeout: timedelta | None = None
    schema: Schema | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Lookup(Node):
    """Adds to each record what a table has under its key when it passes; at most ``max_age`` old.

    ``on``: fields of the record with those of the table; null equals nothing. ``fields``: new names with
    those of the table, None: all that the record does not have. ``into``: one field of that name has them.
    ``inner``: a record for which nothing is found is left out. Up to ``cache`` keys are remembered in each
    process, those too that are not there. A look-up that fails, or takes longer than ``timeout``, is an error
    of this node for each record that needs it.
    """

    kind: ClassVar[str] = "lookup"

    table: Source[Any]
    on: tuple[tuple[str, str], ...]
    fields: tuple[tuple[str, str], ...] | None = None
    into: str | None = None
    how: LookupHow = "left"
    cache: int = 10_000
    max_age: timedelta = timedelta(minutes=1)
    timeout: timedelta = timedelta(seconds=2)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Filter(Node):
    """Keeps the records for which an expression is true; not those for which it is false or null."""

    kind: ClassVar[str] = "filter"

    predicate: Expr


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Project(Node):
    """Computes fields by expressions, all from the record as it came. ``keep``: beside the record's own."""

    kind: ClassVar[str] = "project"

    columns: tuple[tuple[str, Expr], ...]
    keep: bool = False


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class EventTime(Node):
    """The record's event time is, from here on, what stands at ``path``.

    A datetime, ISO 8601 text, or milliseconds since 1970; a record without it is an error of this node.
    """

    kind: ClassVar[str] = "event_time"

    path: str


@dataclass(frozen=True, slots=True, eq=False)
class Key:
    """One part of a key: its name in output rows, and how to get it from a record."""

    name: str
    of: Expr | Callable[[Any], Any]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class KeyBy(Node):
    """The record's key is, from here on, these values as they are now, whatever later steps change."""

    kind: ClassVar[str] = "key_by"

    parts: tuple[Key, ...]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Aggregation(Node):
    """Groups by key and window, and gives ``window_start``, ``window_end``, the keys and the aggregates.

    ``final``: a row for each window, when the watermark reaches its end + ``grace``; ``update``: a row
    whenever a window changed. A count window closes with its last record, and its span is that of its
    records' times. The event time of a row is 1 µs before ``window_end`` (as Spark's ``window_time``), its
    key the same as before.
    """

    kind: ClassVar[str] = "aggregate"
    keeps_state: ClassVar[bool] = True

    window: windows.Definition | None
    aggregates: tuple[tuple[str, Aggregate], ...]
    grace: timedelta = timedelta(0)
    emit: Emit = "final"
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Join(Node):
    """Pairs of records of two inputs with equal values at ``on`` and event times at most ``within`` apart.

    Null equals nothing. The output has all fields of the left record and those of the right; a field that
    both have is the left's, and the right's is under ``prefix`` + its name, except where the two are joined
    on it. A record without a partner comes alone (``left``, ``right``, ``full``) once the watermark passes
    its time + ``within`` + ``grace``; joined fields of the top level then have the value of the side that is
    there. A row's event time is the later one of its two records. There is no key after a join.
    """

    kind: ClassVar[str] = "join"
    keeps_state: ClassVar[bool] = True

    on: tuple[tuple[str, str], ...]
    within: timedelta | None
    how: How = "inner"
    grace: timedelta = timedelta(0)
    prefix: str = "right_"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Stateful(Node):
    """Calls ``function(key, record, state)`` for each record of a key, in order; None gives nothing.

    ``key`` is the value of a single key, or a tuple of several. ``on_timer(key, timer, state)`` is called
    with a timer's name once the watermark passes it. State that was not touched for ``ttl`` of event time
    is forgotten. With a ``grace``, a record is late once the watermark is past its time and that; without
    one, none is.

    A step of ours (``.anomalies``, ``.patterns``) says in ``looks`` what it looks for, what it ``reads``, and
    of which fields it takes ``numbers``. One that goes by ``rules`` of that name gets them when it is run.
    """

    kind: ClassVar[str] = "stateful"
    keeps_state: ClassVar[bool] = True

    function: Callable[..., Any]
    on_timer: Callable[..., Any] | None = None
    ttl: timedelta | None = None
    grace: timedelta | None = None
    schema: Schema | None = None
    keys: tuple[str, ...] = ()
    looks: tuple[tuple[str, str], ...] = ()
    reads: tuple[Expr, ...] = ()
    numbers: tuple[str, ...] = ()
    rules: str | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Deduplicate(Node):
    """Of records with equal values at ``fields``, at most ``within`` apart, only the first to come passes."""

    kind: ClassVar[str] = "deduplicate"
    keeps_state: ClassVar[bool] = True

    fields: tuple[str, ...]
    within: timedelta | None
    grace: timedelta = timedelta(0)


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Union(Node):
    """All records of all inputs: as they arrive, or by event time where several wait (``timestamp``)."""

    kind: ClassVar[str] = "union"

    coordination: Coordination = "arrival"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Late(Node):
    """What its input (an ``Aggregation``, ``Join`` or ``Deduplicate``) got too late.

    Rows have ``record``, ``event_time``, ``lateness_ms``, ``step``, and of a window it missed (the last one)
    ``window_start`` and ``window_end``.
    """

    kind: ClassVar[str] = "late"


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Write(Node):
    """Gives records to a sink. A record that the sink refuses is an error of this node."""

    kind: ClassVar[str] = "write"

    sink: Sink
