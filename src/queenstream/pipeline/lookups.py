"""Look-ups: what a table has under a record's key at the moment when the record passes.

This part is pure: which key a record asks for, and what becomes of it with what was found. How tables are
asked stands in ``connectors.lookups``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, cast

from queenstream.core import durations, paths
from queenstream.core.records import as_row, hashable
from queenstream.core.schemas import Field, Schema, types
from queenstream.errors import ConfigError
from queenstream.pipeline import arguments
from queenstream.pipeline.endpoints import Cassandra, Memory, Postgres, Queue, Source
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import Node, Place
from queenstream.pipeline.policies import Duration, ErrorPolicy

Fields: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""Which fields to take: names, or new names with those that they have there."""

Found: TypeAlias = dict[str, Any] | Exception | None
"""What is there for a key; None: nothing; an error: nobody knows."""

TABLES = (Postgres, Cassandra, Queue, Memory)
PARTITION = "partition"


def lookup(
    where: Place,
    inputs: tuple[Node, ...],
    name: str,
    policy: ErrorPolicy | None,
    *,
    table: Source[Any],
    on: arguments.On,
    fields: Fields | None,
    into: str | None,
    how: nodes.LookupHow,
    cache: int,
    max_age: Duration,
    timeout: Duration,
) -> nodes.Lookup:
    """The node of ``.lookup(…)``: what it is told, checked and put together."""
    if not isinstance(table, TABLES):
        raise ConfigError(
            f"{table!r} cannot be looked up; write Postgres('table'), Cassandra, Queue or Memory"
        )
    if isinstance(cache, bool) or cache < 0:
        raise ConfigError(f"cache is {cache!r}; write how many keys are remembered, 0 for none")
    limit = durations.parse(timeout)
    if limit <= timedelta(0):
        raise ConfigError("a look-up needs some time; write timeout='2s'")
    return nodes.Lookup(
        where=where,
        inputs=inputs,
        table=table,
        on=_on(table, on),
        fields=None if fields is None else _fields(fields),
        into=into,
        how=how,
        cache=cache,
        max_age=durations.parse(max_age),
        timeout=limit,
        name=name,
        on_error=policy,
    )


def _on(table: Source[Any], on: arguments.On) -> tuple[tuple[str, str], ...]:
    pairs = arguments.pairs(on)
    if not pairs:
        raise ConfigError("lookup() compares nothing; write on='user_id', or on=('user_id', 'id')")
    if isinstance(table, Queue):
        if len(pairs) > 1 or pairs[0][1] not in (pairs[0][0], PARTITION):
            raise ConfigError(
                f"{table.title} is looked up by the names of its partitions; write on='user_id', the "
                "record's field that has the name"
            )
        return ((pairs[0][0], PARTITION),)
    return pairs


def _fields(fields: Fields) -> tuple[tuple[str, str], ...]:
    if isinstance(fields, str):
        return ((fields, fields),)
    if isinstance(fields, Mapping):
        return tuple(fields.items())
    return tuple((each, each) for each in fields)


class Joining:
    """Makes rows of records and what was found for them.

    >>> made = Joining((("user_id", "id"),), (("segment", "segment"),), None, "left")
    >>> made.key({"user_id": 7}), made.row({"user_id": 7}, {"id": 7, "segment": "premium"})
    ((7,), {'user_id': 7, 'segment': 'premium'})
    """

    def __init__(
        self,
        on: tuple[tuple[str, str], ...],
        fields: tuple[tuple[str, str], ...] | None,
        into: str | None,
        how: nodes.LookupHow,
    ) -> None:
        self._readers = [paths.getter(ours) for ours, _ in on]
        self._fields = fields
        self._into = into
        self._inner = how == "inner"

    @classmethod
    def of(cls, node: nodes.Lookup) -> Joining:
        """For a step."""
        return cls(node.on, node.fields, node.into, node.how)

    def key(self, record: Any) -> tuple[Any, ...] | None:
        """What a record asks for; None: it has no key, and null equals nothing."""
        values = [read(record) for read in self._readers]
        return None if None in values else cast("tuple[Any, ...]", hashable(tuple(values)))

    def row(self, record: Any, found: Mapping[str, Any] | None) -> dict[str, Any] | None:
        """The record with what was found; None: it is left out."""
        if found is None and self._inner:
            return None
        row = as_row(record)
        if self._into is not None:
            return {**row, self._into: None if found is None else self._chosen(found)}
        if self._fields is not None:
            return {**row, **self._chosen(found or {})}
        return {**(found or {}), **row}  # a field that both have is the record's

    def _chosen(self, found: Mapping[str, Any]) -> dict[str, Any]:
        if self._fields is None:
            return dict(found)
        return {name: found.get(theirs) for name, theirs in self._fields}


def failures(found: Sequence[Found]) -> list[tuple[int, Exception]]:
    """Which keys could not be looked up, and why."""
    return [(index, each) for index, each in enumerate(found) if isinstance(each, Exception)]


def answered(found: Found) -> dict[str, Any] | None:
    """What is there for a key; raises, if nobody knows."""
    if isinstance(found, Exception):
        raise found
    return found


def output_of(node: nodes.Lookup, record: Schema | None) -> Schema | None:
    """The fields of a look-up's output, if they are known."""
    if record is None:
        return None
    added = _added(node)
    if added is None:
        return None
    fields = {field.name: field for field in record.fields}
    for field in added:
        if node.fields is not None or node.into is not None or field.name not in fields:
            fields[field.name] = field
    return Schema(tuple(fields.values()))


def _added(node: nodes.Lookup) -> list[Field] | None:
    theirs = node.table.columns
    if node.fields is None:
        taken = None if theirs is None else [Field(each.name, each.type) for each in theirs.fields]
    else:
        known = {} if theirs is None else {each.name: each.type for each in theirs.fields}
        taken = [Field(name, known.get(of, types.VARIANT)) for name, of in node.fields]
    if node.into is not None:
        kind = types.VARIANT if taken is None else types.Struct(tuple(taken))
        return [Field(node.into, kind)]
    return taken
