"""Aggregates: one arithmetic for client windows, both engines and StreamProcessor.

An aggregate folds values into an accumulator, and accumulators into one another:

>>> total = sum_("value")
>>> left, right = total.init(), total.init()
>>> left = total.add(left, 1, (0, 0))
>>> right = total.add(right, 2, (0, 1))
>>> total.finish(total.merge(left, right))
3

However the values were split and in whatever order they came, the outcome is the same. The rules:

- Null is ignored, but by ``count()``, ``first`` and ``last``: these take every event. The aggregate of
  nothing is null (None), but for the sum and the counts, which are 0, and the collections, which are empty.
- The numeric ones (sum, avg, stddev, percentile) ignore what is not a number. A bool is not a number, and
  neither is NaN. A Decimal counts as a float.
- Whole numbers add up to a whole number of any size. Floats are added without rounding (as a sum of parts
  that add up to it exactly) and rounded once at the end, so the order of events and of merges cannot show.
  A sum that leaves the range of a float, if only on the way, is infinite and stays so.
- min and max take bools, numbers, text and times. Of mixed kinds the order is just that: every number is
  less than every text. A time without a zone is read as UTC, a date as its midnight. NaN and all other
  kinds are ignored.
- first, last and the collections go by event time, then by arrival: the ``order`` of an event is that pair.
- collect_set and count_distinct hold 1 and 1.0 to be the same value, True and 1 not; NaN is one value.
- stddev is the population's (by Welford and Chan: stable, mergeable, and no more than that: the last digits
  may depend on the order). An infinite value makes it NaN.
- percentile is exact: it keeps all values, and interpolates between neighbours as Spark's ``percentile``
  does.

An accumulator is made of lists, dicts with text keys, numbers and the values themselves, so whatever can
store the values can store it. ``add`` and ``merge`` may change their first argument: go on with what they
return.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from queenstream.core import paths
from queenstream.core.aggregates import _numbers, _values
from queenstream.core.aggregates._numbers import Order
from queenstream.errors import ConfigError

__all__ = [
    "Aggregate",
    "Order",
    "avg",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "custom",
    "first",
    "from_dict",
    "last",
    "max_",
    "min_",
    "percentile",
    "stddev",
    "sum_",
]

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What to compute (``kind``), of which field (None: of the whole record), and how.

    >>> spend = sum_("amount")
    >>> spend.kind, spend.field, str(spend)
    ('sum', 'amount', 'sum(amount)')
    >>> spend.over([{"amount": 3}, {"amount": None}, {"amount": 4}])
    7
    """

    kind: str
    field: str | None
    init: Callable[[], Any]
    add: Callable[[Any, Any, Order], Any]
    merge: Callable[[Any, Any], Any]
    finish: Callable[[Any], Any]
    parameters: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        inside = [] if self.field is None else [self.field]
        inside += [f"{name}={value:g}" for name, value in self.parameters]
        return f"{self.kind}({', '.join(inside)})"

    def reader(self) -> paths.Getter:
        """What takes from a record the value to add."""
        return paths.getter(self.field or "")

    def over(self, records: Iterable[object]) -> Any:
        """The aggregate of records that are all there, in the order of their arrival."""
        read, add, held = self.reader(), self.add, self.init()
        for arrival, record in enumerate(records):
            held = add(held, read(record), (0, arrival))
        return self.finish(held)


def count(field: str | None = None) -> Aggregate:
    """How many events; with a field, how many in which it is not null.

    >>> count().over([{}, {"a": 1}]), count("a").over([{}, {"a": 1}])
    (2, 1)
    """
    return Aggregate(
        "count",
        field,
        int,
        _numbers.count_all if field is None else _numbers.count_add,
        operator.add,
        _numbers.itself,
    )


def sum_(field: str) -> Aggregate:
    """The sum of the numbers, exact; 0 of none.

    >>> sum_("a").over([{"a": 0.1}] * 10), sum_("a").over([])
    (1.0, 0)
    """
    return Aggregate(
        "sum", field, _numbers.sum_init, _numbers.sum_add, _numbers.sum_merge, _numbers.sum_finish
    )


def avg(field: str) -> Aggregate:
    """The mean of the numbers; None of none.

    >>> avg("a").over([{"a": 1}, {"a": 2}, {"a": "x"}]), avg("a").over([])
    (1.5, None)
    """
    return Aggregate(
        "avg", field, _numbers.avg_init, _numbers.avg_add, _numbers.avg_merge, _numbers.avg_finish
    )


def min_(field: str) -> Aggregate:
    """The least value.

    >>> min_("a").over([{"a": 2}, {"a": 1.5}, {"a": None}])
    1.5
    """
    return Aggregate("min", field, list, _values.min_add, _values.min_merge, _values.only)


def max_(field: str) -> Aggregate:
    """The greatest value.

    >>> max_("a").over([{"a": "ann"}, {"a": "bob"}])
    'bob'
    """
    return Aggregate("max", field, list, _values.max_add, _values.max_merge, _values.only)


def first(field: str) -> Aggregate:
    """The value of the earliest event, null or not.

    >>> first("a").over([{"a": 2}, {"a": 1}])
    2
    """
    return Aggregate("first", field, list, _values.first_add, _values.first_merge, _values.last_of)


