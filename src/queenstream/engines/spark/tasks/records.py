"""Records on their way: with what goes along with them, and as bytes between two stages.

Bytes are pickles, so that a record is after a shuffle what it was before it: a number stays whole, a
dataclass stays one. They are made and read by the processes of one query only. What is kept in files of the
checkpoint is no pickle: ``queenstream.runtime.encoding``.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Iterable
from itertools import repeat
from typing import Any, NamedTuple, TypeAlias, cast

from pyspark import cloudpickle

from queenstream.errors import PayloadInvalid
from queenstream.runtime.encoding import decode, encode, encode_row
from queenstream.runtime.failures import Along
from queenstream.runtime.replay import Entrant

_FAILURE_PARTS = 5  # of what ``encode_failure`` gives


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


def encode_failure(record: Any, error: Exception) -> bytes:
    """What could not be made a record, and why, for a file."""
    return encode([*_error_parts(error), encode_row(record)])


def decode_failure(data: bytes) -> tuple[Any, Exception]:
    """The inverse. The exception is of its class if that is ours or Python's own, and else has its name."""
    *error, record = decode(data)
    return decode(record), _error(*error)


def _error_parts(error: Exception) -> tuple[str, str, str, bytes]:
    return type(error).__module__, type(error).__name__, str(error), encode_row(vars(error))


def _error(module: str, name: str, text: str, attributes: bytes) -> Exception:
    if module == "builtins" or module.partition(".")[0] == __name__.partition(".")[0]:
        kind: Any = getattr(importlib.import_module(module), name, None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            made: Exception = kind.__new__(kind, text)  # some take other things than their text
            found = decode(attributes)
            if str(made) == text and isinstance(found, dict):
                vars(made).update(found)
                return made
    other: Exception = type(name, (PayloadInvalid,), {})(text)
    return other


def encode_entrant(entrant: Entrant) -> bytes:
    """A record that is let in at a step again, where a row says why it could not be made."""
    along, error = entrant.along, entrant.error
    why = None if error is None else _error_parts(error)
    return encode(
        [entrant.step, encode_row(entrant.record), along.time, encode_row(along.key), along.port, why]
    )


def decode_misfit(data: bytes) -> Entrant | tuple[Any, Exception]:
    """What ``encode_entrant`` or ``encode_failure`` has made."""
    found = decode(data)
    if len(found) == _FAILURE_PARTS:
        return decode_failure(data)
    step, record, time, key, port, why = found
    error = None if why is None else _error(*why)
    return Entrant(step, decode(record), Along(time, decode(key), port), error)
