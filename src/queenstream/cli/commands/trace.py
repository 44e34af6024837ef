"""``queen trace``: what consumers noted about messages."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from queenstream.cli.support import moments
from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, clock, compact, number, since
from queenstream.cli.support.paging import Limit, every

if TYPE_CHECKING:
    from queenstream import Queen

app = typer.Typer(
    help=help_text(
        "Traces: what consumers noted about messages.", "queen trace ls", "queen trace show order-7"
    ),
    no_args_is_help=True,
)

_NAMES = (
    Column("NAME", "name"),
    number("TRACES", "traces"),
    number("MESSAGES", "messages"),
    Column("LAST SEEN", "lastSeen", since),
)
_TRACES = (
    Column("TIME", "createdAt", clock),
    Column("EVENT", "eventType"),
    Column("GROUP", "consumerGroup"),
    Column("TRANSACTION", "transactionId"),
    Column("DATA", "data", compact, cut=True),
)


@app.command(
    "ls",
    help=help_text(
        "List the names of traces, the one seen last first.",
        "queen trace ls",
        "queen trace ls --search order -n 20",
    ),
)
@connected
def ls(
    queen: Queen,
    search: Annotated[str | None, typer.Option(metavar="TEXT", help="Only names with this in them.")] = None,
    limit: Limit = None,
    output: Output = None,
) -> None:
    """List names."""
    found = every(lambda size, offset: queen.admin.trace_names(search=search, limit=size, offset=offset))
    Printer(output).rows(islice(found, limit), _NAMES, empty="no traces bear a name")


@app.command(
    "show",
    help=help_text(
        "Show the traces under a name, the newest first.",
        "queen trace show order-7",
        "queen trace show order-7 --from '2 hours ago' | jq .data",
    ),
)
@connected
def show(
    queen: Queen,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the traces.")],
    start: Annotated[
        str | None, typer.Option("--from", help="Noted since: '2 hours ago' …", metavar="MOMENT")
    ] = None,
    limit: Limit = None,
    output: Output = None,
) -> None:
    """Show traces by name."""
    begin = None if start is None else moments.parse_time(start, datetime.now(UTC))
    found = every(
        lambda size, offset: queen.admin.traces_by_name(name, from_=begin, limit=size, offset=offset)
    )
    Printer(output).rows(islice(found, limit), _TRACES, empty=f"no traces under {name}")


@app.command(
    "message",
    help=help_text(
        "Show the traces of one message, the oldest first.",
        "queen trace message 12 0198c2f4-7d1e",
        more="Both ids are in what pop, tail and push print: partitionId and transactionId.",
    ),
)
@connected
def message(
    queen: Queen,
    partition_id: Annotated[str, typer.Argument(metavar="PARTITION_ID", help="The partition's id.")],
    transaction_id: Annotated[str, typer.Argument(metavar="TRANSACTION_ID", help="The message's id.")],
    output: Output = None,
) -> None:
    """Show traces of a message."""
    found = queen.admin.traces(partition_id, transaction_id)
    Printer(output).rows(found, _TRACES, empty="no traces of this message")
