"""Columns of PostgreSQL on their way through ADBC: what is selected, and how it becomes our types.

A value must become what asyncpg makes of it, with which the local engine reads. So what ADBC has no exact
type for is selected as text, and read here. Tasks load this module, and have neither asyncpg nor connectors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa

from queenstream.core.schemas import Field, types
from queenstream.core.schemas.types import Decimal as DecimalType
from queenstream.core.schemas.types import Type
from queenstream.engines.spark.types import arrow_type

Decode = Callable[[Any], Any]

_WITHOUT_ZONE, _WITH_ZONE = "timestamp without time zone", "timestamp with time zone"
_INTEGERS = {"smallint": 16, "integer": 32, "bigint": 64}
_FLOATS = ("real", "double precision")
_AS_TEXT = ("numeric", "json", "jsonb", "name", "citext", "uuid")
_TEXTS = ("text", "character varying", "character", "name", "citext", "uuid")
KNOWN = frozenset(
    (
        *_TEXTS,
        *_INTEGERS,
        *_FLOATS,
        "boolean",
        "numeric",
        _WITH_ZONE,
        _WITHOUT_ZONE,
        "date",
        "bytea",
        "json",
        "jsonb",
    )
)
"""The types that Python has a like of: as for ``connectors/postgres/catalog.py``."""

# Python's first and last moment stand for the infinite ones, as asyncpg has it.
_FIRST_TIME, _LAST_TIME = "0001-01-01 00:00:00Z", "9999-12-31 23:59:59.999999Z"
_FIRST_DAY, _LAST_DAY = "0001-01-01", "9999-12-31"


@dataclass(frozen=True, slots=True)
class TableColumn:
    """A column to read. ``kind`` is PostgreSQL's type, without a length, and a domain's base.

    ``required``: it is never null.
    """

    name: str
    kind: str
    required: bool

    def selected(self, name: str) -> str:
        """What to select, where SQL calls the column so.

        >>> TableColumn("price", "numeric", False).selected("r.price")
        'r.price::text'
        """
        if self.kind == _WITH_ZONE:
            return _finite(name, "timestamptz", _FIRST_TIME, _LAST_TIME)
        if self.kind == _WITHOUT_ZONE:  # as everywhere with us: it is UTC
            found = _finite(name, "timestamp", _FIRST_TIME, _LAST_TIME)
            return f"({found}) at time zone 'UTC'"
        if self.kind == "date":
            return _finite(name, "date", _FIRST_DAY, _LAST_DAY)
        if self._is_list:  # blanks at the end of a character are lost when it becomes a text
            return f"to_json({name}{'' if self._item == 'character' else '::text[]'})::text"
        return name if self.kind in KNOWN and self.kind not in _AS_TEXT else f"{name}::text"

    @property
    def _item(self) -> str:
        return self.kind.removesuffix("[]")

    @property
    def _is_list(self) -> bool:
        item = self._item
        return item != self.kind and item in KNOWN and item not in ("uuid", _WITHOUT_ZONE)

    @property
    def decode(self) -> Decode | None:
        """What makes a record's value of what was selected; None: it is one already."""
        if self._is_list:
            return _list_of(_ITEMS.get(self._item))
        return _VALUES.get(self.kind)

    def always_fits(self, field: Field) -> bool:
        """Whether each value that the column may have fits a field of a schema."""
        if field.required and not self.required:
            return False
        kind = field.type
        if kind in types.INTEGERS:
            return _INTEGERS.get(self.kind, 65) <= types.INTEGERS[kind]
        if kind in types.FRACTIONS:
            return self.kind in _INTEGERS or self.kind in _FLOATS
        return self._as(kind) is not None and not isinstance(kind, DecimalType)

    def typed(self, values: pa.Array, field: Field) -> pa.Array | None:
        """Values as a column of a field's type; None: only Python can make them fit, or say which do not."""
        if values.null_count and (field.required or field.default is not None):
            return None
        wanted = self._as(field.type)
        if wanted is None:
            return None
        try:
            return values if values.type == wanted else values.cast(wanted)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            return None

    def _as(self, kind: Type) -> pa.DataType | None:
        """The type to cast to, if Arrow's cast of such values is ours, or fails."""
        kinds = _CAST.get(kind)
        if kind == types.STRING:
            same = self.kind in _TEXTS or (self.kind not in KNOWN and not self._is_list)
        elif isinstance(kind, DecimalType):
            same = self.kind == "numeric"
        else:
            same = kinds is not None and self.kind in kinds
        return arrow_type(kind) if same else None


@dataclass(frozen=True)
class Task:
    """What one task reads: a statement without parameters, in a snapshot unless each sees what is there.

    ``first``: the place of the first row.
    """

    query: str
    snapshot: str | None
    first: int
    columns: tuple[TableColumn, ...]


def _finite(name: str, kind: str, first: str, last: str) -> str:
    return (
        f"case {name} when 'infinity' then {kind} '{last}' when '-infinity' then {kind} '{first}' "
        f"else {name} end"
    )


_CAST: dict[Type, tuple[str, ...]] = {
    **dict.fromkeys(types.INTEGERS, (*_INTEGERS,)),
    **dict.fromkeys(types.FRACTIONS, (*_INTEGERS, *_FLOATS, "numeric")),
    types.BOOLEAN: ("boolean",),
    types.TIMESTAMP: (_WITH_ZONE, _WITHOUT_ZONE),
    types.DATE: ("date",),
    types.BINARY: ("bytea",),
}


def _utc(value: datetime) -> datetime:
    return value.replace(tzinfo=UTC)  # Arrow has another object for the same zone


_VALUES: dict[str, Decode] = {
    "numeric": Decimal,
    **dict.fromkeys((_WITH_ZONE, _WITHOUT_ZONE), _utc),
    **dict.fromkeys(("json", "jsonb"), msgspec.json.decode),
}


# Lists come as JSON, with their items as text


def _time(text: str) -> datetime:
    if text.endswith("infinity"):
        text = _FIRST_TIME if text.startswith("-") else _LAST_TIME
    return datetime.fromisoformat(text)


def _day(text: str) -> date:
    if text.endswith("infinity"):
        return date.min if text.startswith("-") else date.max
    return date.fromisoformat(text)


_ITEMS: dict[str, Decode] = {
    **dict.fromkeys(_INTEGERS, int),
    "real": lambda text: float(np.float32(text)),
    "double precision": float,
    "numeric": Decimal,
    "boolean": lambda text: text.startswith("t"),
    _WITH_ZONE: _time,
    "date": _day,
    "bytea": lambda text: bytes.fromhex(text[2:]),
    **dict.fromkeys(("json", "jsonb"), msgspec.json.decode),
}


def _list_of(decode: Decode | None) -> Decode:
    def items(found: Any) -> Any:
        if isinstance(found, list):  # one in another is a further dimension
            return [items(each) for each in found]
        return found if found is None or decode is None else decode(found)

    return lambda text: items(msgspec.json.decode(text))
