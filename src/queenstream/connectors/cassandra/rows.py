"""Records as the values of an ``insert``: each field in its column, as the table types it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cassandra.query import UNSET_VALUE

from queenstream.connectors.cassandra.types import Encoder
from queenstream.core.records import as_row
from queenstream.core.schemas import RecordError
from queenstream.core.schemas.coercion import Misfit

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Column:
    """A column that is written.

    ``needed``: a record must have it, as it is in the key or the schema says so; ``default`` is the schema's.
    """

    name: str
    encode: Encoder
    needed: bool
    default: object = None


class Rows:
    """Makes values of records. ``others``: fields that are no columns, and are passed over.

    A field that is missing leaves what the column has; one that is None empties it. Without ``others`` being
    told, any other field is an error: it would be lost.
    """

    def __init__(self, columns: Sequence[Column], others: frozenset[str] | None) -> None:
        self._columns = [(each.name, each.encode, each) for each in columns]
        self._names = {each.name for each in columns}
        self._others = others

    def values(self, record: Any) -> list[Any]:
        """The values of all columns, in their order; raises ``RecordError`` with all that does not fit.

        >>> rows = Rows([Column("name", str.encode, True)], frozenset())
        >>> rows.values({"name": "cpu"})
        [b'cpu']
        """
        try:
            row = record if type(record) is dict else as_row(record)
        except TypeError as error:
            raise RecordError((str(error),)) from None
        get = row.get
        values: list[Any] = []
        add = values.append
        found = 0
        try:
            for name, encode, column in self._columns:
                value = get(name, _MISSING)
                if value is _MISSING or value is None:
                    found += value is None
                    add(_empty(column, value))
                else:
                    found += 1
                    add(encode(value))
        except Misfit:
            raise RecordError(tuple(self._problems(row))) from None
        if self._others is not None and found != len(row):
            self._check_others(row)
        return values

    def _problems(self, row: dict[str, Any]) -> list[str]:
        """All that does not fit, not only the first of it."""
        problems = []
        for name, encode, column in self._columns:
            value = row.get(name, _MISSING)
            try:
                if value is _MISSING or value is None:
                    _empty(column, value)
                else:
                    encode(value)
            except Misfit as misfit:
                problems.append(str(misfit.under(name)))
        return problems

    def _check_others(self, row: dict[str, Any]) -> None:
        assert self._others is not None
        unknown = [name for name in row if name not in self._names and name not in self._others]
        if unknown:
            known = ", ".join(name for name, _, _ in self._columns)
            raise RecordError(
                tuple(f"{name} is not a column of the table, which has {known}" for name in unknown)
            )


def _empty(column: Column, value: object) -> Any:
    """What a column gets of a record that has nothing for it."""
    if column.default is not None:
        return column.encode(copy.deepcopy(column.default))
    if column.needed:
        raise Misfit("there, as a row cannot be without it", None)
    return None if value is None else UNSET_VALUE
