"""``queen stream``: windows over queues, to define, look at and consume."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queenstream.cli.support import moments
from queenstream.cli.support.completion import queue_names, stream_names
from queenstream.cli.support.confirm import DryRun, Yes, confirm
from queenstream.cli.support.connection import connected
from queenstream.cli.support.help import help_text
from queenstream.cli.support.output import (
    Column,
    Output,
    Printer,
    amount,
    clock,
    count,
    milliseconds,
    number,
    since,
    text,
    visible,
    write,
    yes_no,
)
from queenstream.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from queenstream import Queen, Window
    from queenstream.client._base.responses.streams import WindowState
    from queenstream.client._sync.stream import Stream, WindowedStream

app = typer.Typer(
    help=help_text(
        "Streams: windows over queues, to define, watch and consume.",
        "queen stream define sales --source orders --tumbling 1m --partitioned",
        "queen stream consume sales --group billing",
        "queen stream explain sales --group billing",
    ),
    no_args_is_help=True,
)

StreamName = Annotated[str, typer.Argument(metavar="STREAM", help="The stream.", autocompletion=stream_names)]
GroupOfStream = Annotated[str, typer.Option("--group", help="The consumer group.")]
GroupOrNone = Annotated[str | None, typer.Option("--group", metavar="GROUP", help="For this consumer group.")]
Key = Annotated[str | None, typer.Option(metavar="KEY", help="Only of this key (partition name).")]


class State(StrEnum):
    """What a window can be."""

    OPEN = "open"
    RIPE = "ripe"
    CLOSED = "closed"
    WAITING = "waiting"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"


def _window_of(stream: Any) -> str:
    """The definition of a stream's windows, in a few words.

    >>> _window_of({"window_type": "sliding", "window_duration_ms": 600_000, "window_slide_ms": 60_000})
    'sliding 10m every 1m'
    """
    kind = stream["window_type"]
    if kind == "count":
        size, slide = count(stream["window_size_count"]), stream.get("window_slide_count")
        return f"count {size}" + (f" every {count(slide)}" if slide else "")
    size = milliseconds(stream.get("window_session_gap_ms") or stream.get("window_duration_ms"))
    slide = stream.get("window_slide_ms")
    return f"{kind} {size}" + (f" every {milliseconds(slide)}" if slide else "")


def _queues_of(sources: Any) -> str:
    return ", ".join(source["queue"] for source in sources)


_LIST = (
    Column("STREAM", "name"),
    Column("NAMESPACE", "namespace"),
    Column("WINDOW", "", _window_of),
    Column("BY KEY", "partitioned", yes_no),
    Column("SOURCES", "sources", _queues_of, cut=True),
    number("OPEN", "windows.open"),
    number("CLOSED", "windows.closed"),
    number("LATE", "late", alarm="yellow"),
)
_FIELDS = (
    Column("stream", "name"),
    Column("namespace", "namespace"),
    Column("window", "", _window_of),
    Column("by key", "partitioned", yes_no),
    Column("grace", "window_grace_period_ms", milliseconds),
    Column("lease", "window_lease_timeout_ms", milliseconds),
    Column("event time", "event_time_path", lambda path: text(path or "created_at")),
    Column("watermark", "watermark", clock),
    Column("retry limit", "retry_limit", count),
    Column("in flight", "max_in_flight", count),
    Column("open windows", "windows.open", count),
    Column("closed windows", "windows.closed", count),
    Column("late messages", "late", count, style=lambda value: "yellow" if value else ""),
    Column("created", "createdAt", since),
)
_SOURCES = (
    Column("QUEUE", "queue"),
    Column("HIGHEST EVENT TIME", "highestEventTime", clock),
    Column("IDLE", "idle", yes_no),
)
_GROUPS = (
    Column("GROUP", "consumerGroup"),
    number("LAG", "lag"),
    number("LEASED", "leased"),
    number("DONE", "done"),
    number("DEAD", "dead", alarm="red"),
    Column("LAST ACK", "lastAckAt", since),
)
_WINDOWS = (
    Column("KEY", "key", style="cyan"),
    Column("START", "start", clock),
    Column("END", "end", clock),
    Column("STATE", "state"),
    number("MESSAGES", "messages"),
    Column("ATTEMPT", "attempt", text, right=True),
    Column("ERROR", "error", style="red", cut=True),
)
_LATE = (
    Column("NOTED", "notedAt", since),
    Column("KEY", "key", style="cyan"),
    Column("EVENT TIME", "eventTime", clock),
    Column("LATE BY", "latenessMs", milliseconds, right=True),
    Column("MISSED WINDOW", "window.start", clock),
    Column("REASON", "reason", cut=True),
)
_CONSUMED = (
    Column("KEY", "key", style="cyan"),
    Column("START", "start", clock),
    Column("END", "end", clock),
    Column("MESSAGES", "messages", lambda messages: count(len(messages)), right=True),
    Column(
        "ATTEMPT", "attempt", lambda attempt: "" if attempt == 1 else f"attempt {attempt}", style="yellow"
    ),
)


@app.command(
    "ls",
    help=help_text("List the streams.", "queen stream ls", "queen stream ls | jq .name"),
)
@connected
def ls(queen: Queen, output: Output = None) -> None:
    """List streams."""
    found = queen.admin.streams()
    Printer(output).rows(found, _LIST, empty="no streams; make one with `queen stream define`")


@app.command(
    "show",
    help=help_text(
        "Show one stream: its definition, sources and groups.",
        "queen stream show sales",
        "queen stream show sales -o yaml",
    ),
)
@connected
def show(queen: Queen, stream: StreamName, output: Output = None) -> None:
    """Show a stream."""
    found = queen.admin.stream(stream)
    Printer(output).record(found, _FIELDS, [("sources", _SOURCES), ("groups", _GROUPS)])


@app.command(
    "define",
    help=help_text(
        "Define a stream: windows over one or more queues.",
        "queen stream define sales --source orders --tumbling 1m --partitioned",
        "queen stream define load --source a --source b --sliding 10m --slide 1m",
        "queen stream define visits --source web --session 30m --event-time data.ts",
        "queen stream define batches --source jobs --count 100",
        more="The same definition again changes nothing. One with other windows is refused, unless --reset "
        "throws the progress of all groups away.",
    ),
)
@connected
def define(
    queen: Queen,
    stream: StreamName,
    source: Annotated[
        list[str],
        typer.Option(metavar="QUEUE", help="A queue to read; may be repeated.", autocompletion=queue_names),
    ],
    tumbling: Annotated[str | None, typer.Option(metavar="SIZE", help="One after the other: 1m.")] = None,
    sliding: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Overlapping: 10m; with --slide.")
    ] = None,
    slide: Annotated[
        str | None, typer.Option(metavar="STEP", help="Of --sliding: 1m; of --count: 10.")
    ] = None,
    session: Annotated[str | None, typer.Option(metavar="GAP", help="Until nothing comes for: 30s.")] = None,
    count: Annotated[int | None, typer.Option(min=1, metavar="N", help="So many messages.")] = None,
    namespace: Annotated[str | None, typer.Option(metavar="NAME", help="Its namespace.")] = None,
    partitioned: Annotated[
        bool, typer.Option("--partitioned", help="Windows for each partition name, not one for all.")
    ] = False,
    grace: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION", help="How long after its end a window takes messages. Default: 30s."
        ),
    ] = None,
    lease: Annotated[
        str | None, typer.Option(metavar="DURATION", help="How long a consumer has. Default: 60s.")
    ] = None,
    event_time: Annotated[
        str | None, typer.Option(metavar="PATH", help="Go by this field of the payload: data.ts.")
    ] = None,
    idle_timeout: Annotated[
        str | None,
        typer.Option(metavar="DURATION", help="With event time: when a quiet source holds nothing back."),
    ] = None,
    retry_limit: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Failures before the dead letters.")
    ] = None,
    max_in_flight: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Windows of a key out at once.")
    ] = None,
    emit_empty: Annotated[bool, typer.Option("--emit-empty", help="Also windows without messages.")] = False,
    start: Annotated[
        str | None, typer.Option("--from", metavar="MOMENT", help="Where new groups start.")
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Throw away what there is, and start over.")] = False,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Define a stream."""
    chain: Any = queen.stream(stream, namespace).sources(source).partitioned(partitioned)
    chain = _windowed(chain, tumbling, sliding, slide, session, count).emit_empty(emit_empty)
    said = {
        "grace_period": grace, "lease_timeout": lease, "event_time": event_time,
        "idle_timeout": idle_timeout, "retry_limit": retry_limit, "max_in_flight": max_in_flight,
        "subscription_from": None if start is None else _moment(start),
    }  # fmt: skip
    for word, value in said.items():
        if value is not None:
            chain = getattr(chain, word)(value)
    if reset:
        confirm(f"Define stream {stream} anew and lose the progress of all its groups?", yes=yes)
    number = chain.define(reset=reset)
    Printer(output).done({"stream_id": number, "name": stream}, f"stream {stream} is defined")


