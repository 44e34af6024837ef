"""What a join gives: the rows of pairs, and of records that found no partner. The same on all engines."""

from __future__ import annotations

from typing import Any

from queenstream.core import paths
from queenstream.pipeline.plan import nodes

LEFT, RIGHT = 0, 1


class Rows:
    """How two records become one row, and one record a row without the other.

    ``known``: the fields that each side is known to have.
    """

    def __init__(self, node: nodes.Join, known: tuple[tuple[str, ...], ...]) -> None:
        self._prefix = node.prefix
        self._same = {theirs for ours, theirs in node.on if ours == theirs}
        self._known = known
        # Of the joined fields those that are a record's own; what lies deeper has no field in a row.
        self._joined = [
            (paths.segments(ours)[0], paths.segments(theirs)[0])
            for ours, theirs in node.on
            if len(paths.segments(ours)) == len(paths.segments(theirs)) == 1
        ]

    def pair(self, left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
        """The fields of both."""
        row = dict(left)
        for name, value in right.items():
            if name not in left:
                row[name] = value
            elif name not in self._same:
                row[f"{self._prefix}{name}"] = value
        return row

    def alone(self, side: int, record: dict[str, Any]) -> dict[str, Any]:
        """The fields of one; those of the other that are known are null, and the joined ones are equal."""
        if side == LEFT:
            other = dict.fromkeys(self._known[RIGHT])
            other |= {theirs: record.get(ours) for ours, theirs in self._joined}
            return self.pair(record, other)
        other = dict.fromkeys(self._known[LEFT])
        other |= {ours: record.get(theirs) for ours, theirs in self._joined}
        return self.pair(other, record)
