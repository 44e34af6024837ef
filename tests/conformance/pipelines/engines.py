"""What the suite asks of an engine: run a pipeline over batches of events, and give what its sinks hold.

A case builds its pipeline from ``Ends``, so that each engine brings sources and sinks of its own kind: the
local one replaces both, Spark reads something that it can read a batch at a time and writes something that
can be read back. Sources are bound to their events before the pipeline is built, so an engine that needs a
schema can look at them. Rows are compared as ``plain`` makes them, and as multisets: what an engine promises
about order is a matter of its own tests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Protocol, TypeAlias

from queenstream.core.schemas import Definition
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Memory, Sink, Source
from queenstream.testing import PipelineDriver

Row: TypeAlias = dict[str, Any]


class Ends(Protocol):
    """Where a case gets its sources and sinks from."""

    def source(self, name: str, schema: Definition | None = None) -> Source[Any]:
        """What the batches of that name come from; without a time of its own."""
        ...

    def sink(self, name: str) -> Sink:
        """What is looked at under that name afterwards; also for late output and dead letters."""
        ...


@dataclass(frozen=True)
class Idle:
    """Instead of a batch: a source has been quiet for its ``idle_timeout``."""

    source: str


Batches: TypeAlias = Sequence[Mapping[str, Sequence[Row]] | Idle]
"""What arrives together, by source; event time moves between two of them."""

Build: TypeAlias = Callable[[Ends], Pipeline[Any]]


@dataclass
class Outcome:
    """What the sinks hold, by name; late output and dead letters among them."""

    sinks: dict[str, list[Row]] = field(default_factory=dict)


class Engine(Protocol):
    """Runs a pipeline over batches."""

    name: str

    def run(self, build: Build, batches: Batches, *, end: bool) -> Outcome:
        """``end``: the input is over after the last batch; otherwise what is open stays open."""
        ...


class Replaced:
    """Ends for a driver, which replaces what it is given."""

    def __init__(self) -> None:
        self.sinks: list[str] = []

    def source(self, name: str, schema: Definition | None = None) -> Source[Any]:
        return Memory((), schema=schema)

    def sink(self, name: str) -> Sink:
        self.sinks.append(name)
        return Function(_nowhere, name=name)


def _nowhere(row: Row) -> None:
    raise AssertionError("a driver calls no sink")


class LocalEngine:
    """The in-process engine. ``crashes``: after these batches (from 0) it is killed and started again."""

    name = "local"

    def __init__(self, *, commit_every: int = 1, crashes: Collection[int] = ()) -> None:
        self._commit_every = commit_every
        self._crashes = frozenset(crashes)

    def run(self, build: Build, batches: Batches, *, end: bool) -> Outcome:
        ends = Replaced()
        with PipelineDriver(build(ends), commit_every=self._commit_every) as driver:
            for number, batch in enumerate(batches):
                if isinstance(batch, Idle):
                    driver.idle(batch.source)
                else:
                    driver.send_together(batch)
                if number in self._crashes:
                    driver.crash()
            if end:
                driver.end()
            driver.commit()
            return Outcome({name: driver.rows(name) for name in ends.sinks})


def plain(value: Any) -> Any:
    """Values as all engines can give them: times as text, numbers rounded, no tuples."""
    if isinstance(value, datetime):
        return (value if value.tzinfo else value.replace(tzinfo=UTC)).astimezone(UTC).isoformat()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, float | Decimal):
        number = round(float(value), 9)
        return int(number) if number.is_integer() else number
    return value


def multiset(rows: Sequence[Row]) -> Counter[str]:
    """Rows without their order, in a form that prints well when two differ."""
    return Counter(repr(sorted(plain(row).items())) for row in rows)


def at(milliseconds: int) -> datetime:
    """An instant as rows have it."""
    return datetime.fromtimestamp(0, UTC) + milliseconds * _MILLISECOND


_MILLISECOND = datetime.resolution * 1000
