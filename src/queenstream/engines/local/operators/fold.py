"""Many records into many accumulators: one aggregate after the other, each in a tight loop over the batch.

``Aggregate.add`` is one call for each record and aggregate. The common ones have loops here that do the same
to the same accumulators without it; what is unusual (a Decimal, a null) still goes to ``add``. A sum is the
mere number as long as all that was added is whole: of a million windows, most never need more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from queenstream.core import aggregates
from queenstream.core.aggregates import Aggregate
from queenstream.engines.local.failures import Guard
from queenstream.runtime.failures import Along

States: TypeAlias = list[Any]
"""One window's accumulators, in the order of the aggregates."""

Fold: TypeAlias = Callable[[list[States], int, list[Any]], None]

_MOST_PARTS = 16  # of a float sum; past that ``add`` makes them fewer
_NOWHERE = (0, 0)


class Folds:
    """The aggregates of one step.

    >>> folds = Folds((("n", aggregates.count()), ("total", aggregates.sum_("value"))))
    >>> states = folds.new()
    >>> folds.fold([states, states], [{"value": 2}, {"value": 3}], [0, 0], first=0)
    >>> folds.finish(states)
    [2, 5]
    """

    def __init__(self, named: Sequence[tuple[str, Aggregate]]) -> None:
        self.names = [name for name, _ in named]
        self._all = [aggregate for _, aggregate in named]
        # A fresh number is the same for all windows; a list or a dict each must have for itself.
        self._fresh = [0 if _is_number(each) else None for each in self._all]
        self._inits = [(at, each.init) for at, each in enumerate(self._all) if not _is_number(each)]
        self._finishes = [_sum_finish if _is_sum(each) else each.finish for each in self._all]
        self._readers = {each.field: each.reader() for each in self._all}
        self._plain = [(at, each) for at, each in enumerate(self._all) if each.kind != "custom"]
        self.custom = [(at, each) for at, each in enumerate(self._all) if each.kind == "custom"]

    def new(self) -> States:
        """Accumulators of nothing."""
        states = self._fresh.copy()
        for at, init in self._inits:
            states[at] = init()
        return states

    def restored(self, states: States) -> States:
        """Accumulators from a checkpoint; aggregates that were added since then begin with nothing."""
        return states if len(states) == len(self._all) else [*states, *self.new()[len(states) :]]

    def finish(self, states: States) -> list[Any]:
        """The values of the aggregates."""
        return [finish(held) for finish, held in zip(self._finishes, states, strict=True)]

    def merge(self, into: States, other: States) -> None:
        """Take the others in."""
        for at, aggregate in enumerate(self._all):
            if _is_sum(aggregate):
                into[at] = aggregate.merge(_sum_parts(into[at]), _sum_parts(other[at]))
            else:
                into[at] = aggregate.merge(into[at], other[at])

    def fold(self, states: list[States], records: list[Any], times: Sequence[int], first: int) -> None:
        """Add each record to the accumulators at its place; ``first`` is the arrival of the first record."""
        values: dict[str | None, list[Any]] = {}
        for at, aggregate in self._plain:
            read = self._readers[aggregate.field]
            fast = _FAST.get(aggregate.add)
            if aggregate.field is None:
                column = records
            elif aggregate.field in values:
                column = values[aggregate.field]
            else:
                column = values[aggregate.field] = [read(record) for record in records]
            if fast is not None:
                fast(states, at, column)
            else:
                _any(aggregate, states, at, column, times, first)

    def fold_custom(self, states: States, record: Any, time: int, arrival: int) -> None:
        """Add one record to the accumulators of a user's own aggregates, which may raise."""
        for at, aggregate in self.custom:
            value = self._readers[aggregate.field](record)
            states[at] = aggregate.add(states[at], value, (time, arrival))


def _is_sum(aggregate: Aggregate) -> bool:
    return aggregate.add is _ADD["sum"]


def _is_number(aggregate: Aggregate) -> bool:
    return _is_sum(aggregate) or (aggregate.kind == "count" and aggregate.init is int)


