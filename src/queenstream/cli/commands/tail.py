"""``queen tail``: look at messages, old and new, without taking them.

It reads the list of messages, which any role may. A consumer group of its own would be seen by others, hold
back ``maxSize`` and retention, write a cursor for every partition, and stay behind if the command is killed.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from queenstream.cli.support import moments
from queenstream.cli.support.completion import queue_names
from queenstream.cli.support.connection import connected
from queenstream.cli.support.filters import predicate
from queenstream.cli.support.help import help_text
from queenstream.cli.support.messages import COLUMNS
from queenstream.cli.support.output import Output, Printer
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from queenstream import Queen
    from queenstream.cli.support.reader import Fetch, Fits
    from queenstream.client._base.responses.history import MessageInfo

HELP = help_text(
    "Look at messages without taking them; -f goes on as they come.",
    "queen tail orders",
    "queen tail orders -f",
    "queen tail orders -f --where 'data.amount > 100'",
    "queen tail orders --from '15 minutes ago' | jq .data",
    "queen tail orders -n 50 --partition ann",
    more="No consumer group is disturbed, and none is made. An expression sees what -o json prints: data, "
    "partition, status, createdAt, …",
)
DEFAULT_NUMBER = 10


@connected
def tail(
    queen: Queen,
    queue: Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", autocompletion=queue_names)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with those that come.")] = False,
    where: Annotated[
        str | None, typer.Option(metavar="EXPRESSION", help="Only those that fit: 'data.amount > 100'.")
    ] = None,
    number: Annotated[
        int | None,
        typer.Option(
            "--number", "-n", min=0, metavar="N", help=f"So many of the last. Default: {DEFAULT_NUMBER}."
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="MOMENT", help="All since: '15 minutes ago', beginning …")
    ] = None,
    partition: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this partition.")] = None,
    output: Output = None,
) -> None:
    """Print the last messages, or those since a moment, and perhaps go on."""
    from queenstream.cli.support.reader import PAGE, Follower

    if number is not None and start is not None:
        raise ConfigError(
            "--number counts back from the end, --from goes forward from a time; give one of them"
        )
    fits, out = predicate(where), Printer(output)
    begin = DEFAULT_NUMBER if number is None else number
    since = None if start is None else moments.parse(start, datetime.now(UTC))

    def fetch(start: datetime | None, end: datetime | None, offset: int) -> list[MessageInfo]:
        return queen.admin.queue_messages(
            queue, partition=partition, from_=start, to=end, limit=PAGE, offset=offset
        )

    now = queen.admin.overview().timestamp  # the database's clock: messages bear its times
    follower = Follower(fetch, now) if follow else None
    for message in _stored(queen, queue, fetch, fits, begin if since is None else since, now):
        out.line(message, COLUMNS)
        if follower is not None:
            follower.known(message)
    if follower is not None:
        for message in filter(fits, follower.coming()):
            out.line(message, COLUMNS)


def _stored(
    queen: Queen, queue: str, fetch: Fetch, fits: Fits, begin: int | datetime | moments.Edge, now: datetime
) -> Iterator[MessageInfo]:
    """What is there already: the last so many, or all since a moment."""
    from queenstream.cli.support.reader import forwards, last

    if isinstance(begin, int):
        return last(fetch, fits, begin, now)
    if begin is moments.Edge.END:
        return iter(())
    oldest = queen.admin.queue_status(queue, limit=1).queue.oldest or now
    begin = oldest if isinstance(begin, moments.Edge) else max(begin, oldest)
    return filter(fits, forwards(fetch, begin, now))