def _windowed(
    chain: Stream,
    tumbling: str | None,
    sliding: str | None,
    slide: str | None,
    session: str | None,
    count: int | None,
) -> WindowedStream:
    """The chain with the one kind of window that was asked for."""
    if sum(kind is not None for kind in (tumbling, sliding, session, count)) != 1:
        raise ConfigError("say which windows: one of --tumbling, --sliding, --session and --count")
    if slide is not None and (tumbling is not None or session is not None):
        raise ConfigError("--slide belongs to --sliding or --count; leave it out")
    if tumbling is not None:
        return chain.tumbling_time(tumbling)
    if session is not None:
        return chain.session_gap(session)
    if count is not None:
        if slide is not None and not slide.isdigit():
            raise ConfigError(f"--slide {slide}: with --count it is a number of messages, such as 10")
        return chain.count(count, None if slide is None else int(slide))
    if sliding is None or slide is None:
        raise ConfigError("--sliding needs --slide: how far apart the windows start, such as 1m")
    return chain.sliding_time(sliding, slide)


def _moment(written: str) -> datetime:
    """A time for streams; the beginning is the first time there is."""
    return moments.parse_time(written, datetime.now(UTC)) or datetime(1970, 1, 1, tzinfo=UTC)


@app.command(
    "seek",
    help=help_text(
        "Move a group to the windows from a moment on.",
        "queen stream seek sales --group billing --to '1 hour ago' --dry-run",
        "queen stream seek sales --group billing --to beginning --yes",
        more="Windows come again as they were, with the same messages. Leases that are out become void.",
    ),
)
@connected
def seek(
    queen: Queen,
    stream: StreamName,
    group: GroupOfStream,
    to: Annotated[str, typer.Option(metavar="MOMENT", help="Where to: '1 hour ago', beginning, end …")],
    dry_run: DryRun = False,
    yes: Yes = False,
    output: Output = None,
) -> None:
    """Move a group of a stream."""
    target = _moment(to)
    found = next((one for one in queen.admin.stream_groups(stream) if one.consumer_group == group), None)
    lag = "which is new" if found is None else f"which is {amount(found.lag, 'window')} behind"
    out = Printer(output)
    answer = {"stream": stream, "consumerGroup": group, "timestamp": target, "dryRun": dry_run}
    if dry_run:
        out.done(answer, f"group {group}, {lag}, would move to the windows from {clock(target)} on")
        return
    confirm(f"Move group {group}, {lag}, to the windows from {clock(target)} on?", yes=yes)
    queen.stream(stream).seek(group, target)
    out.done(answer, f"moved group {group} to the windows from {clock(target)} on")


