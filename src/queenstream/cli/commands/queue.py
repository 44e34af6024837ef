"""``queen queue``: list, show, create, delete and clear queues."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.support.completion import queue_names
from queenstream.cli.support.confirm import Yes, confirm
from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import (
    Column,
    Output,
    Printer,
    amount,
    count,
    lasting,
    number,
    since,
    text,
    yes_no,
)
from queenstream.cli.support.paging import Limit, every
from queenstream.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from queenstream import Queen

app = typer.Typer(
    help=help_text("Queues: list, show, create, delete, clear.", "queen queue ls", "queen queue show orders"),
    no_args_is_help=True,
)

QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=queue_names)]

# What a queue can be told, as the HTTP API names it; docs/broker.md says what each means.
OPTIONS = (
    "leaseTime", "retryLimit", "retryDelay", "ttl", "maxSize", "priority", "delayedProcessing",
    "windowBuffer", "retentionEnabled", "retentionSeconds", "completedRetentionSeconds",
    "maxWaitTimeSeconds", "encryptionEnabled", "deadLetterQueue", "dlqAfterMaxRetries",
)  # fmt: skip


def _plain(value: object) -> str:
    return yes_no(value) if isinstance(value, bool) else text(value)


def _option_names(incomplete: str) -> list[str]:
    return [f"{name}=" for name in OPTIONS if name.startswith(incomplete)]


_LIST = (
    Column("QUEUE", "name"),
    Column("NAMESPACE", "namespace"),
    number("PARTITIONS", "partitions"),
    number("GROUPS", "consumerGroups"),
    number("PENDING", "messages.pending"),
    number("PROCESSING", "messages.processing"),
    number("COMPLETED", "messages.completed"),
    number("DEAD", "messages.deadLetter", alarm="red"),
)
_FIELDS = (
    Column("queue", "name"),
    Column("namespace", "namespace"),
    Column("task", "task"),
    Column("created", "createdAt", since),
    Column("pending", "messages.pending", count),
    Column("processing", "messages.processing", count),
    Column("completed", "messages.completed", count),
    Column("dead letters", "messages.deadLetter", count, style=lambda value: "red" if value else ""),
    *(Column(name, f"options.{name}", _plain) for name in OPTIONS),
)
_GROUPS = (
    Column("GROUP", "name"),
    number("LAG", "lag"),
    Column("BEHIND", "lagSeconds", lasting, right=True),
    number("MEMBERS", "members"),
    Column("LAST CONSUMED", "lastConsumedAt", since),
)
_PARTITIONS = (
    Column("PARTITION", "name"),
    number("TOTAL", "total"),
    number("DEPTH", "depth"),
    number("PROCESSING", "processing"),
    Column("OLDEST", "oldest", since),
    Column("NEWEST", "newest", since),
)


@app.command(
    "ls",
    help=help_text(
        "List the queues, with what lies in them.",
        "queen queue ls",
        "queen queue ls --namespace shop --search order",
        "queen queue ls | jq 'select(.messages.deadLetter > 0) | .name'",
    ),
)
@connected
def ls(
    queen: Queen,
    namespace: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only those of this namespace.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Only those of this task.")] = None,
    search: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Only those with this in their name.")
    ] = None,
    limit: Limit = None,
    output: Output = None,
) -> None:
    """List queues, all pages."""
    found = every(
        lambda size, offset: queen.admin.queues(
            namespace=namespace, task=task, search=search, limit=size, offset=offset
        )
    )
    Printer(output).rows(islice(found, limit), _LIST, empty="no queues; the first push makes one")


@app.command(
    "show",
    help=help_text(
        "Show one queue: options, groups, partitions.",
        "queen queue show orders",
        "queen queue show orders -o yaml",
        "queen queue show orders | jq .options",
    ),
)
@connected
def show(queen: Queen, queue: QueueName, output: Output = None) -> None:
    """Show a queue, its groups and its first partitions."""
    Printer(output).record(
        queen.admin.queue(queue), _FIELDS, [("groups", _GROUPS), ("partitions", _PARTITIONS)]
    )


@app.command(
    "create",
    help=help_text(
        "Create a queue, or replace the options of one.",
        "queen queue create orders",
        "queen queue create orders --set leaseTime=60 --set ttl=86400",
        "queen queue create jobs --set retryLimit=5 --set retryDelay=2000",
        more=f"Options: {', '.join(OPTIONS)}. Those that are not given get their defaults, also on a queue "
        "that exists.",
    ),
)
@connected
def create(
    queen: Queen,
    queue: QueueName,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Its namespace.")] = None,
    task: Annotated[str | None, typer.Option(metavar="NAME", help="Its task.")] = None,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="OPTION=VALUE", help="An option; may be repeated.", autocompletion=_option_names
        ),
    ] = None,
    output: Output = None,
) -> None:
    """Configure a queue."""
    chain = queen.queue(queue).config(**dict(map(_option, options or ())))
    if namespace is not None:
        chain = chain.namespace(namespace)
    if task is not None:
        chain = chain.task(task)
    Printer(output).done(chain.create(), f"queue {queue} is there")


def _option(written: str) -> tuple[str, Any]:
    """``leaseTime=60`` as a name in Python's spelling and a value."""
    import re

    import msgspec

    name, equals, value = written.partition("=")
    if not equals:
        raise ConfigError(f"--set {written} has no value; write it like --set leaseTime=60")
    if name not in OPTIONS:
        raise ConfigError(f"--set {written}: there is no option {name}; there are {', '.join(OPTIONS)}")
    try:
        return re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name), msgspec.json.decode(value)
    except msgspec.DecodeError:
        raise ConfigError(f"--set {written}: write a number, true or false after the =") from None


@app.command(
    "delete",
    help=help_text(
        "Delete a queue with its messages, groups and dead letters.",
        "queen queue delete orders",
        "queen queue delete orders --yes",
    ),
)
@connected
def delete(queen: Queen, queue: QueueName, yes: Yes = False, output: Output = None) -> None:
    """Delete a queue that exists."""
    found = queen.admin.queue(queue)
    confirm(f"Delete queue {queue} with {amount(found.messages.total, 'message')}?", yes=yes)
    gone = queen.admin.delete_queue(queue)
    if not gone.existed:
        raise NotFound(f"there is no queue {queue} any more")
    Printer(output).done(gone, f"deleted queue {queue}")


@app.command(
    "clear",
    help=help_text(
        "Delete the messages of a queue, and nothing else of it.",
        "queen queue clear orders",
        "queen queue clear orders --partition ann --yes",
        more="Its options, groups and dead letters stay.",
    ),
)
@connected
def clear(
    queen: Queen,
    queue: QueueName,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Only this partition.")] = None,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Delete messages."""
    where = f"queue {queue}" if partition is None else f"partition {partition} of queue {queue}"
    total = queen.admin.queue(queue).messages.total
    confirm(f"Delete the messages of {where} ({total:,} in the queue)?", yes=yes)
    gone = queen.admin.clear_queue(queue, partition=partition)
    Printer(output).done(gone, f"deleted {amount(gone.deleted, 'message')} of {where}")
