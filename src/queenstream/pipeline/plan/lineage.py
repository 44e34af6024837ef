"""What a node's records carry with them, found by walking back to where it was set: keys and event time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queenstream.core import windows
from queenstream.pipeline.plan.nodes import (
    Aggregation,
    EventTime,
    Join,
    Key,
    KeyBy,
    Late,
    Node,
    Read,
    Union,
)

OWN_TIME = "the source's own"


def in_order(roots: Iterable[Node]) -> list[Node]:
    """All that the roots need, inputs before what they feed, in the order in which the user wrote them."""
    found: dict[Node, None] = {}
    for root in roots:
        # By hand and not by recursion: a chain may be longer than Python's stack.
        stack: list[tuple[Node, Iterator[Node]]] = [(root, iter(root.inputs))]
        while stack:
            node, rest = stack[-1]
            following = next((each for each in rest if each not in found), None)
            if following is None:
                found.setdefault(node)
                stack.pop()
            else:
                stack.append((following, iter(following.inputs)))
    return list(found)


def parts_of(node: Node) -> tuple[Key, ...]:
    """The parts of the key that a node's output has; of a union, only if all its inputs have the same."""
    while not isinstance(node, KeyBy):
        if isinstance(node, Join | Late) or not node.inputs:
            return ()
        if isinstance(node, Union):
            each = [parts_of(other) for other in node.inputs]
            agree = len({tuple(part.name for part in parts) for parts in each}) == 1
            return each[0] if agree else ()
        node = node.inputs[0]
    return node.parts


def keys_of(node: Node) -> tuple[str, ...]:
    """The names of those parts."""
    return tuple(part.name for part in parts_of(node))


def time_of(node: Node) -> str | None:
    """The path that a node's event time comes from, or that it is the source's own; None: there is none."""
    while True:
        if isinstance(node, EventTime):
            return node.path
        if isinstance(node, Read):
            return OWN_TIME if node.source.has_time else None
        if isinstance(node, Aggregation):
            counts = isinstance(node.window, windows.Count)
            return None if counts and time_of(node.inputs[0]) is None else "window_end"
        if isinstance(node, Join | Union):
            each = [time_of(other) for other in node.inputs]
            return None if not each or None in each else " / ".join(dict.fromkeys(map(str, each)))
        if not node.inputs:
            return None
        node = node.inputs[0]
