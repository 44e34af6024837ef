"""``queen dlq``: the messages that groups gave up on, to look at, replay or delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from queenstream.cli.support import moments
from queenstream.cli.support.completion import group_names, queue_names
from queenstream.cli.support.confirm import DryRun, Yes, confirm
from queenstream.cli.support.connection import connected
from queenstream.cli.support.dead_letters import All, Ids, OneId, chosen, json_of, matching_option
from queenstream.cli.support.filters import predicate
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import Column, Output, Printer, amount, compact, number, text
from queenstream.cli.support.output import since as age
from queenstream.cli.support.paging import Limit, every
from queenstream.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from queenstream import Queen
    from queenstream.client._base.responses.history import DeadLetter

T = TypeVar("T")

app = typer.Typer(
    help=help_text(
        "Dead letters: list, show, retry, delete.",
        "queen dlq ls --queue orders",
        "queen dlq retry --queue orders --matching \"errorMessage like '%timeout%'\"",
    ),
    no_args_is_help=True,
)

QueueName = Annotated[
    str | None, typer.Option("--queue", metavar="QUEUE", help="Of this queue.", autocompletion=queue_names)
]
GroupName = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="Of this consumer group.", autocompletion=group_names),
]
Partition = Annotated[str | None, typer.Option("--partition", metavar="NAME", help="Of this partition.")]
Since = Annotated[
    str | None, typer.Option("--from", help="Failed since: '2 hours ago', 'today 10:00' …", metavar="MOMENT")
]
Matching = Annotated[str | None, matching_option("data.amount > 100")]

_LIST = (
    Column("ID", "id"),
    Column("FAILED", "failedAt", age),
    Column("QUEUE", "queue"),
    Column("PARTITION", "partition"),
    Column("GROUP", "consumerGroup"),
    number("RETRIES", "retryCount"),
    Column("ERROR", "errorMessage", style="red", cut=True),
    Column("DATA", "data", compact, cut=True),
)
_FIELDS = (
    Column("id", "id"),
    Column("queue", "queue"),
    Column("partition", "partition"),
    Column("group", "consumerGroup"),
    Column("transaction", "transactionId"),
    Column("created", "createdAt", age),
    Column("failed", "failedAt", age),
    Column("cause", "cause"),
    Column("retries", "retryCount"),
    Column("error", "errorMessage", style="red"),
    Column("producer", "producerSub", text),
    Column("data", "data", compact),
)


@app.command(
    "ls",
    help=help_text(
        "List dead letters, the newest first.",
        "queen dlq ls --queue orders",
        "queen dlq ls --group billing --from '2 hours ago' -n 20",
        "queen dlq ls --matching \"data.amount > 9 and errorMessage like '%time%'\"",
        more="An expression sees what -o json prints: data, errorMessage, retryCount, partition, …",
    ),
)
@connected
def ls(
    queen: Queen,
    queue: QueueName = None,
    group: GroupName = None,
    partition: Partition = None,
    start: Since = None,
    matching: Matching = None,
    limit: Limit = None,
    output: Output = None,
) -> None:
    """List dead letters."""
    found = _found(queen, queue, group, partition, start, matching)
    Printer(output).rows(islice(found, limit), _LIST, empty="no dead letters")


@app.command(
    "show",
    help=help_text(
        "Show one dead letter: why it died, and its data.",
        "queen dlq show 17",
        "queen dlq show 17 | jq .data",
    ),
)
@connected
def show(queen: Queen, id: OneId, output: Output = None) -> None:
    """Show a dead letter."""
    Printer(output).record(queen.admin.dead_letter(id), _FIELDS)


@app.command(
    "retry",
    help=help_text(
        "Replay dead letters to the group that failed.",
        "queen dlq retry 17 18",
        "queen dlq retry 17 --payload '{\"amount\": 5}'",
        "queen dlq retry --queue orders --matching 'data.amount > 100' --dry-run",
        "queen dlq retry --queue orders --group billing --all",
        more="A replayed one is a new message at the end of its partition, for that group alone.",
    ),
)
@connected
def retry(
    queen: Queen,
    ids: Ids = None,
    queue: QueueName = None,
    group: GroupName = None,
    partition: Partition = None,
    start: Since = None,
    matching: Matching = None,
    everything: All = False,
    payload: Annotated[
        str | None, typer.Option(metavar="JSON", help="Other data, as JSON, for the one dead letter named.")
    ] = None,
    dry_run: DryRun = False,
    output: Output = None,
) -> None:
    """Replay dead letters."""
    if payload is not None and len(ids or ()) != 1:
        raise ConfigError("--payload is for one dead letter: give one id")
    edited = {} if payload is None else {"payload": json_of("--payload", payload)}
    letters = _chosen(queen, ids, queue, group, partition, start, matching, everything)
    out = Printer(output)
    if dry_run:
        out.rows(letters, _LIST, empty="no dead letters fit; nothing would be replayed")
        return
    replayed = [
        message
        for letter in letters
        if (answer := _if_there(queen.admin.retry_dead_letter, letter.id, named=bool(ids), **edited))
        for message in answer.messages
    ]
    out.done(
        {"retried": len(replayed), "messages": replayed}, f"replayed {amount(len(replayed), 'dead letter')}"
    )


@app.command(
    "delete",
    help=help_text(
        "Delete dead letters for good.",
        "queen dlq delete 17 18",
        'queen dlq delete --queue orders --matching "data.test = true" --dry-run',
        "queen dlq delete --queue orders --all --yes",
    ),
)
@connected
def delete(
    queen: Queen,
    ids: Ids = None,
    queue: QueueName = None,
    group: GroupName = None,
    partition: Partition = None,
    start: Since = None,
    matching: Matching = None,
    everything: All = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Delete dead letters."""
    letters = _chosen(queen, ids, queue, group, partition, start, matching, everything)
    out = Printer(output)
    if dry_run:
        out.rows(letters, _LIST, empty="no dead letters fit; nothing would be deleted")
        return
    confirm(f"Delete {amount(len(letters), 'dead letter')}?", yes=yes)
    deleted = sum(
        answer.deleted
        for letter in letters
        if (answer := _if_there(queen.admin.delete_dead_letter, letter.id, named=bool(ids)))
    )
    out.done({"deleted": deleted}, f"deleted {amount(deleted, 'dead letter')}")


