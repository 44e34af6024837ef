"""What commands print: tables for people on a terminal, one JSON object a line in a pipe, YAML if asked.

JSON and YAML hold everything, under the names of the HTTP API; a table shows what fits on a screen. Answers
go to standard output, everything said beside them (progress, questions, errors) to standard error.

>>> out = Printer(Format.JSON)
>>> out.rows([{"name": "orders", "partitions": 3}], [Column("QUEUE", "name")], empty="no queues")
{"name":"orders","partitions":3}
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from queenstream.cli.support import moments
from queenstream.cli.support.exit_codes import CLOSED_PIPE

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PIPE_WIDTH = 100_000  # of a table in a pipe: nothing is cut
GAP = 2  # between columns
LEAST = 16  # of a column that is cut


class Format(StrEnum):
    """How to print."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


Output = Annotated[
    Format | None,
    typer.Option(
        "--output", "-o", help="Default: table; json in a pipe.",
        show_default=False,
    ),
]  # fmt: skip


def text(value: Any) -> str:
    """Anything as it is; nothing as a dash."""
    if value is None or value == "":
        return "-"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def yes_no(value: Any) -> str:
    """A truth as a word."""
    return "yes" if value else "no"


def count(value: Any) -> str:
    """A number with its thousands apart.

    >>> count(1234567), count(None)
    ('1,234,567', '-')
    """
    return "-" if value is None else f"{value:,}"


def amount(number: int, noun: str) -> str:
    """A number of things.

    >>> amount(1, "message"), amount(2500, "dead letter")
    ('1 message', '2,500 dead letters')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def since(value: Any) -> str:
    """A time as how long ago."""
    return "-" if value is None else moments.ago(value, datetime.now(UTC))


def clock(value: Any) -> str:
    """A time of day where the reader is, to the millisecond; with its date if that is not today's."""
    if value is None:
        return "-"
    here = value.astimezone()
    form = "%H:%M:%S" if here.date() == datetime.now().astimezone().date() else "%Y-%m-%d %H:%M:%S"
    return f"{here:{form}}.{here.microsecond // 1000:03}"


def lasting(value: Any) -> str:
    """Seconds in the largest unit that fits."""
    return "-" if value is None else moments.length(value)


def milliseconds(value: Any) -> str:
    """Milliseconds as a duration: 60000 as 1m."""
    from queenstream.core import durations

    return "-" if value is None else durations.format(value / 1000)


def compact(value: Any) -> str:
    """A payload as JSON in one line."""
    import msgspec

    return msgspec.json.encode(value).decode()


@dataclass(frozen=True)
class Column:
    """One column of a table: its title, where the value is (``messages.pending``), and how it looks.

    ``style`` is a colour, or makes one from the value; ``right`` puts numbers under each other; ``cut``: on a
    narrow terminal this column is shortened, and the others stay whole.
    """

    title: str
    path: str
    show: Callable[[Any], str] = text
    right: bool = False
    style: str | Callable[[Any], str] = ""
    cut: bool = False

    def cell(self, record: Mapping[str, Any]) -> Text:
        """The record's cell, without anything that a terminal would obey."""
        from rich.text import Text

        found: Any = record
        for part in self.path.split(".") if self.path else ():
            found = found.get(part) if isinstance(found, Mapping) else None
        style = self.style(found) if callable(self.style) else self.style
        return Text(visible(self.show(found)), style)


def number(title: str, path: str, *, alarm: str = "") -> Column:
    """A column of counts; ``alarm`` is the colour of those above zero."""
    return Column(title, path, count, right=True, style=lambda value: alarm if value else "")


def visible(shown: str) -> str:
    r"""The text with control characters spelled out, so that no payload can command the terminal.

    >>> print(visible("a\x1b[31mb\n"))
    a\x1b[31mb\x0a
    """
    if shown.isprintable():
        return shown
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in shown)


