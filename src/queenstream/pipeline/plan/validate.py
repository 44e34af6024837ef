"""The whole graph, looked at once before it runs: all that is wrong, by line, and what to write instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence

from queenstream.core import windows
from queenstream.core.schemas import Field, Schema
from queenstream.pipeline.arguments import is_async
from queenstream.pipeline.endpoints import Cassandra, Endpoint, Files, Postgres, Side, Sink
from queenstream.pipeline.errors import Problem
from queenstream.pipeline.expr.type_inference import Report
from queenstream.pipeline.plan import fields, nodes
from queenstream.pipeline.plan.lineage import in_order, time_of
from queenstream.pipeline.plan.nodes import WINDOW_END, WINDOW_START, Node

_SET_TIME = "say where the event time stands: .event_time('field') before it"


def check(plan_nodes: Sequence[Node]) -> tuple[list[Problem], dict[str, Schema | None]]:
    """All problems of a graph, in its order, and the fields of each node's output where they are known."""
    problems: list[Problem] = []
    outputs: dict[Node, Schema | None] = {}
    keys: dict[Node, list[Field]] = {}
    for node in plan_nodes:
        report = _reporter(node, problems)
        inputs = [outputs[each] for each in node.inputs]
        keys[node] = _keys(node, inputs, keys, report)
        outputs[node] = fields.output_of(node, inputs, keys[node], report)
        _check_node(node, inputs, report)
    problems += [*_dangling(plan_nodes), *_same_names(plan_nodes)]
    return problems, {node.name: schema for node, schema in outputs.items()}


def _reporter(node: Node, problems: list[Problem]) -> Report:
    def report(wrong: str, instead: str) -> None:
        problems.append(Problem(str(node.where), node.name, wrong, instead))

    return report


def _keys(
    node: Node, inputs: Sequence[Schema | None], known: dict[Node, list[Field]], report: Report
) -> list[Field]:
    """The parts of the key that a node's records have, as fields."""
    if isinstance(node, nodes.KeyBy):
        return fields.key_fields(node, inputs[0] if inputs else None, report)
    if isinstance(node, nodes.Join | nodes.Late) or not node.inputs:
        return []
    first, *others = (known[each] for each in node.inputs)
    agree = all([field.name for field in other] == [field.name for field in first] for other in others)
    return first if agree else []


def _check_node(node: Node, inputs: Sequence[Schema | None], report: Report) -> None:
    if not node.inputs and not isinstance(node, nodes.Read):
        report("has nothing to work on", "begin the pipeline with .source(Queue('name')) or another one")
        return
    for kind, look in _CHECKS.items():
        if isinstance(node, kind):
            look(node, report)
    if isinstance(node, nodes.Write):
        _check_write(node, inputs[0], report)
    _check_dead_letters(node, report)


def _check_read(node: nodes.Read, report: Report) -> None:
    _check_side(node.source, "writing", report)


def _check_apply(node: nodes.Apply, report: Report) -> None:
    if inspect.isasyncgenfunction(node.function):
        report("has an async generator", "return a list from an async function instead")
    if node.timeout is not None and not node.timeout:
        report("gives its function no time at all", "write timeout='2s', or leave it out")


def _check_project(node: nodes.Project, report: Report) -> None:
    if not node.columns:
        report("has no columns", "name them: .select('user_id', total=col('price') * col('quantity'))")


def _check_key_by(node: nodes.KeyBy, report: Report) -> None:
    names = [part.name for part in node.parts]
    if not names:
        report("names no key", "write .key_by('user_id')")
    for name in sorted({name for name in names if names.count(name) > 1}):
        report(
            f"has two keys named {name!r}", "name them apart: .key_by(user_id='user.id', order_id='order.id')"
        )
    if any(callable(part.of) and is_async(part.of) for part in node.parts):
        report("has an async function", "compute the key in a transform before, and key by its field")


def _check_aggregation(node: nodes.Aggregation, report: Report) -> None:
    if node.window is None:
        report("has no window", "add .window(tumbling('5m')) before it")
    elif isinstance(node.window, windows.Count):
        if node.grace:
            report(
                "has a count window with a grace, which does nothing", "leave grace out: the count closes it"
            )
    elif time_of(node.inputs[0]) is None:
        report(
            "has windows without a time", "write .window(…, time='field'): the source has no time of its own"
        )
    if not node.aggregates:
        report("computes nothing", "write .aggregate(n=count(), total=sum_('value'))")
    for name, _ in node.aggregates:
        if name in (WINDOW_START, WINDOW_END, *node.keys):
            report(f"has an aggregate named {name!r}, as the row has already", "give it another name")


def _check_join(node: nodes.Join, report: Report) -> None:
    if len(node.inputs) < 2:
        report("has only one side", "give the other pipeline a source")
    if not node.on:
        report("compares nothing", "write on='user_id', or on=('user_id', 'id')")
    if node.within is None:
        report("has no bound in time, so it would keep every record for ever", "add within='5m'")
    for side, each in zip(("left", "right"), node.inputs, strict=False):
        if time_of(each) is None:
            report(f"has no event time on its {side} side", _SET_TIME)


