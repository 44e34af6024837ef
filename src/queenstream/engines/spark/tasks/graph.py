"""A plan as the processes of tasks need it: steps without the sources, sinks and functions of the driver.

A query runs in stages. A stage groups records by key and calls the steps with state that stand so many deep
in the plan; the steps without state that follow run in the same task, right behind them. So a record that
many branches need is computed once, and the whole plan is one query with one checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from queenstream.core import paths
from queenstream.core.records import hashable
from queenstream.core.windows import Count, length_us
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.lineage import in_order
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.plan.planner import Plan
from queenstream.pipeline.policies import DeadLetters, Outcome
from queenstream.runtime.missing_fields import untyped_reads

# These give their input's records on as they are.
_PASS_ON = (nodes.Filter, nodes.EventTime, nodes.KeyBy, nodes.Union, nodes.Deduplicate)


@dataclass(frozen=True, slots=True)
class Way:
    """Where a step's records go: a step, and which of its inputs."""

    to: str
    port: int


@dataclass(frozen=True)
class Step:
    """A node without its inputs, and what it needs to know of the plan around it.

    ``delay_us``: how far the watermark at its inputs is behind the query's. ``depth``: how many steps with
    state a record has passed when it comes here, this one included.
    ``known``: the names of the fields of each input, where they are known. ``is_clock``: the event times
    that it sees move the watermark. ``alone``: no other source moves it, and nothing holds records back on
    their way here: after a batch the watermark is at all that came. ``broker``: the URL and the token of the
    run's, for a step that asks it. ``reads``: by input, the paths that it reads of untyped records.
    """

    node: Node
    ways: tuple[Way, ...]
    depth: int
    delay_us: int
    shared: bool
    known: tuple[tuple[str, ...], ...]
    late_to: tuple[str, ...] = ()
    is_clock: bool = False
    alone: bool = False
    broker: tuple[str | None, str | None] = (None, None)
    reads: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def has_state(self) -> bool:
        """Whether records have to be brought together by key for it."""
        return self.node.keeps_state


Graph = Mapping[str, Step]
"""The steps of a plan by name, in its order."""


def graph_of(plan: Plan, told: RunOptions | None = None) -> dict[str, Step]:
    """The plan for the tasks."""
    broker = (None, None) if told is None else (told.url, told.token)
    depths: dict[Node, int] = {}
    delays: dict[Node, int] = {}
    steps: dict[str, Step] = {}
    clocks = clocks_of(plan)
    reads = untyped_reads(plan)
    one_clock = [len(reads) for reads in clocks.values()] == [1]
    for node in plan.nodes:
        depths[node] = max((depths[each] for each in node.inputs), default=0) + node.keeps_state
        at_inputs = max((delays[each] for each in node.inputs), default=0)
        delays[node] = at_inputs + _delay_us(node)
        steps[node.name] = Step(
            node=stripped(node),
            ways=_ways(plan, node),
            depth=depths[node],
            delay_us=at_inputs,
            shared=_shares(plan, node),
            known=tuple(_names(plan, each) for each in node.inputs),
            late_to=tuple(each.name for each in plan.consumers(node) if isinstance(each, nodes.Late)),
            is_clock=node in clocks,
            alone=one_clock and node.keeps_state and depths[node] == 1,
            broker=broker if isinstance(node, nodes.Lookup) else (None, None),
            reads=reads.get(node.name, ()),
        )
    return steps


def counted(graph: Graph) -> dict[str, list[str]]:
    """What tasks count at each step: behind the first steps with state each key is a piece of work."""
    return {
        name: ["taken"] if step.has_state else ["taken", "given"]
        for name, step in graph.items()
        if step.depth == step.has_state
    }


def clocks_of(plan: Plan) -> dict[Node, frozenset[nodes.Read]]:
    """The nodes whose event times move the watermark of a step with state, each with its sources."""
    found: dict[Node, frozenset[nodes.Read]] = {}
    pending = [before for node in plan.nodes if node.keeps_state for before in node.inputs]
    while pending:
        node = pending.pop()
        if isinstance(node, nodes.EventTime) or (isinstance(node, nodes.Read) and node.source.has_time):
            found[node] = frozenset(each for each in in_order([node]) if isinstance(each, nodes.Read))
        else:
            pending += node.inputs
    return found


def grouping(step: Step, port: int) -> Callable[[Item], Any]:
    """What a step with state brings records together by; raises where there is no such key."""
    node = step.node
    if isinstance(node, nodes.Join):
        return _values([pair[port] for pair in node.on], single=True)
    if isinstance(node, nodes.Deduplicate):
        return _values(node.fields, single=False)
    assert isinstance(node, nodes.Aggregation | nodes.Stateful)
    keyed = bool(node.keys)
    return lambda item: item.key if keyed else None


def _values(fields: tuple[str, ...] | list[str], *, single: bool) -> Callable[[Item], Any]:
    readers = [paths.getter(path) for path in fields]
    if single and len(readers) == 1:
        [read] = readers
        return lambda item: hashable(read(item.record))
    return lambda item: hashable(tuple([read(item.record) for read in readers]))


def _ways(plan: Plan, node: Node) -> tuple[Way, ...]:
    """To each consumer, as often as it is its input; late records go there by another way."""
    return tuple(
        Way(each.name, port)
        for each in plan.consumers(node)
        if not isinstance(each, nodes.Late)
        for port, before in enumerate(each.inputs)
        if before is node
    )


def stripped(node: Node) -> Node:
    """A step as it travels to tasks: without its inputs, sources, sinks and places for dead letters."""
    policy = node.policy
    otherwise = None if policy.otherwise is None else _stub(policy.otherwise)
    bare = replace(node, inputs=(), on_error=replace(policy, then=_stub(policy.then), otherwise=otherwise))
    if isinstance(bare, nodes.Read):
        return nodes.Node(where=bare.where, name=bare.name, on_error=bare.on_error)
    if isinstance(bare, nodes.Write):
        return nodes.Node(where=bare.where, name=bare.name, on_error=bare.on_error)
    return bare


def _stub(outcome: Outcome) -> Outcome:
    """Without the sink of dead letters: the driver writes them, and it may not travel."""
    return DeadLetters("dead letters") if isinstance(outcome, DeadLetters) else outcome


def _delay_us(node: Node) -> int:
    """How far the watermark after a node is behind the one before it."""
    if isinstance(node, nodes.Join):
        assert node.within is not None, "a plan has a bound for it"
        return length_us(node.within) + length_us(node.grace)
    if isinstance(node, nodes.Deduplicate):
        return length_us(node.grace)
    if isinstance(node, nodes.Aggregation) and not isinstance(node.window, Count):
        return length_us(node.grace)
    return 0


def _names(plan: Plan, node: Node) -> tuple[str, ...]:
    schema = plan.schema(node)
    return () if schema is None else schema.names


def _shares(plan: Plan, node: Node) -> bool:
    """Whether the records that a node gets reach another branch too."""
    pending = list(node.inputs)
    while pending:
        before = pending.pop()
        if len(plan.consumers(before)) > 1:
            return True
        if isinstance(before, _PASS_ON) or (isinstance(before, nodes.Apply) and before.mode == "filter"):
            pending += before.inputs
    return False
