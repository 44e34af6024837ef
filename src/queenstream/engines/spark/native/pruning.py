"""Which fields of a source's records a plan looks at: the others need not come into Spark at all.

They are read where they come from all the same, since a record that does not fit its schema is an error
whatever the field is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from queenstream.core import paths
from queenstream.core.schemas import Schema
from queenstream.engines.spark.native.failures import kept_by
from queenstream.engines.spark.sources.sources import is_fed
from queenstream.pipeline.expr.expressions import Expr
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.plan.planner import Plan

_WHOLE = ""  # the path of a record


def needed(plan: Plan, read: nodes.Read) -> Schema:
    """The fields of a typed source that a plan looks at; one at least, so that there is a record.

    What is fed lies in Parquet, of which Spark takes what it needs by itself.
    """
    schema = read.source.columns
    assert schema is not None, "it is typed"
    if is_fed(read.source):
        return schema
    found = {paths.segments(path)[:1] for path in _read_after(plan, read)}
    if () in found:
        return schema
    wanted = tuple(each for each in schema.fields if (each.name,) in found or each.required)
    return Schema(wanted or schema.fields[:1])


def _read_after(plan: Plan, node: Node) -> Iterator[str]:
    """What is read of a step's records by those that follow it."""
    for each in plan.consumers(node):
        reads, makes_new = _reads(each)
        yield from reads
        if not makes_new:
            yield from _read_after(plan, each)


def _reads(node: Node) -> tuple[Iterable[str], bool]:
    """The paths that a step reads, and whether what it gives are other records."""
    if isinstance(node, nodes.Filter):
        return node.predicate.columns, False
    if isinstance(node, nodes.EventTime):
        # A dead letter has the whole record, and so has a callback.
        return [_WHOLE if kept_by(node) else node.path], False
    if isinstance(node, nodes.KeyBy):
        parts = [part.of for part in node.parts]
        return [
            path for part in parts for path in (part.columns if isinstance(part, Expr) else [_WHOLE])
        ], False
    if isinstance(node, nodes.Project) and not node.keep:
        return [path for _, expr in node.columns for path in expr.columns], True
    if isinstance(node, nodes.Aggregation):
        fields = [each.field for _, each in node.aggregates if each.kind != "count" or each.field is not None]
        return [_WHOLE if field is None else field for field in fields], True
    return [_WHOLE], True
