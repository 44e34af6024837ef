"""What can be done with a window's messages, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from msgspec import Struct

from queenstream.core import aggregates, paths

T = TypeVar("T")


class WindowMessage(Struct, Generic[T], rename={"transaction_id": "transactionId"}, gc=False):
    """A message in a window. ``data`` is its payload."""

    id: str
    data: T
    created_at: datetime
    queue: str
    partition: str
    transaction_id: str = ""

    @property
    def payload(self) -> T:
        """The same as ``data``."""
        return self.data


class BaseWindow(Generic[T]):
    """The messages of a window: ``all_messages`` as they came, ``messages`` the working copy.

    >>> window.filter(lambda m: m.data["amount"] > 10).group_by("data.user")  # doctest: +SKIP
    {'ann': [...], 'bob': [...]}
    >>> window.reset().aggregate(count=True, avg=["data.amount"])  # doctest: +SKIP
    {'count': 12, 'avg': {'data.amount': 7.5}}
    """

    all_messages: Sequence[WindowMessage[T]]
    messages: list[WindowMessage[T]]

    def filter(self, keep: Callable[[WindowMessage[T]], object]) -> Self:
        """Keep only some in the working copy; can be chained."""
        self.messages = [message for message in self.messages if keep(message)]
        return self

    def reset(self) -> Self:
        """All messages are in the working copy again."""
        self.messages = list(self.all_messages)
        return self

    def group_by(self, path: str) -> dict[Any, list[WindowMessage[T]]]:
        """The working copy by the values at a path, such as ``data.user``; without one: None.

        A value that cannot be a key (a list, an object) counts by its text.
        """
        groups: dict[Any, list[WindowMessage[T]]] = {}
        for message, value in zip(self.messages, self._values(path), strict=True):
            groups.setdefault(value if isinstance(value, Hashable) else repr(value), []).append(message)
        return groups

    def aggregate(
        self,
        *,
        count: bool = False,
        sum: Iterable[str] = (),
        avg: Iterable[str] = (),
        min: Iterable[str] = (),
        max: Iterable[str] = (),
        percentile: Mapping[str, float | Iterable[float]] | None = None,
    ) -> dict[str, Any]:
        """Numbers over the working copy: ``{"count": 3, "sum": {"data.amount": 60}}``.

        What is missing or not a number is left out; the sum of nothing is 0, its average None. Percentiles
        are exact, and are asked for as in pipelines: 0.95 is the 95th.

        >>> window.aggregate(percentile={"data.ms": [0.5, 0.95]})  # doctest: +SKIP
        {'percentile': {'data.ms': {0.5: 12, 0.95: 48.5}}}
        """
        result: dict[str, Any] = {"count": len(self.messages)} if count else {}
        asked: list[tuple[str, Iterable[str], Callable[[str], aggregates.Aggregate]]] = [
            ("sum", sum, aggregates.sum_),
            ("avg", avg, aggregates.avg),
            ("min", min, aggregates.min_),
            ("max", max, aggregates.max_),
        ]
        for name, fields, made in asked:
            found = {field: self._folded(made(field), field) for field in fields}
            if found:
                result[name] = found
        if percentile:
            result["percentile"] = {
                field: {p: self._folded(aggregates.percentile(field, p), field) for p in _several(wanted)}
                for field, wanted in percentile.items()
            }
        return result

    def _folded(self, aggregate: aggregates.Aggregate, path: str) -> Any:
        state = aggregate.init()
        for order, value in enumerate(self._values(path)):
            state = aggregate.add(state, value, (0, order))
        return aggregate.finish(state)

    def _values(self, path: str) -> list[Any]:
        read = paths.getter(paths.strip(path))
        return [read(message.data) for message in self.messages]


def _several(wanted: float | Iterable[float]) -> Iterable[float]:
    return wanted if isinstance(wanted, Iterable) else (wanted,)
