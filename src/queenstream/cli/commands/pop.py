"""``queen pop``: take messages from a queue."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.support.completion import group_names, queue_names
from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.messages import COLUMNS
from queenstream.cli.support.output import Output, Printer, note

if TYPE_CHECKING:
    from queenstream import Queen

HELP = help_text(
    "Take messages from a queue, print them and acknowledge them.",
    "queen pop orders",
    "queen pop orders --batch 100 --group billing --wait 30s",
    "queen pop orders --no-ack",
    "queen pop orders --partition ann | jq .data",
    more="A message is acknowledged after it was printed; one that could not be printed comes again. With "
    "--no-ack they are given back afterwards: they come again at once, and no try is counted. "
    "`queen tail` looks at messages without taking them.",
)


@connected
def pop(
    queen: Queen,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=queue_names)],
    batch: Annotated[
        int, typer.Option("--batch", "-n", min=1, max=10_000, metavar="N", help="So many at most.")
    ] = 1,
    group: Annotated[
        str | None, typer.Option(metavar="GROUP", help="The consumer group.", autocompletion=group_names)
    ] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Only from this partition.")] = None,
    partitions: Annotated[
        int, typer.Option(min=1, max=10_000, metavar="N", help="From up to so many partitions at once.")
    ] = 1,
    wait: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Wait so long for messages, such as 30s.")
    ] = None,
    ack: Annotated[bool, typer.Option("--ack/--no-ack", help="Acknowledge, or give back.")] = True,
    output: Output = None,
) -> None:
    """Pop once."""
    chain = queen.queue(queue).batch(batch).partitions(partitions)
    if group is not None:
        chain = chain.group(group)
    if partition is not None:
        chain = chain.partition(partition)
    if wait is not None:
        chain = chain.wait(wait)
    out = Printer(output)
    messages = chain.pop()
    try:
        for message in messages:
            out.line(public(message), COLUMNS)
    except BaseException:
        messages.retry()
        raise
    if not ack:
        messages.retry()
    else:
        messages.ack()
    if not messages and sys.stderr.isatty():
        note(f"nothing to pop from {queue}")


def public(message: Any) -> dict[str, Any]:
    """A popped message as it is printed: what the HTTP API says of it, without the lease, which is over."""
    return {
        "id": message.id,
        "transactionId": message.transaction_id,
        "queue": message.queue,
        "partition": message.partition,
        "partitionId": message.partition_id,
        "consumerGroup": message.consumer_group,
        "createdAt": message.created_at,
        "retryCount": message.retry_count,
        "traceId": message.trace_id,
        "producerSub": message.producer_sub,
        "data": message.data,
    }