def last(field: str) -> Aggregate:
    """The value of the latest event, null or not.

    >>> last("a").over([{"a": 2}, {"a": 1}])
    1
    """
    return Aggregate("last", field, list, _values.last_add, _values.last_merge, _values.last_of)


def collect_list(field: str) -> Aggregate:
    """All values that are not null, by event time.

    >>> collect_list("a").over([{"a": 2}, {"a": 1}, {"a": 2}])
    [2, 1, 2]
    """
    return Aggregate("collect_list", field, list, _values.list_add, operator.iadd, _values.list_finish)


def collect_set(field: str) -> Aggregate:
    """Each value once, by the event time of its first appearance; the values may be lists and dicts.

    >>> collect_set("a").over([{"a": 2}, {"a": [1]}, {"a": 2.0}])
    [2, [1]]
    """
    return Aggregate("collect_set", field, dict, _values.set_add, _values.set_merge, _values.set_finish)


def count_distinct(field: str) -> Aggregate:
    """How many different values.

    >>> count_distinct("a").over([{"a": 2}, {"a": [1]}, {"a": 2.0}, {}])
    2
    """
    return Aggregate("count_distinct", field, dict, _values.distinct_add, operator.ior, len)


def stddev(field: str) -> Aggregate:
    """The standard deviation of the population.

    >>> stddev("a").over([{"a": 1}, {"a": 3}])
    1.0
    """
    return Aggregate(
        "stddev",
        field,
        _numbers.stddev_init,
        _numbers.stddev_add,
        _numbers.stddev_merge,
        _numbers.stddev_finish,
    )


def percentile(field: str, p: float) -> Aggregate:
    """The value below which the share ``p`` (0 to 1) of the numbers lies, as a float.

    >>> percentile("ms", 0.5).over([{"ms": 10}, {"ms": 20}])
    15.0
    """
    if not 0 <= p <= 1:
        raise ConfigError(f"a percentile of {p!r} is not between 0 and 1; for the 95th write 0.95")
    finish = _numbers.Percentile(float(p))
    return Aggregate("percentile", field, list, _numbers.float_add, operator.iadd, finish, (("p", float(p)),))


def custom(
    init: Callable[[], State],
    add: Callable[[State, Any], State],
    merge: Callable[[State, State], State],
    finish: Callable[[State], Any],
    field: str | None = None,
) -> Aggregate:
    """An aggregate of one's own. Without a field, ``add`` gets the whole record.

    ``merge`` is needed where accumulators meet: sessions that grow together, parts of a cluster. What
    ``init`` and ``add`` return must be something that a checkpoint can store.

    >>> from operator import mul
    >>> product = custom(lambda: 1, mul, mul, lambda held: held, "a")
    >>> product.over([{"a": 2}, {"a": 3}])
    6
    """
    return Aggregate("custom", field, init, _numbers.WithoutOrder(add), merge, finish)


def from_dict(definitions: Mapping[str, Mapping[str, object]]) -> dict[str, Aggregate]:
    """Aggregates written as data: a name, an operator and a field (``user_id`` or ``$user_id``).

    >>> found = from_dict({"n": {"$sum": 1}, "total": {"$sum": "value"}, "users": {"$addToSet": "user_id"}})
    >>> {name: str(aggregate) for name, aggregate in found.items()}
    {'n': 'count()', 'total': 'sum(value)', 'users': 'collect_set(user_id)'}
    """
    return {name: _from_entry(name, entry) for name, entry in definitions.items()}


_OPERATORS: dict[str, Callable[[str], Aggregate]] = {
    "$addToSet": collect_set,
    "$avg": avg,
    "$count": count,
    "$first": first,
    "$last": last,
    "$max": max_,
    "$min": min_,
    "$push": collect_list,
    "$stdDevPop": stddev,
    "$sum": sum_,
}


def _from_entry(name: str, entry: object) -> Aggregate:
    if not isinstance(entry, Mapping) or len(entry) != 1:
        example = f'"{name}": {{"$sum": "value"}}'
        raise ConfigError(
            f"aggregate {name!r} is {entry!r}; write one operator and its field, such as {example}"
        )
    [(named, operand)] = entry.items()
    make = _OPERATORS.get(named)
    if make is None:
        raise ConfigError(f"aggregate {name!r}: no operator {named!r}; there are {', '.join(_OPERATORS)}")
    if isinstance(operand, str) and operand.removeprefix("$"):
        return make(operand.removeprefix("$"))
    if named == "$count":
        return count()
    if named == "$sum" and isinstance(operand, (int, float)) and not isinstance(operand, bool):
        return _constant(operand)
    raise ConfigError(f"aggregate {name!r}: {named} of {operand!r}; write the name of a field")


def _constant(number: float) -> Aggregate:
    """The sum of the same number for every event: a count, times that number."""
    if number == 1:
        return count()
    if not math.isfinite(number):
        raise ConfigError(f"$sum of {number} for every event is no number; write 1 or the name of a field")
    return Aggregate(
        "count", None, int, _numbers.count_all, operator.add, _numbers.Times(number), (("times", number),)
    )
