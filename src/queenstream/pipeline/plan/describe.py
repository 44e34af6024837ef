"""A plan as text for people, as JSON for programs, and as a picture. The same plan always gives the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from queenstream.core import durations
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import function_name
from queenstream.pipeline.plan import nodes, svg
from queenstream.pipeline.plan.fingerprints import aggregates_text, key_text, on_text, window_text
from queenstream.pipeline.plan.lineage import in_order
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.policies import BLOCK

if TYPE_CHECKING:
    from queenstream.pipeline.plan.planner import Plan

_WIDEST_DETAIL = 100  # characters; JSON has it in full


def describe(plan: Plan, form: Literal["text", "json", "svg"] = "text") -> str:
    """The plan in one of its forms."""
    if form == "text":
        return as_text(plan)
    if form == "json":
        return as_json(plan)
    if form == "svg":
        return as_svg(plan)
    raise ConfigError(f"a plan has no form {form!r}; write 'text', 'json' or 'svg'")


def as_text(plan: Plan) -> str:
    """One line for each node; where it does not follow from the line above, it says what it follows from."""
    width = max(len(node.name) for node in plan.nodes)
    kinds = max(len(_verb(node)) for node in plan.nodes)
    lines = [_heading(plan), ""]
    before: Node | None = None
    for number, node in enumerate(plan.nodes, 1):
        parts = [_short(detail_of(node))]
        if node.inputs and list(node.inputs) != [before]:
            parts.append(f"from {', '.join(each.name for each in node.inputs)}")
        if node.policy != plan.policy:
            parts.append(f"on error: {node.policy}")
        told = " | ".join(filter(None, parts))
        lines.append(f"{number:>3}  {node.name:<{width}}  {_verb(node):<{kinds}}  {told}".rstrip())
        before = node
    lines += [line for note in notes_of(plan) for line in ("", f"Note: {note}")]
    return "\n".join(lines) + "\n"


def notes_of(plan: Plan) -> list[str]:
    """What is not guaranteed by this plan: for people to know before it runs."""
    found: dict[tuple[str, str], str] = {}
    for node in plan.nodes:
        before = in_order(node.inputs) if node.keeps_state else []
        for each in before:
            if isinstance(each, nodes.Lookup):
                found[each.name, node.name] = (
                    f"{each.name} looks up values before {node.name}, which keeps state. On Spark, a run "
                    "that is killed after it has prepared a batch computes the state of that batch again: "
                    "state may then have newer values than the sinks got. Look up after the step with state, "
                    "or accept this"
                )
    return [*found.values()]


def as_json(plan: Plan) -> str:
    """Everything there is to know about the plan, with the users' lines; keys in a fixed order."""
    document = {
        "name": plan.name,
        "fingerprint": plan.fingerprint,
        "bounded": plan.bounded,
        "nodes": [_node_json(plan, node) for node in plan.nodes],
    }
    notes = notes_of(plan)
    if notes:
        document["notes"] = notes
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def as_svg(plan: Plan) -> str:
    """A picture, from the sources at the top to the sinks at the bottom."""
    boxes = [
        svg.Box(
            node.name,
            _caption(node),
            _look(node),
            tuple(each.name for each in node.inputs),
        )
        for node in plan.nodes
    ]
    return svg.draw(f"Pipeline {plan.name}", boxes)


def detail_of(node: Node) -> str:
    """What a node does, in one line, beyond its name and kind."""
    return ", ".join(f"{name} {value}".strip() for name, value in _details(node).items())


def _caption(node: Node) -> str:
    """The second line of a box; what the name says already is not said again."""
    detail = detail_of(node)
    return detail if node.name.startswith(_verb(node)) else f"{_verb(node)} {detail}"


def _heading(plan: Plan) -> str:
    counts = [_several(len(plan.nodes), "step"), _several(len(plan.inputs), "source")]
    counts.append(_several(len(plan.sinks), "sink"))
    return f"Pipeline {plan.name}: {', '.join(counts)}; on error: {plan.policy}; plan {plan.fingerprint}"


