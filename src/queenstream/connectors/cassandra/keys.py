"""The primary key of a row: rows of one key are written in order, since the last one stays."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from queenstream.connectors.cassandra.types import Encoder, scalar_encoder
from queenstream.core.records import as_row


@dataclass(frozen=True)
class KeyColumn:
    """A column of the primary key: its name, its type in CQL, and the schema's default."""

    name: str
    type: str
    default: object = None


@dataclass(frozen=True)
class PrimaryKey:
    """The columns of the key whose types are scalar: equal keys have equal values there.

    >>> key_of = PrimaryKey((KeyColumn("user", "text"), KeyColumn("n", "int"))).reader()
    >>> key_of({"user": "ann", "n": "5"}) == key_of({"user": "ann", "n": 5.0, "page": "/"})
    True
    """

    columns: tuple[KeyColumn, ...]

    def reader(self) -> Callable[[Any], bytes | None]:
        """What gives the values of a row as the bytes that Cassandra gets."""
        columns = [(each.name, _encoder(each.type), each.default) for each in self.columns]

        def key_of(record: Any) -> bytes | None:
            row = record if type(record) is dict else as_row(record)
            parts = []
            for name, encode, default in columns:
                value = row.get(name)
                parts.append(encode(default if value is None else value))
            return b"\0".join(parts)

        return key_of


def _encoder(name: str) -> Encoder:
    found = scalar_encoder(name)
    assert found is not None, "only scalar columns are in the key"
    return found