def fitted(widest: Sequence[int], cut: Sequence[bool], room: int) -> list[int]:
    """The widths of columns: those that may be cut share what the others leave.

    A table gets wider than the terminal rather than with a name cut short: who wants to copy one can.

    >>> fitted([10, 70, 20], [False, True, True], 60)
    [10, 26, 20]
    """
    widths = list(widest)
    left = (
        room - sum(width for width, may in zip(widest, cut, strict=True) if not may) - GAP * (len(widest) - 1)
    )
    cutting = sorted((at for at, may in enumerate(cut) if may), key=lambda at: widest[at])
    for done, at in enumerate(cutting):
        widths[at] = min(widest[at], max(LEAST, left // (len(cutting) - done)))
        left -= widths[at]
    return widths


def fields_of(record: object) -> Any:
    """A typed answer as plain dicts and lists under the names of the HTTP API; times stay times."""
    import msgspec

    return msgspec.to_builtins(record, builtin_types=(datetime,))


class Printer:
    """Prints what a command found, as ``--output`` says or as the place it goes to asks for."""

    def __init__(self, wanted: Format | None = None) -> None:
        self.format = wanted or (Format.TABLE if sys.stdout.isatty() else Format.JSON)
        self._widths: dict[str, int] = {}

    @property
    def for_people(self) -> bool:
        """Whether somebody reads it; else a program does."""
        return self.format is Format.TABLE

    def rows(self, records: Iterable[object], columns: Sequence[Column], *, empty: str) -> None:
        """A list; ``empty`` is what people read when there is nothing in it."""
        if not self.for_people:
            for record in records:
                self._write(record, item=True)
            return
        shown = [fields_of(record) for record in records]
        if shown:
            self._print_table(shown, columns)
        else:
            write(f"{empty}\n")

    def record(
        self, record: object, fields: Sequence[Column], tables: Sequence[tuple[str, Sequence[Column]]] = ()
    ) -> None:
        """One thing: its fields, then the lists in it, each named as in the record: ``(name, columns)``."""
        if not self.for_people:
            self._write(record)
            return
        shown = fields_of(record)
        console = _console()
        width = max(len(field.title) for field in fields)
        for field in fields:
            cell = field.cell(shown)
            console.print(_styled(f"{field.title:<{width}}  ", "bright_black") + cell, soft_wrap=True)
        for name, columns in tables:
            rows = shown.get(name) or []
            rows = list(rows.values()) if isinstance(rows, Mapping) else rows
            if rows:
                console.print(_styled(f"\n{name}", "bold"))
                self._print_table(rows, columns)
        sys.stdout.flush()

    def line(self, record: object, columns: Sequence[Column]) -> None:
        """One more row of what has no end: printed at once, the last column whole."""
        if not self.for_people:
            self._write(record, item=True)
            return
        shown = fields_of(record)
        *before, last = [(column, column.cell(shown)) for column in columns]
        line = _styled("", "")
        for column, cell in before:
            # Rows are not known beforehand: a column grows with the widest cell so far.
            width = self._widths[column.title] = max(self._widths.get(column.title, 0), cell.cell_len)
            line += cell + _styled(" " * (width - cell.cell_len + 2), "")
        _console().print(line + last[1], soft_wrap=True)
        sys.stdout.flush()

    def done(self, record: object, sentence: str) -> None:
        """The outcome of an action: a sentence for people, the broker's answer for programs."""
        if self.for_people:
            write(f"{visible(sentence)}\n")
        else:
            self._write(record)

    def _print_table(self, shown: Sequence[Mapping[str, Any]], columns: Sequence[Column]) -> None:
        from rich.table import Table

        rows = [[column.cell(record) for column in columns] for record in shown]
        widest = [
            max(len(column.title), *(cell.cell_len for cell in cells))
            for column, cells in zip(columns, zip(*rows, strict=True), strict=True)
        ]
        console = _console()
        widths = fitted(widest, [column.cut for column in columns], console.width)
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bright_black")
        for column, width in zip(columns, widths, strict=True):
            justify: Literal["left", "right"] = "right" if column.right else "left"
            table.add_column(column.title, justify=justify, no_wrap=True, width=width)
        for row in rows:
            table.add_row(*row)
        console.width = max(console.width, sum(widths) + GAP * len(widths))
        console.print(table)
        sys.stdout.flush()

    def _write(self, record: object, *, item: bool = False) -> None:
        import msgspec

        if self.format is Format.JSON:
            write(msgspec.json.encode(record).decode() + "\n")
        else:
            plain = msgspec.to_builtins(record)  # times as in JSON
            write(msgspec.yaml.encode([plain] if item else plain).decode())


def write(shown: str) -> None:
    """To standard output, at once: who reads a pipe sees a row when it is there."""
    sys.stdout.write(shown)
    sys.stdout.flush()


def note(said: str) -> None:
    """Something beside the answer: on standard error, in one line."""
    sys.stderr.write(f"queen: {visible(said)}\n")
    sys.stderr.flush()


@contextmanager
def quiet_pipe() -> Iterator[None]:
    """Who reads may leave (``| head``): that ends a command, and is no error to talk about."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffer would raise again at exit: it goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(CLOSED_PIPE) from None


def _styled(shown: str, style: str) -> Text:
    from rich.text import Text

    return Text(shown, style)


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH)