@app.command(
    "windows",
    help=help_text(
        "List windows, the newest first, and what each is to a group.",
        "queen stream windows sales",
        "queen stream windows sales --group billing --state leased",
        "queen stream windows sales --key ann -n 5",
    ),
)
@connected
def windows(
    queen: Queen,
    stream: StreamName,
    group: GroupOrNone = None,
    key: Key = None,
    state: Annotated[State | None, typer.Option(help="Only in this state.", show_default=False)] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, metavar="N", help="At most so many.")
    ] = 100,
    output: Output = None,
) -> None:
    """List windows."""
    wanted: WindowState | None = None if state is None else state.value
    found = queen.admin.stream_windows(stream, group=group, key=key, state=wanted, limit=limit)
    Printer(output).rows(found, _WINDOWS, empty="no such windows")


@app.command(
    "late",
    help=help_text(
        "List the messages that came too late for every window.",
        "queen stream late visits",
        "queen stream late visits --key ann | jq .reason",
    ),
)
@connected
def late(
    queen: Queen,
    stream: StreamName,
    key: Key = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, max=1000, metavar="N", help="At most so many.")
    ] = 100,
    output: Output = None,
) -> None:
    """List late messages."""
    found = queen.admin.stream_late(stream, key=key, limit=limit)
    Printer(output).rows(found, _LATE, empty="no message came too late")