def _if_there(do: Callable[..., T], id: str, *, named: bool, **more: Any) -> T | None:
    """One that was only found may have been taken by somebody else since; one that was named may not."""
    try:
        return do(id, **more)
    except NotFound:
        if named:
            raise
        return None


def _found(
    queen: Queen,
    queue: str | None,
    group: str | None,
    partition: str | None,
    start: str | None,
    matching: str | None,
) -> Iterator[DeadLetter]:
    """Those that fit, the newest first."""
    since = None if start is None else moments.parse_time(start, datetime.now(UTC))
    letters = every(
        lambda size, offset: queen.admin.dead_letters(
            queue=queue, group=group, partition=partition, from_=since, limit=size, offset=offset
        )
    )
    return filter(predicate(matching), letters)


def _chosen(
    queen: Queen,
    ids: list[str] | None,
    queue: str | None,
    group: str | None,
    partition: str | None,
    start: str | None,
    matching: str | None,
    everything: bool,
) -> Sequence[DeadLetter]:
    """Those that a command is to act on, in the order in which they died."""
    narrowed = any(value is not None for value in (queue, group, partition, start))
    if ids and narrowed:
        raise ConfigError("name dead letters by their ids, or say of which queue; not both")
    if not ids and queue is None:
        raise ConfigError("say which dead letters: their ids, or --queue with --matching or --all")
    return chosen(
        ids,
        lambda named: [queen.admin.dead_letter(id) for id in named],
        lambda: _found(queen, queue, group, partition, start, matching),
        by="--matching EXPRESSION",
        filtered=matching is not None,
        everything=everything,
    )