def _check_stateful(node: nodes.Stateful, report: Report) -> None:
    if not node.keys:
        report("has no key", "add .key_by('user_id') before it; for one state of all, .key_by(all=lit(1))")
    if is_async(node.function) or (node.on_timer is not None and is_async(node.on_timer)):
        report(
            "has an async function", "await in a transform before it, and keep the state in a plain function"
        )
    if (node.ttl or node.on_timer) and time_of(node.inputs[0]) is None:
        report("forgets or waits by event time, and there is none", _SET_TIME)


def _check_deduplicate(node: nodes.Deduplicate, report: Report) -> None:
    if not node.fields:
        report("names no field", "write .deduplicate('id', within='10m')")
    if node.within is None:
        report("has no bound in time, so it would keep every value for ever", "add within='10m'")
    if time_of(node.inputs[0]) is None:
        report("has no event time", _SET_TIME)


def _check_union(node: nodes.Union, report: Report) -> None:
    if len(node.inputs) < 2:
        report("has only one input", "give it another pipeline, with a source")
    if node.coordination == "timestamp" and time_of(node) is None:
        report("goes by event time, and not all of its inputs have one", _SET_TIME)


def _check_late(node: nodes.Late, report: Report) -> None:
    into = node.inputs[0]
    by_count = isinstance(into, nodes.Aggregation) and isinstance(into.window, windows.Count)
    by_time = isinstance(into, nodes.Aggregation | nodes.Join | nodes.Deduplicate) and not by_count
    if not by_time and not (isinstance(into, nodes.Stateful) and into.grace is not None):
        report(
            f"follows {into.name!r}, for which nothing is late",
            "put .late(…) right after .aggregate(…)",
        )


def _check_write(node: nodes.Write, schema: Schema | None, report: Report) -> None:
    sink = node.sink
    _check_side(sink, "reading", report)
    _check_loop(sink, node, "writes into", report)
    _check_files(sink, report)
    if (
        isinstance(sink, Cassandra | Postgres)
        and sink.create_table
        and schema is None
        and sink.schema is None
    ):
        report(
            "cannot create its table: the fields are not known",
            "give the sink a schema, or .select(…) before it",
        )
    if isinstance(sink, Cassandra) and sink.create_table and not sink.partition_key:
        report("cannot create its table without a key", "add partition_key=('user_id',)")


def _check_dead_letters(node: Node, report: Report) -> None:
    letters = node.policy.letters
    if letters is not None:
        _check_loop(letters.sink, node, "has its dead letters in", report)
        _check_files(letters.sink, report)


def _check_loop(sink: Sink, node: Node, does: str, report: Report) -> None:
    for source in in_order([node]):
        if isinstance(source, nodes.Read) and source.source.address == sink.address:
            report(
                f"{does} the {sink.title} that it reads, so every record would come back", "take another name"
            )


def _check_files(sink: Sink, report: Report) -> None:
    """Whether files can be written there, and so."""
    if not isinstance(sink, Files):
        return
    if sink.format in ("text", "orc"):
        report(f"writes {sink.format} files, which can only be read", "write format='ndjson' or 'parquet'")


def _check_side(endpoint: Endpoint, side: Side, report: Report) -> None:
    said = endpoint.said(side)
    if said:
        report(f"says {', '.join(said)} of {endpoint.title}, which is only for {side}", "leave it out here")


def _dangling(plan_nodes: Iterable[Node]) -> list[Problem]:
    """Steps that nothing follows, and that are no sinks."""
    last = {node: None for node in plan_nodes if not isinstance(node, nodes.Write | nodes.Replay)}
    for node in plan_nodes:
        for each in node.inputs:
            last.pop(each, None)
    instead = "end it with .to(Queue('name')) or another sink"
    return [Problem(str(node.where), node.name, "leads nowhere", instead) for node in last]


def _same_names(plan_nodes: Iterable[Node]) -> list[Problem]:
    first: dict[str, Node] = {}
    problems = []
    for node in plan_nodes:
        before = first.setdefault(node.name, node)
        if before is not node:
            wrong = f"has the name of the step at {before.where}"
            problems.append(Problem(str(node.where), node.name, wrong, "give each step a name of its own"))
    return problems


_CHECKS: dict[type[Node], Callable[..., None]] = {
    nodes.Read: _check_read,
    nodes.Apply: _check_apply,
    nodes.Project: _check_project,
    nodes.KeyBy: _check_key_by,
    nodes.Aggregation: _check_aggregation,
    nodes.Join: _check_join,
    nodes.Stateful: _check_stateful,
    nodes.Deduplicate: _check_deduplicate,
    nodes.Union: _check_union,
    nodes.Late: _check_late,
}
