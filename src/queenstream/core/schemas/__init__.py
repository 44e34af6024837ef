"""Schemas: which fields a record has and of which types, from whatever a user has at hand.

>>> from queenstream.core.schemas import Schema
>>> orders = Schema.of("user_id string not null, amount double, tags map<string, string>, at timestamp")
>>> orders.coerce({"user_id": "u1", "amount": "9.50", "at": "2026-01-31T12:00:00Z"})["amount"]
9.5

A dataclass, a msgspec Struct, a TypedDict, a pydantic model, a DDL text or a dictionary of names and types
all do. Records stay dictionaries: a schema checks and converts them, by the rules in ``coercing``; it makes
no objects.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

from queenstream.core import paths
from queenstream.core.schemas import classes, coercion, ddl, types
from queenstream.core.schemas.ddl import SchemaError
from queenstream.core.schemas.types import Field, Struct, Type
from queenstream.errors import PayloadInvalid

__all__ = ["Definition", "Field", "RecordError", "Schema", "SchemaError", "Type"]

Definition: TypeAlias = "Schema | str | type | Mapping[str, str | type]"
"""What a schema can be made of."""

Extra: TypeAlias = Literal["drop", "keep", "refuse"]


class RecordError(PayloadInvalid):
    """A record that does not fit its schema; ``problems`` has one line for each field that is wrong."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems

    def __reduce__(self) -> tuple[type[RecordError], tuple[tuple[str, ...]]]:
        return RecordError, (self.problems,)


@dataclass(frozen=True)
class Schema:
    """The fields of a record, in order.

    >>> Schema.of({"timestamp": "timestamp", "value": "double", "tags": "map<text, text>"}).to_ddl()
    'timestamp timestamp, value double, tags map<string,string>'
    """

    fields: tuple[Field, ...]

    @classmethod
    def of(cls, definition: Definition) -> Schema:
        """From a DDL text, a dictionary of names and types, or a class.

        >>> from dataclasses import dataclass
        >>> @dataclass
        ... class Click:
        ...     user: str
        ...     page: str | None = None
        >>> Schema.of(Click).to_ddl()
        'user string not null, page string'
        """
        if isinstance(definition, Schema):
            return definition
        if isinstance(definition, str):
            return cls(ddl.parse_fields(definition))
        if isinstance(definition, Mapping):
            return cls(tuple(_field(name, kind) for name, kind in definition.items()))
        if classes.is_record(definition):
            return cls(classes.fields_of(definition))
        raise SchemaError(
            f"{definition!r} is no schema; give a dataclass, a msgspec Struct, a pydantic model, "
            "a text such as 'user_id string, amount double', or a dictionary of names and types"
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The fields' names."""
        return tuple(field.name for field in self.fields)

    def find(self, path: str) -> Type | None:
        """The type at a path; None: there is nothing there.

        >>> print(Schema.of("user struct<id: int, tags: map<string, double>>").find("user.tags.vip"))
        double
        """
        kind: Type | None = Struct(self.fields)
        for step in paths.segments(path):
            if kind is None:
                return None
            kind = types.step_into(kind, step)
        return kind

    def to_ddl(self) -> str:
        """As text that Spark reads, and ``Schema.of`` too (defaults are not in it)."""
        return ", ".join(field.written() for field in self.fields)

    def check(self, record: object) -> None:
        """Raise ``RecordError``, with all that is wrong, if a record cannot be made to fit.

        >>> Schema.of("amount double").check({"amount": "much"})
        Traceback (most recent call last):
        queenstream.core.schemas.RecordError: amount must be a number, not 'much'
        """
        self.coerce(record, extra="keep")

    def coerce(self, record: object, *, extra: Extra = "drop") -> dict[str, Any]:
        """The record with every field of the schema, each of its type. The record given is left as it is.

        ``extra`` says what becomes of fields that the schema does not have; pipelines drop them.
        """
        try:
            row: dict[str, Any] = self._convert(record)
        except coercion.Misfit as misfit:
            raise RecordError((str(misfit).strip(),)) from None
        except ExceptionGroup as group:
            raise RecordError(tuple(map(str, coercion.misfits_of(group)))) from None
        if extra != "drop" and isinstance(record, Mapping):
            others = {name: value for name, value in record.items() if name not in row}
            if others and extra == "refuse":
                known = ", ".join(self.names)
                raise RecordError(tuple(f"{name} is not in the schema, which has {known}" for name in others))
            row.update(others)
        return row

    @cached_property
    def _convert(self) -> coercion.Coercer:
        return coercion.struct(self.fields)

    def __reduce__(self) -> tuple[type[Schema], tuple[tuple[Field, ...]]]:
        # The compiled converter is made of closures, which cannot travel to another process.
        return Schema, (self.fields,)


def _field(name: str, kind: str | type) -> Field:
    found = ddl.parse_type(kind) if isinstance(kind, str) else classes.type_of(name, kind)
    return Field(name, found)
