"""What a step remembers of a key, as people read it: the parts of a stored entry by their names.

>>> facts = {"kind": "aggregate", "window": "tumbling 1m", "aggregates": "n = count(), total = sum(value)"}
>>> described(facts, ["ann", 60_000_000, [2, 7.5]])["aggregates"]
{'n': 2, 'total': 7.5}
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Mapping
from typing import Any

from queenstream.core import durations
from queenstream.core.windows import from_us
from queenstream.runtime.keys import META, key_text

_SIDES = ("left", "right")


def described(facts: Mapping[str, str], entry: Any) -> dict[str, Any]:
    """An entry of the state of a step that a checkpoint has these facts about (``plan.state``)."""
    kind = facts["kind"]
    if kind == "aggregate":
        return _window(facts, entry)
    if kind == "stateful":
        key, values, timers, touched = entry
        times = {name: from_us(at) for name, at in timers.items()}
        return {"key": key, "values": values, "timers": times, "touched": _time(touched)}
    if kind == "deduplicate":
        key, passed = entry
        return {"key": key, "passed": [_time(at) for at in passed]}
    if kind == "join":
        side, key, time, _, record, matched = entry
        return {"key": key, "side": _SIDES[side], "time": _time(time), "record": record, "matched": matched}
    return {"entry": entry}


def is_entry(name: str | bytes) -> bool:
    """Whether a stored name is that of a key's entry, and not of what a step keeps beside them."""
    return name != META


def prefixes(written: str) -> list[str]:
    """How the names of a key's entries may begin, for a key as somebody types it.

    A key is a number, text, or a list of those; ``7`` may be either.

    >>> prefixes("7")
    ['"7"\\n', '["7"]\\n', '7\\n', '[7]\\n']
    """
    keys: list[Any] = [written]
    with contextlib.suppress(ValueError):  # text without quotes
        keys.append(json.loads(written))
    found = []
    for key in keys:
        parts = tuple(key) if isinstance(key, list) else key
        found.append(f"{key_text(parts)}\n")
        if not isinstance(parts, tuple):
            found.append(f"{key_text((parts,))}\n")
    return list(dict.fromkeys(found))


def _window(facts: Mapping[str, str], entry: Any) -> dict[str, Any]:
    kind, _, rest = facts["window"].partition(" ")
    if kind == "count":
        key, position, windows = entry
        told = [
            {"number": number, "first": _time(first), "last": _time(last), **_aggregates(facts, states)}
            for number, first, last, states in windows
        ]
        return {"key": key, "records": position, "windows": told}
    if kind == "session":
        key, _, start, end, states = entry
        return {
            "key": key,
            "window_start": from_us(start),
            "window_end": from_us(end),
            **_aggregates(facts, states),
        }
    key, start, states = entry
    size = durations.parse(rest.partition(" ")[0])
    begin = from_us(start)
    return {"key": key, "window_start": begin, "window_end": begin + size, **_aggregates(facts, states)}


def _aggregates(facts: Mapping[str, str], states: list[Any]) -> dict[str, Any]:
    """The states of aggregates by name, as far as the names are plain enough to be found."""
    names = re.findall(r"(?:^|, )([^\W\d]\w*) = ", facts["aggregates"])
    # The last ones may have been added since this was stored.
    return {"aggregates": dict(zip(names, states, strict=False)) if len(names) >= len(states) else states}


def _time(at: int | None) -> Any:
    return None if at is None else from_us(at)
