"""Transaction ids: what makes a push safe to repeat."""

from __future__ import annotations

import itertools
import os
import secrets

_OWN = [f".{number}" for number in range(1000)]
_prefix = ""
_numbers = itertools.count(1)


def _begin() -> None:
    global _prefix, _numbers
    _prefix = secrets.token_hex(16) + "-"
    _numbers = itertools.count(1)


_begin()
os.register_at_fork(after_in_child=_begin)


def new_id() -> str:
    """An id that nobody else has: a random part for each process, and a number.

    >>> new_id() != new_id()
    True
    """
    return f"{_prefix}{next(_numbers)}"


def new_ids(count: int) -> list[str]:
    """So many of them. They share a number and have one each behind it: to write that is most of the cost.

    >>> len(set(new_ids(100)))
    100
    """
    found: list[str] = []
    while len(found) < count:
        shared = f"{_prefix}{next(_numbers)}"
        found += [shared + own for own in _OWN[: count - len(found)]]
    return found
