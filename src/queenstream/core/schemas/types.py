"""The types of a schema: what Spark, PostgreSQL and Cassandra have in common.

A type writes itself as Spark's DDL does, and ``ddl.py`` reads that back.

>>> print(Map(STRING, List(DOUBLE)))
map<string,array<double>>
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TypeAlias

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Scalar:
    """A type without parts, by its one name; ``ddl.py`` knows the other names that people use."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Decimal:
    """An exact number with ``precision`` digits, ``scale`` of them after the point."""

    precision: int = 38
    scale: int = 18

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= 38 and 0 <= self.scale <= self.precision):
            got = f"decimal({self.precision},{self.scale})"
            raise ValueError(f"{got} cannot be; write up to 38 digits, and a scale of at most that many")

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class List:
    """Values of one type, in order."""

    of: Type

    def __str__(self) -> str:
        return f"array<{self.of}>"


@dataclass(frozen=True, slots=True)
class Map:
    """Values by key."""

    key: Type
    value: Type

    def __str__(self) -> str:
        return f"map<{self.key},{self.value}>"


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields, in order."""

    fields: tuple[Field, ...]

    def __str__(self) -> str:
        return f"struct<{','.join(field.written(':') for field in self.fields)}>"


@dataclass(frozen=True, slots=True)
class Field:
    """One field. A record without it gets the default; if that is None and it is not nullable, an error."""

    name: str
    type: Type
    nullable: bool = True
    default: object = None

    @property
    def required(self) -> bool:
        """Whether a record must have it."""
        return not self.nullable and self.default is None

    def written(self, between: str = " ") -> str:
        """As DDL: in a table the name and type stand apart, in a struct with a colon between."""
        name = self.name if _PLAIN.fullmatch(self.name) else f"`{self.name.replace('`', '``')}`"
        return f"{name}{between}{self.type}{'' if self.nullable else ' not null'}"


Type: TypeAlias = Scalar | Decimal | List | Map | Struct

STRING = Scalar("string")
BOOLEAN = Scalar("boolean")
TINYINT = Scalar("tinyint")
SMALLINT = Scalar("smallint")
INT = Scalar("int")
BIGINT = Scalar("bigint")
FLOAT = Scalar("float")
DOUBLE = Scalar("double")
TIMESTAMP = Scalar("timestamp")
DATE = Scalar("date")
BINARY = Scalar("binary")
VARIANT = Scalar("variant")  # any JSON value: what is not known

INTEGERS = {TINYINT: 8, SMALLINT: 16, INT: 32, BIGINT: 64}  # with their bits
FRACTIONS = frozenset({FLOAT, DOUBLE})


def is_number(kind: Type) -> bool:
    """Whether one can add and divide it."""
    return kind in INTEGERS or kind in FRACTIONS or isinstance(kind, Decimal)


def step_into(kind: Type, step: str) -> Type | None:
    """The type one step of a path leads to; None: there is nothing of that name.

    >>> print(step_into(Map(STRING, DOUBLE), "anything"))
    double
    """
    if kind == VARIANT:
        return VARIANT
    if isinstance(kind, Struct):
        return next((field.type for field in kind.fields if field.name == step), None)
    if isinstance(kind, Map):
        return kind.value
    if isinstance(kind, List) and step.isdigit():
        return kind.of
    return None
