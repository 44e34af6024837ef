"""``queen push``: send messages, given as arguments or as lines of JSON."""

from __future__ import annotations

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from queenstream.cli.support.completion import queue_names
from queenstream.cli.support.confirm import somebody_there
from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, note
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from rich.progress import Progress

    from queenstream import Queen
    from queenstream.cli.support.json_lines import Line, Rules, Tally

HELP = help_text(
    "Push messages: JSON as arguments, or NDJSON on standard input.",
    'queen push orders \'{"user": "ann", "amount": 5}\'',
    "queen push orders --partition ann '{\"amount\": 5}' '{\"amount\": 7}'",
    "queen push orders < events.ndjson",
    "queen push orders --partition-key user --on-bad skip < events.ndjson",
    "queen push orders --transaction-id-key order.id < events.ndjson",
    more="A file can be pushed again after whatever went wrong: a line is known by its number and content, "
    "and is not stored twice. --again stores everything anew.",
)


class OnBad(StrEnum):
    """What to do with a line that cannot be a message."""

    STOP = "stop"
    SKIP = "skip"


_RESULTS = (
    Column("STATUS", "status"),
    Column("PARTITION", "partition"),
    Column("MESSAGE", "messageId"),
    Column("TRANSACTION", "transactionId"),
)


@connected
def push(
    queen: Queen,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=queue_names)],
    payloads: Annotated[
        list[str] | None, typer.Argument(metavar="JSON", help="Messages; else standard input.")
    ] = None,
    partition: Annotated[
        str | None, typer.Option(metavar="NAME", help="The partition. Default: Default.")
    ] = None,
    partition_key: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where in a message its partition is: user.id.")
    ] = None,
    transaction_id_key: Annotated[
        str | None, typer.Option(metavar="PATH", help="Where in a message its transaction id is.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Store all lines anew, known or not.")] = False,
    on_bad: Annotated[OnBad, typer.Option(help="What to do with a line that is no JSON.")] = OnBad.STOP,
    output: Output = None,
) -> None:
    """Push arguments or lines."""
    from queenstream.cli.support.json_lines import Rules

    if partition is not None and partition_key is not None:
        raise ConfigError("--partition and --partition-key both name the partition; give one of them")
    if again and transaction_id_key is not None:
        raise ConfigError(
            "--again makes new transaction ids, --transaction-id-key takes them; give one of them"
        )
    # Who types the same twice means it twice: only lines of a file are told apart by what they are.
    rules = Rules(partition or "Default", partition_key, transaction_id_key, again or bool(payloads))
    if payloads:
        _push_arguments(queen, queue, payloads, rules, Printer(output))
    elif somebody_there():
        raise ConfigError(
            "nothing to push; give JSON as arguments, or a file: queen push orders < events.ndjson"
        )
    else:
        _push_lines(queen, queue, rules, on_bad, Printer(output))


def _push_arguments(queen: Queen, queue: str, payloads: list[str], rules: Rules, out: Printer) -> None:
    from queenstream.cli.support.json_lines import BadLine, Line, stored

    lines = []
    for number, payload in enumerate(payloads, 1):
        try:
            lines.append(Line.read(number, payload.encode("utf-8", "surrogateescape"), rules))
        except BadLine as error:
            remedy = "quote it for the shell: '{\"n\": 1}', and text as '\"text\"'"
            raise ConfigError(f"argument {str(error).removeprefix('line ')}; {remedy}") from None
    results = stored(queen, queue, lines)
    rows = [
        {
            "status": result["status"],
            "queue": queue,
            "partition": line.partition,
            "partitionId": result["partition_id"],
            "messageId": result["message_id"],
            "transactionId": result["transaction_id"],
        }
        for line, result in zip(lines, results, strict=True)
    ]
    out.rows(rows, _RESULTS, empty="")


def _push_lines(queen: Queen, queue: str, rules: Rules, on_bad: OnBad, out: Printer) -> None:
    from queenstream.cli.support.json_lines import BadLine, Tally, batches, stored

    tally, began, ended = Tally(), time.monotonic(), "failed"
    try:
        with _progress(queue) as progress:
            for batch in batches(_lines(rules, on_bad, tally, progress)):
                tally.count(stored(queen, queue, batch))
                progress.stored(tally)
        ended = "done"
    except BadLine as error:
        note(f"{error}; mend it and push again, or go on with --on-bad skip")
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        ended = "interrupted"
        raise
    finally:
        _summarize(queue, tally, time.monotonic() - began, ended, out)


def _summarize(queue: str, tally: Tally, seconds: float, ended: str, out: Printer) -> None:
    rate = tally.lines / seconds if seconds else 0.0
    bad = f", {tally.bad:,} bad" if tally.bad else ""
    rest = "" if ended == "done" else f"; {ended}: push the same again to go on"
    out.done(
        {
            "queue": queue,
            "lines": tally.lines,
            "new": tally.new,
            "duplicates": tally.duplicates,
            "bad": tally.bad,
            "seconds": round(seconds, 3),
            "ended": ended,
        },
        f"{tally.new:,} new, {tally.duplicates:,} there already{bad} ({rate:,.0f}/s){rest}",
    )


def _lines(rules: Rules, on_bad: OnBad, tally: Tally, progress: _Progress) -> Iterator[Line]:
    """The lines of standard input that can be messages. What came before a bad one is sent first."""
    from queenstream.cli.support.json_lines import BadLine, Line

    for number, raw in enumerate(sys.stdin.buffer, 1):
        progress.read(len(raw))
        text = raw.strip()
        if not text:
            continue
        try:
            yield Line.read(number, text, rules)
        except BadLine as error:
            tally.bad += 1
            if on_bad is OnBad.STOP:
                raise
            note(str(error))


class _Progress:
    """Nobody watches: nothing is shown."""

    def read(self, size: int) -> None:
        """So many bytes of the input were read."""

    def stored(self, tally: Tally) -> None:
        """So much is stored."""


class _Bar(_Progress):
    """How far the input is read, and how much is stored at what rate."""

    def __init__(self, bar: Progress, queue: str, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task(queue, total=total, said="")
        self._began = time.monotonic()

    def read(self, size: int) -> None:
        self._bar.advance(self._task, size)

    def stored(self, tally: Tally) -> None:
        rate = tally.lines / max(time.monotonic() - self._began, 0.001)
        said = f"{tally.new:,} new, {tally.duplicates:,} there already, {rate:,.0f}/s"
        self._bar.update(self._task, said=said)


@contextmanager
def _progress(queue: str) -> Iterator[_Progress]:
    """A bar on standard error, if that is a terminal."""
    if not sys.stderr.isatty():
        yield _Progress()
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    about = os.fstat(sys.stdin.fileno())
    total = about.st_size if stat.S_ISREG(about.st_mode) else None
    shown = [TextColumn(escape(queue)), BarColumn(), TextColumn("{task.fields[said]}")]
    if total is not None:
        shown.append(TimeRemainingColumn())
    with Progress(*shown, console=Console(stderr=True), transient=True) as bar:
        yield _Bar(bar, queue, total)
