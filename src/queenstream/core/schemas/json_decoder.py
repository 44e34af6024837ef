"""Decodes many JSON texts into records of a schema at once.

msgspec reads the texts in one call, checks plain values (text, numbers, booleans) on the way, and skips
fields that the schema does not have. What it refuses may still fit by the rules of ``coercing``, which are
wider (``"42"`` is a whole number): then the texts are decoded one by one.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec

from queenstream.core.schemas import Schema, types
from queenstream.core.schemas.coercion import Misfit, coercer
from queenstream.core.schemas.types import Field

_PLAIN: dict[types.Type, Any] = {
    types.STRING: str,
    types.BOOLEAN: bool,
    types.FLOAT: float,
    types.DOUBLE: float,
    **{
        kind: Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
        for kind, bits in types.INTEGERS.items()
    },
}
Finish = tuple[str, Callable[[Any], Any]]


class JsonDecoder:
    """Decodes JSON texts; without a schema, into whatever JSON they are.

    >>> decoder = JsonDecoder(Schema.of("user string, n bigint"))
    >>> decoder.decode_all([b'{"n": 1, "user": "ann", "page": "/"}', b'{"user": null}'])
    [{'user': 'ann', 'n': 1}, {'user': None, 'n': None}]
    >>> decoder.decode_all([b'{"n": "one"}'])
    """

    def __init__(self, schema: Schema | None) -> None:
        self._schema = schema
        self._finish: list[Finish] = []
        self._decoder: msgspec.json.Decoder[Any] | None = None
        if schema is None:
            self._decoder = msgspec.json.Decoder(list[Any])
        elif all(_is_attribute(name) for name in schema.names):
            self._finish = [(field.name, _finish(field)) for field in schema.fields if not _is_plain(field)]
            self._decoder = msgspec.json.Decoder(list[_struct(schema)])  # type: ignore[misc]

    def __reduce__(self) -> tuple[type[JsonDecoder], tuple[Schema | None]]:
        return JsonDecoder, (self._schema,)  # msgspec's own decoder does not travel to Spark's tasks

    def decode_all(self, texts: Sequence[bytes]) -> list[Any] | None:
        """The records; None if one of the texts has to be decoded by itself."""
        if self._decoder is None:
            return None
        try:
            found = self._decoder.decode(b"[%b]" % b",".join(texts))
            if self._schema is None:
                return found if len(found) == len(texts) else None
            records = list(map(msgspec.structs.asdict, found))
            for name, finish in self._finish:
                for record in records:
                    record[name] = finish(record[name])
        except (msgspec.MsgspecError, Misfit, ExceptionGroup):
            return None
        return records if len(records) == len(texts) else None

    def decode(self, text: bytes) -> Any:
        """The record of one text; ``RecordError`` if it does not fit the schema."""
        payload = msgspec.json.decode(text)
        return payload if self._schema is None else self._schema.coerce(payload)


def _is_attribute(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _is_plain(field: Field) -> bool:
    """Whether msgspec alone makes the value what ``coercing`` makes it."""
    return field.type in _PLAIN and field.default is None


def _struct(schema: Schema) -> type[msgspec.Struct]:
    fields: list[Any] = []
    for field in schema.fields:
        kind = _PLAIN[field.type] if _is_plain(field) else Any
        fields.append((field.name, kind) if field.required else (field.name, kind | None, None))
    return msgspec.defstruct("Record", fields, kw_only=True, gc=False)


def _finish(field: Field) -> Callable[[Any], Any]:
    convert = coercer(types.Struct((field,)))
    return lambda value: convert({field.name: value})[field.name]
