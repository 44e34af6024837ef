"""The names of a run's sinks: those of the steps that write, and one for each sink of dead letters."""

from __future__ import annotations

from queenstream.pipeline.endpoints import Function, Sink
from queenstream.pipeline.plan.planner import Plan


def sinks_of(plan: Plan) -> dict[str, Sink]:
    """All that a run writes to, by name: the plan's sinks, then where its dead letters go."""
    letters = {letters_name(sink): sink for sink in plan.dead_letters}
    return {**{write.name: write.sink for write in plan.sinks}, **letters}


def addresses_of(plan: Plan) -> dict[str, str]:
    """What each of them writes to, by name. A function may be another one under the same name."""
    return {
        name: "function" if isinstance(sink, Function) else ":".join(sink.address)
        for name, sink in sinks_of(plan).items()
    }


def letters_name(sink: Sink) -> str:
    """The name of a sink of dead letters."""
    return f"dead-letters:{':'.join(sink.address)}"


def letters_of(plan: Plan) -> dict[str, str]:
    """By the name of a step that may give dead letters, the name of the sink that gets them."""
    return {
        node.name: letters_name(letters.sink)
        for node in plan.nodes
        if (letters := node.policy.letters) is not None
    }
