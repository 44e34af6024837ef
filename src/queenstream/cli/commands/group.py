"""``queen group``: consumer groups, where they stand, and moving them."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import typer

from queenstream.cli.support import moments
from queenstream.cli.support.completion import group_names, queue_names
from queenstream.cli.support.confirm import DryRun, Yes, confirm
from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import (
    Column,
    Output,
    Printer,
    amount,
    clock,
    lasting,
    number,
    since,
    text,
)
from queenstream.cli.support.paging import Limit

if TYPE_CHECKING:
    from queenstream import Queen

app = typer.Typer(
    help=help_text(
        "Consumer groups: list, show, seek, delete.",
        "queen group ls",
        "queen group seek billing --queue orders --to '15 minutes ago'",
    ),
    no_args_is_help=True,
)

GroupName = Annotated[
    str, typer.Argument(metavar="GROUP", help="The consumer group.", autocompletion=group_names)
]
_COLOURS = {"Stable": "green", "Lagging": "yellow", "Dead": "red"}

_LIST = (
    Column("GROUP", "name"),
    Column("STATE", "state", style=lambda state: _COLOURS.get(state, "")),
    number("LAG", "totalLag"),
    Column("BEHIND", "maxTimeLag", lasting, right=True),
    number("MEMBERS", "members"),
    Column("QUEUES", "topics", text, cut=True),
)
_FIELDS = (
    Column("group", "name"),
    Column("state", "state", style=lambda state: _COLOURS.get(state, "")),
    Column("lag", "totalLag"),
    Column("behind", "maxTimeLag", lasting),
    Column("members", "members"),
)
_QUEUES = (
    Column("QUEUE", "queue"),
    number("PARTITIONS", "partitions"),
    number("LAG", "lag"),
    Column("BEHIND", "lagSeconds", lasting, right=True),
    number("MEMBERS", "members"),
    Column("LAST CONSUMED", "lastConsumedAt", since),
    Column("STARTED", "subscriptionMode"),
)


@app.command(
    "ls",
    help=help_text(
        "List the consumer groups, with how far behind they are.",
        "queen group ls",
        """queen group ls | jq 'select(.state != "Stable") | .name'""",
    ),
)
@connected
def ls(queen: Queen, limit: Limit = None, output: Output = None) -> None:
    """List groups."""
    found = islice(queen.admin.groups(), limit)
    Printer(output).rows(found, _LIST, empty="no consumer groups; the first pop makes one")


@app.command(
    "show",
    help=help_text(
        "Show one consumer group: where it stands in each queue.",
        "queen group show billing",
        "queen group show billing | jq '.queues.orders.partitionDetails[]'",
        more="JSON and YAML also show each partition.",
    ),
)
@connected
def show(queen: Queen, group: GroupName, output: Output = None) -> None:
    """Show a group."""
    Printer(output).record(queen.admin.group(group), _FIELDS, [("queues", _QUEUES)])


@app.command(
    "seek",
    help=help_text(
        "Move a consumer group in a queue, back or forward.",
        "queen group seek billing --queue orders --to '15 minutes ago' --dry-run",
        "queen group seek billing --queue orders --to beginning",
        "queen group seek billing --queue orders --to 'today 10:00' --yes",
        "queen group seek billing --queue orders --partition ann --to end",
        more="Back: messages come again. Forward: those in between are not delivered to the group. "
        "Leases that are out become void.",
    ),
)
@connected
def seek(
    queen: Queen,
    group: GroupName,
    queue: Annotated[str, typer.Option(metavar="QUEUE", help="The queue.", autocompletion=queue_names)],
    to: Annotated[
        str,
        typer.Option(
            metavar="MOMENT", help="Where to: '15 minutes ago', 'today 10:00', a timestamp, beginning or end."
        ),
    ],
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Only in this partition.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Move a group."""
    target = moments.parse(to, datetime.now(UTC))
    place = f"the {target}" if isinstance(target, moments.Edge) else clock(target)
    preview = queen.admin.seek(group, queue, target, partition=partition, dry_run=True)
    between = f"{amount(preview.affected or 0, 'message')} in between"
    where = f"queue {queue}" if partition is None else f"partition {partition} of queue {queue}"
    out = Printer(output)
    if dry_run:
        out.done(preview, f"group {group} would move to {place} in {where}; {between}")
        return
    confirm(f"Move group {group} to {place} in {where}? {between}.", yes=yes)
    moved = queen.admin.seek(group, queue, target, partition=partition)
    out.done(moved, f"moved group {group} to {place} in {where}")


@app.command(
    "delete",
    help=help_text(
        "Delete a group's progress: its next pop starts anew.",
        "queen group delete billing",
        "queen group delete billing --queue orders --yes",
    ),
)
@connected
def delete(
    queen: Queen,
    group: GroupName,
    queue: Annotated[
        str | None, typer.Option(metavar="QUEUE", help="Only in this queue.", autocompletion=queue_names)
    ] = None,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Delete a group."""
    found = queen.admin.group(group)
    where = "all its queues" if queue is None else f"queue {queue}"
    confirm(f"Delete group {group} in {where} (it is {amount(found.total_lag, 'message')} behind)?", yes=yes)
    gone = queen.admin.delete_group(group, queue=queue)
    Printer(output).done(gone, f"deleted group {group} in {', '.join(gone.queues) or where}")
