"""Which changes of a plan keep its checkpoint on Spark, and what to do about the others.

Spark knows the sources and the state of a query by their place in it, and checks little of what it finds. So
``run.json`` has the layout of the query. A plan goes on from a checkpoint if its query has the same layout.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from queenstream.engines.spark.sinks.names import addresses_of
from queenstream.engines.spark.sources.sources import is_fed
from queenstream.engines.spark.tasks.graph import clocks_of, graph_of
from queenstream.errors import CheckpointError
from queenstream.pipeline.plan import fingerprints
from queenstream.pipeline.plan.fingerprints import Change, Facts
from queenstream.pipeline.plan.nodes import Read, Replay
from queenstream.pipeline.plan.planner import Plan

_READS = (Read.kind, Replay.kind)
_KEEP_AS_IT_IS = "undo that, or take another checkpoint folder to begin anew"


@dataclass(frozen=True)
class Layout:
    """How the query of a plan is built, as far as its checkpoint depends on it.

    ``native``: it runs without Python; ``python``: which step needs Python, and where. ``stages``: of a query
    in Python, how deep each step with state is. ``timed``: it has a watermark. ``sources``: in their order in
    the query; ``fed``: those that the driver reads. ``sinks``: their addresses by name. None: an earlier
    version did not note it.
    """

    facts: Facts
    native: bool
    python: str = ""
    stages: Mapping[str, int] | None = None
    timed: bool | None = None
    sources: Sequence[str] | None = None
    fed: Sequence[str] = ()
    sinks: Mapping[str, str] | None = None

    @property
    def has_state(self) -> bool:
        """Whether a step remembers something."""
        return any(facts["kind"] not in _READS for facts in self.facts.values())

    def stored(self) -> dict[str, Any]:
        """What ``run.json`` has of it."""
        return {
            "facts": {step: dict(facts) for step, facts in self.facts.items()},
            "native": self.native,
            "stages": None if self.stages is None else dict(self.stages),
            "timed": self.timed,
            "sources": None if self.sources is None else list(self.sources),
            "sinks": None if self.sinks is None else dict(self.sinks),
        }


def restored(stored: Mapping[str, Any]) -> Layout:
    """The layout in what ``run.json`` has."""
    return Layout(
        stored["facts"],
        stored["native"],
        stages=stored.get("stages"),
        timed=stored.get("timed"),
        sources=stored.get("sources"),
        sinks=stored.get("sinks"),
    )


def layout_of(plan: Plan, sources: Sequence[Read], *, python: str | None = None) -> Layout:
    """The layout of a plan. ``sources``: in the order of the query; ``python``: what needs Python."""
    graph = graph_of(plan)
    return Layout(
        facts=plan.state,
        native=python is None,
        python=python or "",
        stages={name: step.depth for name, step in graph.items() if step.has_state},
        timed=bool(clocks_of(plan)),
        sources=[read.name for read in sources],
        fed=[read.name for read in plan.sources if is_fed(read.source)],
        sinks=addresses_of(plan),
    )


def chosen(stored: Layout | None, layout: Layout, in_python: Layout) -> Layout:
    """With or without Python: as it was before, if that cannot change.

    Any plan can run in Python. A plan that was in Python stays there if it has state, or if the driver feeds
    it, since both are stored in another way without Python.
    """
    if stored is not None and not stored.native and (stored.has_state or layout.fed):
        return in_python
    return layout


def changes_between(stored: Layout, now: Layout) -> list[Change]:
    """What becomes of each step's part of a checkpoint, and which sinks are new, gone or changed."""
    found = [_refined(change, stored, now) for change in fingerprints.compare(stored.facts, now.facts)]
    if not any(not each.harmless for each in found):
        found += _of_query(stored, now)
    return found + list(_of_sinks(stored, now))


