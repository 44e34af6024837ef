"""The fields that steps read of records without a schema, and which of them no record had.

The planner knows the fields of typed records, and refuses others. In untyped records, and inside a field of
the type ``variant``, a field that is not there is null, so a misspelt name filters everything out and fails
nowhere. A ``FieldWatch`` looks at the
records that reach a step until each field was there once. What it finds are counts by step, which travel and
add up as all counts of a run do; ``find_missing`` reads them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from queenstream.core import paths
from queenstream.core.records import as_row
from queenstream.core.schemas import Schema, types
from queenstream.pipeline.expr.expressions import Call, Column, Expr, Unary
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node

if TYPE_CHECKING:
    from queenstream.pipeline.plan.planner import Plan
    from queenstream.runtime.metrics import Counts

_PRESENT, _ABSENT, _SIMILAR = "field present: ", "field absent: ", "field similar: "
_ARROW = " -> "
_SAMPLE = 20  # records whose field names are compared with one that is missing

Reads: TypeAlias = Mapping[str, Sequence[Sequence[str]]]
"""By step and input: the paths that the step reads of untyped records."""


@dataclass(frozen=True, slots=True)
class MissingField:
    """A field that a step reads and that no record had."""

    where: str
    step: str
    path: str
    records: int
    similar: str | None

    def __str__(self) -> str:
        looked = (
            "the only record did not have" if self.records == 1 else f"none of {self.records:,} records had"
        )
        remedy = "check the name" if self.similar is None else f"did you mean {self.similar!r}?"
        return f"{self.where}: {self.step} reads {self.path!r}, which {looked}; {remedy}"


class MissingFields:
    """The missing fields of a run of which nobody was told yet.

    >>> told = MissingFields(plan)  # doctest: +SKIP
    >>> [str(each) for each in told.take_new(counts)]  # doctest: +SKIP
    ["jobs.py:7: filter reads 'amout', which none of 3 records had; did you mean 'amount'?"]
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._known: set[tuple[str, str]] = set()

    def take_new(self, counts: Counts) -> list[MissingField]:
        """Those that counts show and that were not taken before."""
        found = [
            each for each in find_missing(self._plan, counts) if (each.step, each.path) not in self._known
        ]
        self._known |= {(each.step, each.path) for each in found}
        return found


def untyped_reads(plan: Plan) -> dict[str, tuple[tuple[str, ...], ...]]:
    """The paths that each step reads of each input, where it is not known what fields there are."""
    found: dict[str, tuple[tuple[str, ...], ...]] = {}
    for node in plan.nodes:
        wanted = tuple(
            tuple(sorted(path for path in set(_paths_read(node, port)) if _is_untyped(path, schema)))
            for port, schema in enumerate(map(plan.schema, node.inputs))
        )
        if any(wanted):
            found[node.name] = wanted
    return found


def _is_untyped(path: str, schema: Schema | None) -> bool:
    """Whether the planner cannot tell if there is such a field: without a schema, or inside a variant."""
    if schema is None:
        return True
    names = paths.segments(path)
    return any(schema.find(paths.join(names[:depth])) == types.VARIANT for depth in range(1, len(names)))


def _paths_read(node: Node, port: int) -> Iterable[str]:
    if isinstance(node, nodes.Filter):
        return _columns([node.predicate])
    if isinstance(node, nodes.Project):
        return _columns(expr for _, expr in node.columns)
    if isinstance(node, nodes.EventTime):
        return [node.path]
    if isinstance(node, nodes.KeyBy):
        return _columns(part.of for part in node.parts if isinstance(part.of, Expr))
    if isinstance(node, nodes.Aggregation):
        return [each.field for _, each in node.aggregates if each.field]
    if isinstance(node, nodes.Join):
        return [pair[port] for pair in node.on]
    if isinstance(node, nodes.Deduplicate):
        return node.fields
    if isinstance(node, nodes.Stateful):
        return [*_columns(node.reads), *node.numbers]
    if isinstance(node, nodes.Lookup):
        return [ours for ours, _ in node.on]
    return node.sink.needs if isinstance(node, nodes.Write) else ()


