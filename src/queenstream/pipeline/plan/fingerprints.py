"""What of a plan a checkpoint depends on, and what a changed plan means for one.

A checkpoint holds the places in the sources and the state of steps, each under its step's name. So:

- Steps without state (transform, filter, select …) and sinks may be added, changed and removed at will; so
  may error policies, graces, ``emit``, concurrency and the code of functions. What is in the state stays,
  and goes on by the new rules; a new sink gets what comes from then on.
- A new source starts where its ``start`` says, a new step with state starts empty.
- A source or a step with state that is gone, or was renamed, leaves its state behind: somebody must want
  that.
- Aggregates may be added at the end: open windows count from nothing for them.
- A step whose windows, keys, event time, aggregates or join are others cannot use its state: start afresh, or
  give the step a new name. The same goes for a source that is another one now.

``state_of`` is stored with a checkpoint; ``compare`` says for each step what a new plan makes of it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from queenstream.core import durations, windows
from queenstream.pipeline.endpoints import function_name
from queenstream.pipeline.expr.expressions import Expr
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.lineage import parts_of, time_of
from queenstream.pipeline.plan.nodes import Node

Facts: TypeAlias = Mapping[str, Mapping[str, str]]
"""For each step that a checkpoint knows: what its part of the checkpoint depends on."""

Verdict: TypeAlias = Literal["kept", "extended", "new", "gone", "changed"]


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one step's part of a checkpoint, and why."""

    step: str
    verdict: Verdict
    why: str
    matters: bool = True

    @property
    def harmless(self) -> bool:
        """Whether a run may go on from the checkpoint without being told to."""
        return self.verdict in ("kept", "extended", "new") or not self.matters


def state_of(plan_nodes: Iterable[Node]) -> dict[str, dict[str, str]]:
    """What a checkpoint of these nodes depends on, as text that JSON can hold."""
    found = {}
    for node in plan_nodes:
        facts = _facts(node)
        if facts:
            found[node.name] = {"kind": node.kind, **facts}
    return found


def fingerprint(facts: Facts) -> str:
    """Sixteen letters that change whenever ``compare`` would find a difference.

    >>> fingerprint({"totals": {"kind": "aggregate", "window": "tumbling 5m"}})
    'ec7181733d5e6bb7'
    """
    text = json.dumps(facts, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compare(stored: Facts, now: Facts) -> tuple[Change, ...]:
    """What each step's part of a checkpoint means to a plan.

    >>> old = {"sum": {"kind": "aggregate", "window": "tumbling 5m", "keys": "user"}}
    >>> new = {"sum": {"kind": "aggregate", "window": "tumbling 1h", "keys": "user"}}
    >>> [change] = compare(old, new)
    >>> change.verdict, change.why
    ('changed', 'window was tumbling 5m, is tumbling 1h')
    """
    changes = [_change(step, stored[step], now.get(step)) for step in stored]
    changes += [Change(step, "new", "it starts from nothing") for step in now if step not in stored]
    return tuple(changes)


def _change(step: str, old: Mapping[str, str], new: Mapping[str, str] | None) -> Change:
    if new is None and old.get("kind") == nodes.Replay.kind:
        return Change(step, "gone", "its dead letters do not come back any more", matters=False)
    if new is None:
        return Change(
            step, "gone", f"there is no step {step!r} any more; if it was renamed, give it that name again"
        )
    differing = [fact for fact in {**old, **new} if old.get(fact) != new.get(fact)]
    if not differing:
        return Change(step, "kept", "nothing that it depends on has changed")
    if differing == ["aggregates"] and new["aggregates"].startswith(f"{old['aggregates']}, "):
        added = new["aggregates"].removeprefix(f"{old['aggregates']}, ")
        return Change(step, "extended", f"{added} is new, and counts from nothing in windows that are open")
    told = (f"{fact} was {old.get(fact, 'not set')}, is {new.get(fact, 'not set')}" for fact in differing)
    return Change(step, "changed", "; ".join(told))


def _facts(node: Node) -> dict[str, str] | None:
    if isinstance(node, nodes.Read):
        return {"source": " ".join(node.source.address)}
    if isinstance(node, nodes.Aggregation):
        return {
            "window": window_text(node.window),
            "time": str(time_of(node.inputs[0])),
            "keys": keys_text(node),
            "aggregates": aggregates_text(node),
        }
    if isinstance(node, nodes.Join):
        return {"on": on_text(node), "how": node.how, "within": durations.format(node.within or 0)}
    if isinstance(node, nodes.Stateful):
        looks = [told for name, told in node.looks if not name]
        return {"keys": keys_text(node), **({"looks for": looks[0]} if looks else {})}
    if isinstance(node, nodes.Deduplicate):
        return {"fields": ", ".join(node.fields)}
    return None


def window_text(window: windows.Definition | None) -> str:
    """A window in a few words.

    >>> window_text(windows.Count(100, slide=10))
    'count 100 every 10'
    """
    if isinstance(window, windows.Tumbling):
        return f"tumbling {durations.format(window.size)}"
    if isinstance(window, windows.Sliding):
        return f"sliding {durations.format(window.size)} every {durations.format(window.slide)}"
    if isinstance(window, windows.Session):
        return f"session gap {durations.format(window.gap)}"
    if isinstance(window, windows.Count):
        return f"count {window.size}" + (f" every {window.slide}" if window.slide else "")
    return "no window"


def keys_text(node: Node) -> str:
    """What a node groups by: names, with how they are made where that is not the same."""
    return ", ".join(key_text(part) for part in parts_of(node)) or "nothing"


def key_text(part: nodes.Key) -> str:
    """One part of a key."""
    how = str(part.of) if isinstance(part.of, Expr) else f"{function_name(part.of)}()"
    return part.name if how == part.name else f"{part.name} = {how}"


def aggregates_text(node: nodes.Aggregation) -> str:
    """The aggregates with their names."""
    return ", ".join(f"{name} = {aggregate}" for name, aggregate in node.aggregates)


def on_text(node: nodes.Join | nodes.Lookup) -> str:
    """What a join, or a look-up, compares."""
    return ", ".join(left if left == right else f"{left} = {right}" for left, right in node.on)