def _several(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _verb(node: Node) -> str:
    return node.mode if isinstance(node, nodes.Apply) else node.kind


def _look(node: Node) -> svg.Look:
    if isinstance(node, nodes.Read | nodes.Write):
        return "end"
    return "state" if node.keeps_state else "step"


def _details(node: Node) -> dict[str, str]:
    """What there is to say, by name; the first, without a name, is what the node is about."""
    if isinstance(node, nodes.Replay):
        return {"": node.source.title, "to": ", ".join(node.steps)}
    if isinstance(node, nodes.Read):
        return {"": node.source.title, **_reading(node)}
    if isinstance(node, nodes.Write):
        return {"": node.sink.title, **node.sink.options(), "delivery": node.sink.delivery}
    if isinstance(node, nodes.Apply):
        return _applying(node)
    if isinstance(node, nodes.Lookup):
        return _looking_up(node)
    if isinstance(node, nodes.Filter):
        return {"": str(node.predicate)}
    if isinstance(node, nodes.Project):
        told = (name if str(expr) == name else f"{name} = {expr}" for name, expr in node.columns)
        return {"": ", ".join(told), **({"and": "all other fields"} if node.keep else {})}
    if isinstance(node, nodes.EventTime):
        return {"": node.path}
    if isinstance(node, nodes.KeyBy):
        return {"": ", ".join(map(key_text, node.parts))}
    if isinstance(node, nodes.Union):
        return {"": "by event time" if node.coordination == "timestamp" else "as they arrive"}
    return _with_state(node)


def _with_state(node: Node) -> dict[str, str]:
    if isinstance(node, nodes.Aggregation):
        by = {"by": ", ".join(node.keys)} if node.keys else {}
        grace = {"grace": durations.format(node.grace)} if node.grace else {}
        emit = {"emit": node.emit} if node.emit != "final" else {}
        return {"": window_text(node.window), **grace, **by, **emit, "of": aggregates_text(node)}
    if isinstance(node, nodes.Join):
        grace = {"grace": durations.format(node.grace)} if node.grace else {}
        return {"": node.how, "on": on_text(node), "within": durations.format(node.within or 0), **grace}
    if isinstance(node, nodes.Stateful):
        timer = {"timers": function_name(node.on_timer)} if node.on_timer else {}
        ttl = {"ttl": durations.format(node.ttl)} if node.ttl else {}
        if node.looks:
            return {**dict(node.looks), "by": ", ".join(node.keys)}
        return {"": function_name(node.function), "by": ", ".join(node.keys), **ttl, **timer}
    if isinstance(node, nodes.Deduplicate):
        return {"": ", ".join(node.fields), "within": durations.format(node.within or 0)}
    return {"": f"records too late for {node.inputs[0].name}"}


def _reading(node: nodes.Read) -> dict[str, str]:
    said = dict(node.source.options())
    if node.backpressure != BLOCK:
        said["backpressure"] = str(node.backpressure)
    if node.idle_timeout is not None:
        said["idle_timeout"] = durations.format(node.idle_timeout)
    return said


def _applying(node: nodes.Apply) -> dict[str, str]:
    said = {"": f"{'async ' if node.is_async else ''}{function_name(node.function)}"}
    if node.concurrency > 1:
        said["concurrency"] = str(node.concurrency)
    if node.timeout is not None:
        said["timeout"] = durations.format(node.timeout)
    return said


def _looking_up(node: nodes.Lookup) -> dict[str, str]:
    said = {"": node.table.title, "on": on_text(node)}
    if node.fields is not None:
        said["fields"] = ", ".join(name if name == of else f"{name} = {of}" for name, of in node.fields)
    if node.into is not None:
        said["into"] = node.into
    if node.how != "left":
        said["how"] = node.how
    return {**said, "max_age": durations.format(node.max_age)}


def _node_json(plan: Plan, node: Node) -> dict[str, Any]:
    schema = plan.schema(node)
    details = {name or "what": value for name, value in _details(node).items()}
    return {
        "name": node.name,
        "kind": node.kind,
        "where": str(node.where),
        "inputs": [each.name for each in node.inputs],
        "details": details,
        "on_error": str(node.policy),
        "state": node.keeps_state,
        "schema": None if schema is None else schema.to_ddl(),
    }


def _short(text: str) -> str:
    return text if len(text) <= _WIDEST_DETAIL else f"{text[: _WIDEST_DETAIL - 1]}…"
