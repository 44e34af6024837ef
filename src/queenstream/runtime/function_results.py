"""What a user's function gives, checked: the same on all engines.

>>> SETTLE["flat_map"]("split")(("a", "b"))
['a', 'b']
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from queenstream.pipeline.plan import nodes


def no_record(step: str) -> TypeError:
    """What is raised for a function that gives nothing."""
    return TypeError(f"{step} returned None; return the record, or drop records with .filter(…)")


def _map(step: str) -> Callable[[Any], Any]:
    def settle(made: Any) -> Any:
        if made is None:
            raise no_record(step)
        return made

    return settle


def _filter(step: str) -> Callable[[Any], Any]:  # noqa: ARG001 - one form for all
    return bool


def _flat(step: str) -> Callable[[Any], Any]:
    def settle(made: Any) -> list[Any]:
        if made is None:
            raise TypeError(f"{step} returned None; return a list, which may be empty")
        return list(made)

    return settle


SETTLE: dict[nodes.Mode, Callable[[str], Callable[[Any], Any]]] = {
    "map": _map,
    "filter": _filter,
    "flat_map": _flat,
}
"""By mode: of a step's name, what makes of a function's outcome what goes on, or raises."""
