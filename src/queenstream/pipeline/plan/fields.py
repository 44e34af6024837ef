"""The fields of each node's output, from the sources on, where they are known; paths that lead nowhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from queenstream.core.aggregates import Aggregate
from queenstream.core.schemas import Field, Schema, types
from queenstream.core.schemas.types import List, Type
from queenstream.pipeline import lookups
from queenstream.pipeline.expr import functions, type_inference
from queenstream.pipeline.expr.expressions import Expr
from queenstream.pipeline.expr.type_inference import Report, column_type, kind_of
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import WINDOW_END, WINDOW_START, Node

LATE = Schema.of(
    "record variant, event_time timestamp, lateness_ms bigint, step string, "
    "window_start timestamp, window_end timestamp"
)

_NUMERIC = {"sum", "avg", "stddev", "percentile"}


def output_of(
    node: Node, inputs: Sequence[Schema | None], keys: Sequence[Field], report: Report
) -> Schema | None:
    """The fields of a node's output; ``keys`` are those of the records that reach it."""
    if isinstance(node, nodes.Read):
        return node.source.columns
    if isinstance(node, nodes.Late):
        return LATE
    if isinstance(node, nodes.Join) and len(inputs) == 2:
        return _join(node, inputs[0], inputs[1], report)
    if isinstance(node, nodes.Union):
        return _union(inputs, report)
    into = inputs[0] if inputs else None
    if isinstance(node, nodes.Project):
        return _project(node, into, report)
    if isinstance(node, nodes.Aggregation):
        return _aggregation(node, into, keys, report)
    if isinstance(node, nodes.Stateful):
        for expr in node.reads:
            type_inference.type_of(expr, into, report)
        for path in node.numbers:
            taken = column_type(path, into, report)
            if kind_of(taken) not in (None, functions.NUMBER):
                report(f"takes numbers of {path!r}, which is {taken}", "name a field that has some")
        return node.schema
    if isinstance(node, nodes.Lookup):
        for ours, _ in node.on:
            column_type(ours, into, report)
        return lookups.output_of(node, into)
    if isinstance(node, nodes.Apply):
        return into if node.mode == "filter" else node.schema
    _reads(node, into, report)
    return into


def key_fields(node: nodes.KeyBy, schema: Schema | None, report: Report) -> list[Field]:
    """The parts of a key, as fields of output rows; a function's value may be anything."""
    return [
        Field(
            part.name,
            _any(type_inference.type_of(part.of, schema, report))
            if isinstance(part.of, Expr)
            else types.VARIANT,
        )
        for part in node.parts
    ]


def _reads(node: Node, schema: Schema | None, report: Report) -> None:
    """Nodes that let records through as they are, and only look at some fields."""
    if isinstance(node, nodes.Filter):
        kind = kind_of(type_inference.type_of(node.predicate, schema, report))
        if kind not in (None, functions.BOOL):
            report(f"is by `{node.predicate}`, which is neither true nor false", "compare it with something")
    elif isinstance(node, nodes.EventTime):
        kind = kind_of(column_type(node.path, schema, report))
        if kind not in (None, functions.TIME, functions.TEXT, functions.NUMBER):
            report(
                f"takes the time from {node.path!r}, which is {kind}",
                "name a field with a timestamp, ISO 8601 text or milliseconds since 1970",
            )
    elif isinstance(node, nodes.Deduplicate):
        for path in node.fields:
            column_type(path, schema, report)
    elif isinstance(node, nodes.Write):
        for path in node.sink.needs:
            column_type(path, schema, report)


def _project(node: nodes.Project, schema: Schema | None, report: Report) -> Schema | None:
    made = [Field(name, _any(type_inference.type_of(expr, schema, report))) for name, expr in node.columns]
    if not node.keep:
        return Schema(tuple(made))
    if schema is None:
        return None
    fields = {field.name: field for field in (*schema.fields, *made)}
    return Schema(tuple(fields.values()))


def _aggregation(
    node: nodes.Aggregation, schema: Schema | None, keys: Sequence[Field], report: Report
) -> Schema:
    times = [Field(WINDOW_START, types.TIMESTAMP), Field(WINDOW_END, types.TIMESTAMP)]
    made = [Field(name, _aggregated(name, each, schema, report)) for name, each in node.aggregates]
    return Schema((*times, *keys, *made))


def _aggregated(name: str, aggregate: Aggregate, schema: Schema | None, report: Report) -> Type:
    taken = None if aggregate.field is None else column_type(aggregate.field, schema, report)
    kind = aggregate.kind
    if kind in _NUMERIC and kind_of(taken) not in (None, functions.NUMBER):
        report(
            f"takes {name} = {aggregate} of a {taken}, in which no number will be found",
            f"take {kind} of a number, or write count({aggregate.field!r})",
        )
    if kind in ("count", "count_distinct"):
        return types.BIGINT
    if kind in ("avg", "stddev", "percentile"):
        return types.DOUBLE
    if kind == "sum":
        whole = taken in types.INTEGERS
        return types.BIGINT if whole else types.DOUBLE if taken in types.FRACTIONS else _any(taken)
    if kind in ("collect_list", "collect_set"):
        return List(_any(taken))
    return types.VARIANT if kind == "custom" else _any(taken)


def _join(node: nodes.Join, left: Schema | None, right: Schema | None, report: Report) -> Schema | None:
    for ours, theirs in node.on:
        one, two = column_type(ours, left, report), column_type(theirs, right, report)
        kinds = {kind_of(one), kind_of(two)}
        if None not in kinds and len(kinds) == 2:
            report(
                f"compares {ours!r}, {one}, with {theirs!r}, {two}, which are never equal", "cast one of them"
            )
    if left is None or right is None:
        return None
    return Schema(tuple(joined_fields(node, left, right)))


def joined_fields(node: nodes.Join, left: Schema, right: Schema) -> list[Field]:
    """The left's fields, then the right's: under the prefix where the left has one of that name."""
    may_lack = {"left": (False, True), "right": (True, False), "full": (True, True)}
    lacking = may_lack.get(node.how, (False, False))
    same = {theirs for ours, theirs in node.on if ours == theirs}
    fields = [replace(field, nullable=field.nullable or lacking[0], default=None) for field in left.fields]
    for field in right.fields:
        if field.name in same:
            continue
        name = f"{node.prefix}{field.name}" if field.name in left.names else field.name
        fields.append(Field(name, field.type, field.nullable or lacking[1]))
    return fields


def _union(inputs: Sequence[Schema | None], report: Report) -> Schema | None:
    known = [schema for schema in inputs if schema is not None]
    if len(known) < len(inputs):
        return None
    fields: dict[str, Field] = {}
    for schema in known:
        for field in schema.fields:
            everywhere = all(field.name in other.names for other in known)
            before = fields.get(field.name)
            kind = field.type if before is None else type_inference.common([before.type, field.type])
            if kind is None and before is not None:
                report(
                    f"brings together {field.name!r} as {before.type} and as {field.type}",
                    f"make them one type with .with_columns({field.name}=col({field.name!r}).cast(…))",
                )
            nullable = field.nullable or not everywhere or (before is not None and before.nullable)
            fields[field.name] = Field(field.name, _any(kind), nullable)
    return Schema(tuple(fields.values()))


def _any(kind: Type | None) -> Type:
    return types.VARIANT if kind is None else kind