def refuse(changes: Sequence[Change], where: str, plan: Plan) -> None:
    """Raise ``CheckpointError`` if there is a change with which a plan cannot go on."""
    broken = [f"{_named(each.step, plan)}: {each.why}" for each in changes if not each.harmless]
    if broken:
        raise CheckpointError(f"the plan does not fit the checkpoint {where}: {'; '.join(broken)}")


def _named(step: str, plan: Plan) -> str:
    """A step with the user's line, if the plan has it."""
    lines = {node.name: str(node.where) for node in plan.nodes}
    return f"{step} ({lines[step]})" if step in lines else step


def _refined(change: Change, stored: Layout, now: Layout) -> Change:
    """A change as Spark's checkpoint takes it."""
    step = change.step
    kind = (now.facts.get(step) or stored.facts[step])["kind"]
    if change.verdict == "kept":
        return change
    if kind in _READS:
        why = change.why
        if change.verdict == "new":
            why = "it is a new source, and Spark's checkpoint has a fixed number of them"
        return replace(change, verdict="changed", why=f"{why}; {_KEEP_AS_IT_IS}", matters=True)
    if change.verdict == "extended" and now.native:
        why = f"{change.why.partition(' is new')[0]} is new, and Spark has a fixed layout for its own windows"
        return replace(change, verdict="changed", why=f"{why}; {_KEEP_AS_IT_IS}")
    if change.verdict == "new" and not _fits_in(step, stored, now):
        why = "it is a new step with state, and the checkpoint has no stage for it"
        return replace(change, verdict="changed", why=f"{why}; {_KEEP_AS_IT_IS}")
    return change if change.harmless else replace(change, why=f"{change.why}; or {_KEEP_AS_IT_IS}")


def _fits_in(step: str, stored: Layout, now: Layout) -> bool:
    """Whether a new step with state is in a stage that there is already."""
    if now.native or stored.native or not stored.stages or not now.stages:
        return False
    return now.stages[step] <= max(stored.stages.values())


def _of_query(stored: Layout, now: Layout) -> Iterator[Change]:
    """What else of the query is another one."""
    if stored.native and not now.native and (stored.has_state or now.fed):
        what = "state of Spark's own" if stored.has_state else "files that the driver has fed to Spark"
        why = f"{now.python or 'the plan'} needs Python, which cannot read {what} in the checkpoint"
        step = next(iter(now.fed if not stored.has_state else now.stages or ["plan"]))
        yield Change(
            step, "changed", f"{why}; write that step as an expression, or take another checkpoint folder"
        )
        return
    if not now.native and stored.stages is not None and now.stages is not None:
        for step, depth in stored.stages.items():
            if step in now.stages and now.stages[step] != depth:
                why = f"{depth - 1} steps with state were before it, now there are {now.stages[step] - 1}"
                yield Change(step, "changed", f"{why}; {_KEEP_AS_IT_IS}")
    if not now.native and stored.has_state and stored.timed is not None and stored.timed != now.timed:
        why = (
            "the plan goes by event time now" if now.timed else "the plan does not go by event time any more"
        )
        yield Change(next(iter(now.stages or ["plan"])), "changed", f"{why}; {_KEEP_AS_IT_IS}")
    if stored.sources is not None and now.sources is not None and list(stored.sources) != list(now.sources):
        why = f"the sources were in the order {', '.join(stored.sources)}, and are {', '.join(now.sources)}"
        yield Change(now.sources[0], "changed", f"{why}; put them in that order again")


def _of_sinks(stored: Layout, now: Layout) -> Iterator[Change]:
    """Sinks that are new or gone: no sink keeps a plan from going on."""
    if stored.sinks is None or now.sinks is None:
        return
    for name in {**stored.sinks, **now.sinks}:
        before, after = stored.sinks.get(name), now.sinks.get(name)
        if before is None:
            yield Change(name, "new", "the sink gets what comes from now on")
        elif after is None:
            yield Change(name, "gone", "the sink gets nothing more", matters=False)
        elif before != after:
            yield Change(
                name,
                "changed",
                f"the sink was {before}, is {after}: it gets what comes from now on",
                matters=False,
            )