def _sum_parts(held: Any) -> list[Any]:
    """A sum as its ``Aggregate`` has it: a whole number, and floats that are to be added to it."""
    return [held, []] if type(held) is int else held


def _sum_finish(held: Any) -> Any:
    return held if type(held) is int else _SUM_FINISH(held)


async def without_failures(
    folds: Folds,
    guard: Guard,
    states: list[States],
    records: list[Any],
    times: Sequence[int],
    first: int,
    went_along: Callable[[Any], Along],
) -> list[bool]:
    """Users' own aggregates first: a record on which one fails is not for the others either."""
    flags: list[bool] = []
    for at, (held, record, time) in enumerate(zip(states, records, times, strict=True)):

        def add(record: Any, held: States = held, time: int = time, at: int = at) -> bool:
            folds.fold_custom(held, record, time, first + at)
            return True

        try:
            flags.append(add(record))
        except Exception as error:  # noqa: BLE001 - whatever a user's function raises
            flags.append(bool(await guard.recover(record, error, add, went_along(record))))
    return flags


def _any(
    aggregate: Aggregate, states: list[States], at: int, values: list[Any], times: Sequence[int], first: int
) -> None:
    add = aggregate.add
    for arrival, (held, value, time) in enumerate(zip(states, values, times, strict=True), first):
        held[at] = add(held[at], value, (time, arrival))


def _count_all(states: list[States], at: int, values: list[Any]) -> None:  # noqa: ARG001 - one form for all
    for held in states:
        held[at] += 1


def _count(states: list[States], at: int, values: list[Any]) -> None:
    for held, value in zip(states, values, strict=True):
        if value is not None:
            held[at] += 1


def _sum(states: list[States], at: int, values: list[Any]) -> None:
    add = _ADD["sum"]
    for held, value in zip(states, values, strict=True):
        kind = type(value)
        into = held[at]
        if kind is int and type(into) is int:
            held[at] = into + value
            continue
        if type(into) is int:
            into = held[at] = _sum_parts(into)
        if kind is float and value == value and len(into[1]) < _MOST_PARTS:
            into[1].append(value)
        else:
            held[at] = add(into, value, _NOWHERE)


def _avg(states: list[States], at: int, values: list[Any]) -> None:
    add = _ADD["avg"]
    for held, value in zip(states, values, strict=True):
        kind = type(value)
        into = held[at]
        if kind is int:
            into[0] += value
            into[2] += 1
        elif kind is float and value == value and len(into[1]) < _MOST_PARTS:
            into[1].append(value)
            into[2] += 1
        else:
            held[at] = add(into, value, _NOWHERE)


def _min(states: list[States], at: int, values: list[Any]) -> None:
    add = _ADD["min"]
    for held, value in zip(states, values, strict=True):
        kind = type(value)
        into = held[at]
        if into and (kind is int or kind is float) and type(into[0]) is kind:
            if value < into[0]:
                into[0] = value
        else:
            held[at] = add(into, value, _NOWHERE)


def _max(states: list[States], at: int, values: list[Any]) -> None:
    add = _ADD["max"]
    for held, value in zip(states, values, strict=True):
        kind = type(value)
        into = held[at]
        if into and (kind is int or kind is float) and type(into[0]) is kind:
            if value > into[0]:
                into[0] = value
        else:
            held[at] = add(into, value, _NOWHERE)


_SUM_FINISH = aggregates.sum_("_").finish
_ADD = {
    "sum": aggregates.sum_("_").add,
    "avg": aggregates.avg("_").add,
    "min": aggregates.min_("_").add,
    "max": aggregates.max_("_").add,
}
_FAST: dict[Callable[..., Any], Fold] = {
    aggregates.count().add: _count_all,
    aggregates.count("_").add: _count,
    _ADD["sum"]: _sum,
    _ADD["avg"]: _avg,
    _ADD["min"]: _min,
    _ADD["max"]: _max,
}
