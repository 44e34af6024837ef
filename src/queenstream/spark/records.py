"""Records on their way: with what goes along with them, and as bytes between two stages.

Bytes are pickles, so that a record is after a shuffle what it was before it: a number stays whole, a
dataclass stays one. They are made and read by the processes of one query only.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, cast

from pyspark import cloudpickle


class Item(NamedTuple):
    """A record with what goes along with it. ``time`` is in µs, ``seq`` its place among those of a batch.

    ``due``: it came with the watermark (a closed window, a timer), and so before the records of its batch.
    """

    record: Any
    time: int | None
    key: Any
    seq: int
    due: bool = False


def make_items(records: Iterable[Any], times: Iterable[int | None], seqs: Iterable[int]) -> list[Item]:
    """Items of records that have no key yet. As quick as tuples: ``Item(…)`` is a call of Python each.

    >>> make_items(["a"], [None], [7])
    [Item(record='a', time=None, key=None, seq=7, due=False)]
    """
    made = map(tuple.__new__, repeat(Item), zip(records, times, repeat(None), seqs, repeat(False)))
    return cast(list[Item], list(made))


Placed: TypeAlias = tuple[Item, int]
"""An item, and its number among those of a piece of work."""


def packed(record: Any, key: Any) -> bytes:
    """A record and its key as bytes."""
    return _for_all((record, key))


def packed_by_task(record: Any, key: Any) -> bytes:
    """The same, several times as quick: what a task can name, other tasks can find.

    Not for the driver: the classes of its script are there by name, and nowhere else.
    """
    return _for_tasks((record, key))


def bundled(port: int, items: list[Placed]) -> bytes:
    """Several items of one key for an input of a step, each with its place among what its work gave."""
    return _for_tasks((port, [(*item, sub) for item, sub in items]))


def unbundled(data: bytes) -> tuple[int, list[Placed]]:
    """The inverse."""
    port, items = pickle.loads(data)  # noqa: S301 - of this query's own making
    return port, [(Item(*fields), sub) for *fields, sub in items]


def _for_all(value: Any) -> bytes:
    data: bytes = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def _for_tasks(value: Any) -> bytes:
    try:
        return pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:  # noqa: BLE001 - a class of the user's script, which came here as it is
        return _for_all(value)


def unpacked(data: bytes) -> tuple[Any, Any]:
    """The inverse."""
    record, key = pickle.loads(data)  # noqa: S301 - of this query's own making
    return record, key
