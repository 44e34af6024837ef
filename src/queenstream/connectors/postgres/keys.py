"""Ranges of a table's rows by the columns of a key, as conditions of SQL."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from queenstream.connectors.postgres.catalog import Column, Table, quoted


@dataclass(frozen=True, slots=True)
class KeyOrder:
    """The order of a table's rows by columns that tell every row from every other.

    A position in it is what these columns have in a row, as text. In SQL the table is called ``r``.
    ``nullable``: the first column may be null; such rows are left out.
    """

    table: Table
    columns: tuple[Column, ...]
    nullable: bool = False

    @property
    def ordered(self) -> str:
        """For ``order by``; not what is selected under the same name."""
        return self._list("r.{}")

    @property
    def reversed(self) -> str:
        """The same, from the last row back."""
        return self._list("r.{} desc")

    @property
    def marks(self) -> str:
        """What to select for a row's position."""
        return self._list("r.{}::text")

    @property
    def leading(self) -> str:
        """The first column."""
        return f"r.{quoted(self.columns[0].name)}"

    def beyond(self, position: Sequence[str] | None, first: int = 1) -> str:
        """The rows after a position, whose values are parameters from ``first`` on; None: all rows."""
        if position is None:
            return f"{self.leading} is not null" if self.nullable else "true"
        return self.after([cast(column, first + at) for at, column in enumerate(self.columns)])

    def after(self, values: Sequence[str]) -> str:
        """The rows after a position whose values these expressions give."""
        if len(values) == 1:
            return f"{self.leading} > {values[0]}"
        # The first condition says what the second does, in a way that an index on the first column serves.
        return f"{self.leading} >= {values[0]} and ({self._list('r.{}')}) > ({', '.join(values)})"

    def up_to(self, values: Sequence[str]) -> str:
        """The rows up to a position, that row included."""
        if len(values) == 1:
            return f"{self.leading} <= {values[0]}"
        return f"{self.leading} <= {values[0]} and ({self._list('r.{}')}) <= ({', '.join(values)})"

    def _list(self, form: str) -> str:
        return ", ".join(form.format(quoted(column.name)) for column in self.columns)


def cast(column: Column, number: int) -> str:
    """A parameter that travels as text: positions are JSON, and every type can be text."""
    return f"${number}::text::{column.type}"


def literal(column: Column, value: str) -> str:
    """The same as a constant, for statements that take no parameters.

    >>> literal(Column("n", "bigint", "bigint", -1, True, False), "it's")
    "'it''s'::text::bigint"
    """
    text = value.replace("'", "''")
    return f"'{text}'::text::{column.type}"
