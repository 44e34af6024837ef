"""How the tests of the local engine drive it: records in, rows out, no I/O and no clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from queenstream.core.batches import Batch
from queenstream.engines.local.engine import Engine, Outputs
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.runtime import encoding

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)

Row = dict[str, Any]


def source(name: str = "in") -> Pipeline[Row]:
    """A pipeline that begins; its records come from the test."""
    return Pipeline("test").source(Memory[Row]([]), name=name)


def at(seconds: float) -> datetime:
    """So many seconds after 1970."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)


def ignore(record: object) -> None:
    """A sink: the test takes the rows from the engine."""


class Driven:
    """An engine under test. Rows are those of the sink ``out``; event times are milliseconds."""

    def __init__(self, pipeline: Pipeline[Any], *, tracking: bool = False) -> None:
        self.plan = pipeline.plan()
        self.pauses: list[float] = []
        self.engine = self._new(tracking)
        self.last = Outputs()
        self.stored: dict[str, dict[Any, Any]] = {}

    def _new(self, tracking: bool) -> Engine:
        async def sleep(seconds: float) -> None:
            self.pauses.append(seconds)

        return Engine(self.plan, tracking=tracking, now=lambda: NOW, sleep=sleep)

    async def send(self, *records: Any, source: str = "in", **options: Any) -> list[Any]:
        """One batch of one source."""
        return await self.send_all({source: records}, **options)

    async def send_all(self, records: Mapping[str, Sequence[Any]], **options: Any) -> list[Any]:
        """One batch of each source."""
        batches = {name: Batch(list(each)) for name, each in records.items()}
        return self._took(await self.engine.process(batches, **options))

    async def advance(self, seconds: float) -> list[Any]:
        """Event time goes on to that."""
        return self._took(await self.engine.advance(round(seconds * 1_000_000)))

    async def finish(self) -> list[Any]:
        """The input has ended."""
        return self._took(await self.engine.finish())

    async def all(self, *batches: Iterable[Any]) -> list[Any]:
        """The rows of several batches, and of the end."""
        rows = [row for batch in batches for row in await self.send(*batch)]
        return [*rows, *await self.finish()]

    def rows(self, sink: str) -> list[Any]:
        """What another sink got with the last batch."""
        return self.last.rows.get(sink, [])

    @property
    def letters(self) -> list[Row]:
        """The dead letters of the last batch."""
        return [letter for letters in self.last.dead_letters.values() for letter in letters]

    def crash(self) -> None:
        """Store what changed, as bytes, throw the engine away, and go on with another one from there."""
        for step, changes in self.engine.changes().items():
            held = self.stored.setdefault(step, {})
            for name, value in changes.items():
                if value is None:
                    held.pop(name, None)
                else:
                    held[name] = encoding.pack(value)
        marks = self.engine.watermarks()
        self.engine.close()
        self.engine = self._new(tracking=True)
        state = {
            step: {name: encoding.unpack(value) for name, value in held.items()}
            for step, held in self.stored.items()
        }
        self.engine.restore(state, marks)

    def _took(self, outputs: Outputs) -> list[Any]:
        self.last = outputs
        return outputs.rows.get("out", [])


def row(start: float | None, end: float | None, **values: Any) -> Row:
    """A row of an aggregate."""
    return {
        "window_start": None if start is None else at(start),
        "window_end": None if end is None else at(end),
        **values,
    }