def _columns(expressions: Iterable[Expr]) -> set[str]:
    """The paths that expressions read, but for those that they expect to be absent at times."""
    found: set[str] = set()
    for expr in expressions:
        parts = list(expr.walk())
        optional = [each.operand for each in parts if isinstance(each, Unary) and each.op.startswith("is ")]
        optional += [
            choice
            for each in parts
            if isinstance(each, Call) and each.name == "coalesce"
            for choice in each.arguments
        ]
        found |= expr.columns - {each.path for each in optional if isinstance(each, Column)}
    return found


class FieldWatch:
    """Looks for fields in the records that reach steps, each until it was there once.

    ``count`` takes a step, what was found there, and how often.

    >>> counts = {}
    >>> watch = FieldWatch({"filter": [["amout"]]}, lambda step, what, number: counts.update({what: number}))
    >>> watch.look("filter", 0, [{"amount": 5}, {"amount": 7}])
    >>> counts
    {'field absent: amout': 2, 'field similar: amout -> amount': 1}
    """

    def __init__(self, reads: Reads, count: Callable[[str, str, int], None]) -> None:
        self.wanted: dict[str, list[list[_Field]]] = {
            step: [[_Field(path) for path in each] for each in inputs] for step, inputs in reads.items()
        }
        self._count = count

    def look(self, step: str, port: int, records: Sequence[Any]) -> None:
        """Look at the records of a batch that reach a step's input, before the step does its work."""
        inputs = self.wanted.get(step)
        if inputs is None or not records:
            return
        left: list[_Field] = []
        for each in inputs[port]:
            if any(map(each.is_in, records)):
                self._count(step, f"{_PRESENT}{each.path}", 1)
                continue
            left.append(each)
            self._count(step, f"{_ABSENT}{each.path}", len(records))
            similar = _most_similar(each.path, records[:_SAMPLE])
            if similar is not None:
                self._count(step, f"{_SIMILAR}{each.path}{_ARROW}{similar}", 1)
        inputs[port] = left
        if not any(inputs):
            del self.wanted[step]


class _Field:
    __slots__ = ("_first", "_names", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self._names = paths.segments(path)
        self._first = self._names[0]

    def is_in(self, record: Any) -> bool:
        """Whether a record has it, if only as null."""
        if type(record) is dict and len(self._names) == 1:
            return self._first in record
        value = record
        for name in self._names:
            if isinstance(value, Mapping):
                if name not in value:
                    return False
                value = value[name]
            elif isinstance(value, list | tuple) and name.isdecimal():
                if int(name) >= len(value):
                    return False
                value = value[int(name)]
            elif value is None or isinstance(value, str | int | float) or not hasattr(value, name):
                return False
            else:
                value = getattr(value, name)
        return True


def _most_similar(path: str, records: Sequence[Any]) -> str | None:
    """The field of some records whose name is most like a path's."""
    names = paths.segments(path)
    known: dict[str, None] = {}
    for record in records:
        value: Any = record
        for depth in range(len(names)):
            try:
                row = as_row(value)
            except TypeError:
                break
            known |= {paths.join([*names[:depth], str(name)]): None for name in row if name != names[depth]}
            value = row.get(names[depth])
    same = [each for each in known if each.lower() == path.lower()]
    near = same or difflib.get_close_matches(path, known, n=1)
    return near[0] if near else None


def find_missing(plan: Plan, counts: Counts) -> list[MissingField]:
    """The fields that steps have looked for and that no record had, in the order of the plan."""
    found = []
    for node in plan.nodes:
        own = counts.get(node.name, {})
        similar = {
            path: name
            for what in own
            if what.startswith(_SIMILAR)
            for path, _, name in [what.removeprefix(_SIMILAR).partition(_ARROW)]
        }
        for what, records in own.items():
            path = what.removeprefix(_ABSENT)
            if path != what and f"{_PRESENT}{path}" not in own:
                found.append(MissingField(str(node.where), node.name, path, records, similar.get(path)))
    return found