@app.command(
    "explain",
    help=help_text(
        "Say why no window comes, or one comes again, and what to do.",
        "queen stream explain sales",
        "queen stream explain sales --group billing --key ann",
    ),
)
@connected
def explain(
    queen: Queen, stream: StreamName, group: GroupOrNone = None, key: Key = None, output: Output = None
) -> None:
    """Say why."""
    found = queen.admin.explain_stream(stream, group=group, key=key)
    out = Printer(output)
    if not out.for_people:
        out.record(found, ())
        return
    for reason in found.reasons:
        write(f"{visible(reason.message)}\n" + (f"  do: {visible(reason.remedy)}\n" if reason.remedy else ""))


@app.command(
    "consume",
    help=help_text(
        "Take windows one by one, print and acknowledge them.",
        "queen stream consume sales --group billing",
        "queen stream consume sales --group billing -n 1 | jq '.messages[].data'",
        "queen stream consume sales --group test --idle-timeout 10s",
        more="A window is acknowledged after it was printed; one that could not be printed comes again.",
    ),
)
@connected
def consume(
    queen: Queen,
    stream: StreamName,
    group: GroupOfStream,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", min=1, metavar="N", help="End after so many.")
    ] = None,
    idle_timeout: Annotated[
        str | None, typer.Option(metavar="DURATION", help="End when none has come for so long: 10s.")
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="MOMENT", help="Where the group starts if it is new.")
    ] = None,
    output: Output = None,
) -> None:
    """Consume windows."""
    queen.admin.stream(stream)  # one that does not exist is said at once
    begin = None if start is None else _moment(start)
    out = Printer(output)
    consumer = queen.consumer(stream, group, subscription_from=begin)
    for window in consumer.windows(limit=limit, idle_timeout=idle_timeout):
        out.line(_public(window), _CONSUMED)


def _public(window: Window[Any]) -> dict[str, Any]:
    """A window as it is printed."""
    return {
        "id": window.id,
        "key": window.key,
        "start": window.start,
        "end": window.end,
        "attempt": window.attempt,
        "complete": window.complete,
        "messages": window.all_messages,
    }


@app.command(
    "delete",
    help=help_text(
        "Delete a stream with its windows and groups; its sources stay.",
        "queen stream delete sales",
        "queen stream delete sales --yes",
    ),
)
@connected
def delete(queen: Queen, stream: StreamName, yes: Yes = False, output: Output = None) -> None:
    """Delete a stream."""
    found = queen.admin.stream(stream)
    confirm(f"Delete stream {stream} with {amount(found.windows.closed, 'closed window')}?", yes=yes)
    gone = queen.admin.delete_stream(stream)
    if not gone.existed:
        raise NotFound(f"there is no stream {stream} any more")
    Printer(output).done(gone, f"deleted stream {stream}")
