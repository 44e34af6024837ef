"""``queen bench``: measure a broker over HTTP.

What drives the load is imported when a command runs, so that the others start quickly.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from queenstream.cli.support.connection import ContextName, Token, Url, resolved
from queenstream.cli.support.contexts import Flags
from queenstream.cli.support.help import help_text
from queenstream.cli.support.target import parse_target
from queenstream.errors import ConfigError

if TYPE_CHECKING:
    from queenstream.cli.bench.run import Plan

HELP = help_text(
    "Measure a broker over HTTP: pushes, pops, or both in a row.",
    "queen bench produce",
    "queen bench e2e --rate 5000 -o json",
    more="On a terminal the run is shown live and ends with a table; in a pipe it is NDJSON: an object each "
    'second, and a last one of type "summary". Ctrl-C ends it early, with all that belongs to the end.',
)

PRODUCE_HELP = help_text(
    "Push as fast as the broker answers, or at a given rate.",
    "queen bench produce",
    "queen bench produce --batch 1 --connections 64 --seconds 30",
    "queen bench produce --url https://queen.example.com --rate 5000 -o json",
)

CONSUME_HELP = help_text(
    "Pop and acknowledge what a queue holds.",
    "queen bench consume",
    "queen bench consume --messages 1000000 --batch 1000 --auto-ack",
    "queen bench consume --queue orders",
    more="A fresh queue is filled, then drained. A given one (--queue) is read by a consumer group of its "
    "own, which starts at the first message and is deleted at the end, so that nobody's messages are taken. "
    "With --group they are.",
)

E2E_HELP = help_text(
    "Measure how long a message is on its way.",
    "queen bench e2e",
    "queen bench e2e --rate 5000 --consumers 32 --seconds 30",
    more="Messages are sent at a steady rate to long-polling consumers. One whose push was answered and that "
    "does not arrive within 10 s is lost, which is an error.",
)

MAX_BODY_BYTES = 64 << 20  # what a broker takes, unless it is told otherwise
ITEM_BYTES = 150  # of an item beside its payload, about

app = typer.Typer(help=HELP, no_args_is_help=True)


class Output(StrEnum):
    """How to show it."""

    json = "json"
    table = "table"


Queue = Annotated[
    str | None,
    typer.Option(help="A queue of yours. Without it a fresh one is made, and deleted at the end."),
]
Keep = Annotated[bool, typer.Option("--keep", help="Delete nothing at the end.")]
Partitions = Annotated[int, typer.Option(min=1, max=1_000_000, help="Partitions to send to.")]
Batch = Annotated[int, typer.Option(min=1, max=10_000, help="Messages in a request.")]
Connections = Annotated[int, typer.Option(min=1, max=10_000, help="Requests in flight at once.")]
Payload = Annotated[int, typer.Option(min=8, max=16_000_000, help="Bytes of a message's payload.")]
Seconds = Annotated[float, typer.Option(min=0.1, max=86_400, help="How long to run, at most.")]
Shown = Annotated[
    Output | None,
    typer.Option("--output", "-o", help="Default: table on a terminal, json in a pipe.", show_default=False),
]


def _plan(broker: Flags, queue: str | None, keep: bool, seconds: float, output: Output | None) -> Plan:
    from queenstream.cli.bench.run import Plan

    if queue is not None and not 1 <= len(queue) <= 255:
        raise ConfigError("--queue must have 1 to 255 characters")
    if output is None:
        output = Output.table if sys.stdout.isatty() else Output.json
    context = resolved(broker)
    return Plan(parse_target(context.urls[0], context.token), queue, keep, seconds, output.value)


def _check_size(batch: int, payload: int) -> None:
    if batch * (payload + ITEM_BYTES) > MAX_BODY_BYTES:
        raise ConfigError(
            f"{batch} messages of {payload} bytes are more than a request may hold (64 MiB);"
            " use a smaller --batch or --payload"
        )


@app.command("produce", help=PRODUCE_HELP)
def produce(
    url: Url = None,
    token: Token = None,
    context: ContextName = None,
    queue: Queue = None,
    keep: Keep = False,
    partitions: Partitions = 100,
    batch: Batch = 100,
    connections: Connections = 50,
    payload: Payload = 200,
    seconds: Seconds = 10.0,
    rate: Annotated[float | None, typer.Option(min=0.1, help="Messages a second at most.")] = None,
    output: Shown = None,
) -> None:
    """Measure pushes."""
    _check_size(batch, payload)
    plan = _plan(Flags(url, token, context), queue, keep, seconds, output)
    from queenstream.cli.bench import load, run

    role = load.Push(connections, batch, partitions, payload=payload, rate=rate or 0.0)
    run.start(plan, "produce", role)


@app.command("consume", help=CONSUME_HELP)
def consume(
    url: Url = None,
    token: Token = None,
    context: ContextName = None,
    queue: Queue = None,
    keep: Keep = False,
    group: Annotated[str | None, typer.Option(help="Consumer group. Default: a fresh one.")] = None,
    batch: Batch = 100,
    connections: Connections = 8,
    auto_ack: Annotated[bool, typer.Option("--auto-ack", help="Acknowledge with the pop.")] = False,
    messages: Annotated[
        int, typer.Option(min=1, max=100_000_000, help="How many to fill a fresh queue with.")
    ] = 100_000,
    partitions: Annotated[int, typer.Option(min=1, max=1_000_000, help="Partitions of a fresh queue.")] = 100,
    payload: Annotated[int, typer.Option(min=8, max=600_000, help="Bytes of a payload in it.")] = 200,
    seconds: Seconds = 10.0,
    output: Shown = None,
) -> None:
    """Measure pops and acks."""
    if group is not None and not 1 <= len(group) <= 255:
        raise ConfigError("--group must have 1 to 255 characters")
    plan = _plan(Flags(url, token, context), queue, keep, seconds, output)
    from queenstream.cli.bench import load, run

    fill = load.Push(run.FILL_CONNECTIONS, run.FILL_BATCH, partitions, most=messages, payload=payload)
    role = load.Consume(connections, batch, group or "", auto_ack=auto_ack)
    run.start(plan, "consume", role, fill)


@app.command("e2e", help=E2E_HELP)
def e2e(
    url: Url = None,
    token: Token = None,
    context: ContextName = None,
    queue: Queue = None,
    keep: Keep = False,
    rate: Annotated[float, typer.Option(min=0.1, help="Messages a second.")] = 1000.0,
    partitions: Partitions = 100,
    connections: Annotated[int, typer.Option(min=1, max=10_000, help="Connections that send.")] = 32,
    consumers: Annotated[int, typer.Option(min=1, max=10_000, help="Long polls that wait.")] = 16,
    batch: Annotated[int, typer.Option(min=1, max=10_000, help="Messages that a pop takes at most.")] = 100,
    payload: Annotated[int, typer.Option(min=100, max=16_000_000, help="Bytes of a payload.")] = 200,
    seconds: Seconds = 10.0,
    output: Shown = None,
) -> None:
    """Measure the time from sending to arrival."""
    plan = _plan(Flags(url, token, context), queue, keep, seconds, output)
    from queenstream.cli.bench import end_to_end, run

    role = end_to_end.Latency(rate, consumers, connections, partitions, batch=batch, payload=payload)
    run.start(plan, "e2e", role)
