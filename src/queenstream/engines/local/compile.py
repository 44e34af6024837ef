"""From a plan to operators: one ``visit_<kind>`` for each kind of node."""

from __future__ import annotations

from typing import Any

from queenstream.core import windows
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.apply import ApplyOperator
from queenstream.engines.local.operators.base import Keeper, Operator
from queenstream.engines.local.operators.count_windows import CountOperator
from queenstream.engines.local.operators.deduplicate import DeduplicateOperator
from queenstream.engines.local.operators.join import JoinOperator
from queenstream.engines.local.operators.lookup import LookupOperator
from queenstream.engines.local.operators.session_windows import SessionOperator
from queenstream.engines.local.operators.stateful import StatefulOperator
from queenstream.engines.local.operators.stateless import (
    EventTimeOperator,
    FilterOperator,
    KeyByOperator,
    LateOperator,
    ProjectOperator,
    ReadOperator,
    ReplayOperator,
    UnionOperator,
    WriteOperator,
)
from queenstream.engines.local.operators.window_grid import GridOperator
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.replay import Doors

# These give their input's records on as they are.
_PASS_ON = (nodes.Filter, nodes.EventTime, nodes.KeyBy, nodes.Union, nodes.Deduplicate)


def compile_plan(plan: Plan, around: Surroundings) -> dict[Node, Operator[Any]]:
    """The operators of a plan, in its order."""
    compiler = Compiler(plan, around)
    for node in plan.nodes:
        compiler.done[node] = getattr(compiler, f"visit_{node.kind}")(node)
    return compiler.done


class Compiler:
    """Makes an operator of each node; ``done`` has those so far."""

    def __init__(self, plan: Plan, around: Surroundings) -> None:
        self._plan = plan
        self._around = around
        self.done: dict[Node, Operator[Any]] = {}

    def visit_read(self, node: nodes.Read) -> Operator[Any]:
        """A source."""
        return ReadOperator(node, self._around)

    def visit_replay(self, node: nodes.Replay) -> Operator[Any]:
        """Dead letters that come back."""
        return ReplayOperator(node, self._around, Doors.of(self._plan, node))

    def visit_apply(self, node: nodes.Apply) -> Operator[Any]:
        """A user's function."""
        return ApplyOperator(node, self._around, shared=self._shares(node))

    def visit_lookup(self, node: nodes.Lookup) -> Operator[Any]:
        """What a table has under a record's key."""
        return LookupOperator(node, self._around)

    def visit_filter(self, node: nodes.Filter) -> Operator[Any]:
        """An expression that is true or not."""
        return FilterOperator(node, self._around)

    def visit_project(self, node: nodes.Project) -> Operator[Any]:
        """Fields by expressions."""
        return ProjectOperator(node, self._around)

    def visit_event_time(self, node: nodes.EventTime) -> Operator[Any]:
        """Where the event time stands."""
        return EventTimeOperator(node, self._around)

    def visit_key_by(self, node: nodes.KeyBy) -> Operator[Any]:
        """What the next steps group by."""
        return KeyByOperator(node, self._around)

    def visit_aggregate(self, node: nodes.Aggregation) -> Operator[Any]:
        """Windows, each kind with an operator of its own."""
        window = node.window
        if isinstance(window, windows.Session):
            return SessionOperator(node, self._around, window)
        if isinstance(window, windows.Count):
            return CountOperator(node, self._around, window)
        assert window is not None, "a plan has a window for every aggregate"
        return GridOperator(node, self._around, window)

    def visit_join(self, node: nodes.Join) -> Operator[Any]:
        """Pairs of records."""
        left, right = node.inputs
        return JoinOperator(node, self._around, (self._plan.schema(left), self._plan.schema(right)))

    def visit_stateful(self, node: nodes.Stateful) -> Operator[Any]:
        """A user's function with state."""
        return StatefulOperator(node, self._around, shared=self._shares(node))

    def visit_deduplicate(self, node: nodes.Deduplicate) -> Operator[Any]:
        """Only the first."""
        return DeduplicateOperator(node, self._around)

    def visit_union(self, node: nodes.Union) -> Operator[Any]:
        """Branches together."""
        return UnionOperator(node, self._around)

    def visit_late(self, node: nodes.Late) -> Operator[Any]:
        """What came too late for the step before."""
        origin = self.done[node.inputs[0]]
        assert isinstance(origin, Keeper), "a plan has it only after a step that can be late"
        return LateOperator(node, self._around, origin)

    def visit_write(self, node: nodes.Write) -> Operator[Any]:
        """A sink."""
        return WriteOperator(node, self._around)

    def _shares(self, node: Node) -> bool:
        """Whether the records that a node gets reach another branch too."""
        pending = list(node.inputs)
        while pending:
            before = pending.pop()
            if len(self._plan.consumers(before)) > 1:
                return True
            if isinstance(before, _PASS_ON) or (isinstance(before, nodes.Apply) and before.mode == "filter"):
                pending += before.inputs
        return False
