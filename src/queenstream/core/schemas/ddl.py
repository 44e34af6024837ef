"""Schemas as text: ``user_id string not null, tags map<string, string>, at timestamp``.

The names are those of Spark; PostgreSQL's and Cassandra's are understood too (``text``, ``list<int>``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from queenstream.core.schemas import types
from queenstream.core.schemas.types import Decimal, Field, List, Map, Struct, Type
from queenstream.errors import ConfigError

Part = TypeVar("Part")

_LONGEST = 100_000  # characters
_DEEPEST = 32  # types within types

_TOKEN = re.compile(
    r"\s*(?:(?P<word>[^\W\d]\w*)|`(?P<quoted>(?:[^`]|``)+)`|(?P<number>\d{1,6})|(?P<mark>[<>(),:]))"
)

NAMES: dict[str, Type] = {
    **dict.fromkeys(("string", "text", "varchar", "char", "ascii", "uuid", "timeuuid", "inet"), types.STRING),
    **dict.fromkeys(("boolean", "bool"), types.BOOLEAN),
    **dict.fromkeys(("tinyint", "byte"), types.TINYINT),
    **dict.fromkeys(("smallint", "short", "int2"), types.SMALLINT),
    **dict.fromkeys(("int", "integer", "int4"), types.INT),
    **dict.fromkeys(("bigint", "long", "int8", "counter"), types.BIGINT),
    **dict.fromkeys(("float", "real", "float4"), types.FLOAT),
    **dict.fromkeys(("double", "float8"), types.DOUBLE),
    **dict.fromkeys(("timestamp", "timestamptz", "datetime"), types.TIMESTAMP),
    "date": types.DATE,
    **dict.fromkeys(("binary", "bytes", "bytea", "blob"), types.BINARY),
    **dict.fromkeys(("variant", "json", "jsonb", "any"), types.VARIANT),
    **{name: Decimal() for name in ("decimal", "numeric")},
    "varint": Decimal(38, 0),
}
_KNOWN = (
    "string, boolean, int, bigint, double, decimal(p,s), timestamp, date, binary, variant, "
    "array<…>, map<…,…>, struct<…>"
)


class SchemaError(ConfigError):
    """A schema that cannot be read; the message shows where and what to write."""


def parse_fields(text: str) -> tuple[Field, ...]:
    """The fields of a DDL text.

    >>> [str(field.type) for field in parse_fields("user_id string, tags map<text, text>")]
    ['string', 'map<string,string>']
    """
    reader = _Reader(text)
    fields = reader.fields(closing=None)
    reader.end()
    return fields


def parse_type(text: str) -> Type:
    """One type.

    >>> print(parse_type("list<double>"))
    array<double>
    """
    reader = _Reader(text)
    found = reader.type()
    reader.end()
    return found


class _Reader:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise SchemaError(
                f"a schema of {len(text)} characters is over the limit of {_LONGEST}; shorten it"
            )
        self._text = text
        self._at = 0
        self._depth = 0

    def fields(self, closing: str | None) -> tuple[Field, ...]:
        """Fields up to the end of the text, or to ``closing``, which stays."""
        found = [self._field()]
        while self._take(","):
            found.append(self._field())
        if closing is not None and self._peek() != closing:
            raise self._error(f"expected ',' or {closing!r}")
        _refuse_twice(found)
        return tuple(found)

    def type(self) -> Type:
        """One type, with its parameters."""
        word = self._name("a type").lower()
        self._depth += 1
        if self._depth > _DEEPEST:
            raise self._error(f"types may stand {_DEEPEST} deep; a variant holds anything")
        found = self._compound(word) or self._simple(word)
        self._depth -= 1
        return found

    def end(self) -> None:
        """Nothing may follow."""
        if self._text[self._at :].strip():
            raise self._error("expected ',' or the end")

    def _field(self) -> Field:
        name = self._name("a field's name")
        self._take(":")
        kind = self.type()
        if self._take_word("not"):
            if not self._take_word("null"):
                raise self._error("expected 'null' after 'not'")
            return Field(name, kind, nullable=False)
        self._take_word("null")
        return Field(name, kind)

    def _compound(self, word: str) -> Type | None:
        if word in ("array", "list", "set"):
            return self._within("<", ">", lambda: List(self.type()))
        if word == "map":
            return self._within("<", ">", self._map)
        if word == "struct":
            return self._within("<", ">", lambda: Struct(self.fields(">")))
        if word == "frozen":  # Cassandra's mark on a type within a type
            return self._within("<", ">", self.type)
        if word in ("decimal", "numeric") and self._peek() == "(":
            return self._within("(", ")", self._decimal)
        return None

    def _simple(self, word: str) -> Type:
        if word not in NAMES:
            raise self._error(f"{word!r} is no type; write one of {_KNOWN}", back=len(word))
        if word == "double":
            self._take_word("precision")
        if word in ("varchar", "char") and self._peek() == "(":
            self._within("(", ")", self._number)
        return NAMES[word]

    def _map(self) -> Map:
        key = self.type()
        if key not in (types.STRING, types.DATE, types.TIMESTAMP) and not types.is_number(key):
            raise self._error("a map's keys are strings, numbers or times")
        self._expect(",")
        return Map(key, self.type())

    def _decimal(self) -> Decimal:
        precision = self._number()
        scale = self._number() if self._take(",") else 0
        try:
            return Decimal(precision, scale)
        except ValueError as error:
            raise self._error(str(error)) from None

    def _within(self, opening: str, closing: str, read: Callable[[], Part]) -> Part:
        self._expect(opening)
        found = read()
        self._expect(closing)
        return found

    def _name(self, what: str) -> str:
        match = _TOKEN.match(self._text, self._at)
        if match is None or not (match["word"] or match["quoted"]):
            raise self._error(f"expected {what}")
        self._at = match.end()
        return match["word"] or match["quoted"].replace("``", "`")

    def _number(self) -> int:
        match = _TOKEN.match(self._text, self._at)
        if match is None or not match["number"]:
            raise self._error("expected a number")
        self._at = match.end()
        return int(match["number"])

    def _peek(self) -> str | None:
        match = _TOKEN.match(self._text, self._at)
        return match["mark"] if match else None

    def _take(self, mark: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or match["mark"] != mark:
            return False
        self._at = match.end()
        return True

    def _take_word(self, word: str) -> bool:
        match = _TOKEN.match(self._text, self._at)
        if match is None or (match["word"] or "").lower() != word:
            return False
        self._at = match.end()
        return True

    def _expect(self, mark: str) -> None:
        if not self._take(mark):
            raise self._error(f"expected {mark!r}")

    def _error(self, what: str, back: int = 0) -> SchemaError:
        rest = self._text[self._at :]
        place = self._at + (len(rest) - len(rest.lstrip()) if not back else -back)
        start = max(0, place - 30)
        excerpt = " ".join(self._text[start : place + 30].split("\n"))
        return SchemaError(f"{what}\n  {excerpt}\n  {' ' * (place - start)}^")


def _refuse_twice(fields: list[Field]) -> None:
    seen: set[str] = set()
    for field in fields:
        if field.name in seen:
            raise SchemaError(f"the field {field.name!r} stands twice; name each field once")
        seen.add(field.name)
