"""The routes that show streams: their windows, groups and late messages, and why a window does not come."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from queenstream.broker.api.messages import check_name
from queenstream.broker.api.queues import moment_or_none, pick
from queenstream.broker.auth.scope import FILTERED, STREAM_IN_PATH
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.schemas.streams import (
    AllWindows,
    Explained,
    ExplainQuery,
    LateInfo,
    LateList,
    LateQuery,
    MissedWindow,
    StreamDeleted,
    StreamDetail,
    StreamGroup,
    StreamGroupList,
    StreamInfo,
    StreamList,
    StreamSource,
    StreamStats,
    TimelineQuery,
    WindowCounts,
    WindowInfo,
    WindowList,
    WindowsQuery,
)
from queenstream.broker.streams.diagnose import explain as why
from queenstream.broker.streams.diagnose import moment
from queenstream.broker.streams.model import OWN, Stream
from queenstream.broker.streams.runner import read_streams
from queenstream.core import windows
from queenstream.errors import InvalidRequest, NotFound

routes = Routes("streams")

_FOR_A_GROUP = ("waiting", "leased", "done", "dead")
_ONE: dict[int, Any] = {400: ErrorBody, 404: ErrorBody}


def _name(call: Call) -> str:
    return check_name(call.params["stream"], "the stream's name")


async def find_stream(call: Call) -> Stream:
    """The stream that the path names, as it is now: any broker may have moved it."""
    name = _name(call)
    stream = (await read_streams(call.broker, name)).get(name)
    if stream is None:
        raise NotFound(f"there is no stream {name[:200]!r}; GET /api/v1/resources/streams lists them")
    return stream


def _at(us: int | None) -> datetime | None:
    return None if us is None else moment(us)


def _ms(us: int | None) -> int | None:
    return None if us is None else us // 1000


def _info(stream: Stream, counts: Any) -> dict[str, Any]:
    session = stream.window_type == "session"
    return {
        "id": str(stream.id),
        "name": stream.name,
        "namespace": stream.namespace,
        "partitioned": stream.partitioned,
        "window_type": stream.window_type,
        "window_duration_ms": None if session else _ms(stream.size_us),
        "window_slide_ms": _ms(stream.slide_us),
        "window_session_gap_ms": _ms(stream.size_us) if session else None,
        "window_size_count": stream.size_count,
        "window_slide_count": stream.slide_count,
        "window_grace_period_ms": _ms(stream.grace_us),
        "window_lease_timeout_ms": round(stream.lease_seconds * 1000),
        "event_time_path": stream.event_time_path,
        "idle_timeout_ms": _ms(stream.idle_timeout_us),
        "retry_limit": stream.retry_limit,
        "max_in_flight": stream.max_in_flight,
        "emit_empty": stream.emit_empty,
        "subscription_from": stream.subscription_from,
        "watermark": _at(stream.watermark_us),
        "sources": [
            StreamSource(source.name, _at(source.highest_us), source.idle, source.quiet_since)
            for source in stream.sources
        ],
        "windows": pick(WindowCounts, counts),
        "late": stream.late,
        "created_at": stream.created_at,
        "updated_at": stream.updated_at,
    }


async def _groups(call: Call, stream: Stream) -> list[StreamGroup]:
    database = call.broker.database
    rows = await database.admin("stream_groups", stream.id, None, None, database.now())
    return [pick(StreamGroup, row) for row in rows]


@routes.get(
    "/api/v1/resources/streams", scope=FILTERED, costly=True, role=Role.READ_ONLY, answers={200: StreamList}
)
async def list_streams(call: Call) -> Response:
    """List the streams, with how many windows they have."""
    database = call.broker.database
    streams = await read_streams(call.broker)
    counts = {row["id"]: row for row in await database.admin("stream_counts", None, database.now())}
    # One that was made or deleted between the two is not shown.
    scope = call.request.scope
    shown = [
        stream
        for stream in streams.values()
        if stream.id in counts and (scope is None or await scope.covers(call.broker, stream.queue))
    ]
    return reply(StreamList([StreamInfo(**_info(stream, counts[stream.id])) for stream in shown]))


@routes.get("/api/v1/resources/streams/stats", costly=True, role=Role.READ_ONLY, answers={200: StreamStats})
async def show_stats(call: Call) -> Response:
    """Show what all streams come to."""
    database = call.broker.database
    streams = await read_streams(call.broker)
    counts = await database.admin("stream_counts", None, database.now())
    leased = (await database.admin("count_leased_windows", database.now()))[0]["leased"]
    return reply(
        StreamStats(
            len(streams),
            AllWindows(
                sum(row["open"] + row["ripe"] for row in counts),
                sum(row["closed"] for row in counts),
                leased,
                sum(stream.late for stream in streams.values()),
            ),
            sum(row["messages"] for row in counts),
        )
    )


@routes.get(
    "/api/v1/resources/streams/{stream}",
    scope=STREAM_IN_PATH,
    costly=True,
    role=Role.READ_ONLY,
    answers={200: StreamDetail, **_ONE},
)
async def show_stream(call: Call) -> Response:
    """Show one stream: its definition, sources, windows and groups."""
    stream = await find_stream(call)
    database = call.broker.database
    counts = await database.admin("stream_counts", stream.id, database.now())
    if not counts:
        raise NotFound(f"stream {stream.name!r} has just been deleted")
    return reply(StreamDetail(**_info(stream, counts[0]), groups=await _groups(call, stream)))


@routes.get(
    "/api/v1/resources/streams/{stream}/consumers",
    expensive=True,
    scope=STREAM_IN_PATH,
    role=Role.READ_ONLY,
    answers={200: StreamGroupList, **_ONE},
)
async def list_consumers(call: Call) -> Response:
    """List the groups of a stream, with how far behind they are."""
    return reply(StreamGroupList(await _groups(call, await find_stream(call))))


@routes.get(
    "/api/v1/resources/streams/{stream}/windows",
    expensive=True,
    scope=STREAM_IN_PATH,
    role=Role.READ_ONLY,
    query=WindowsQuery,
    answers={200: WindowList, **_ONE},
)
async def list_windows(call: Call) -> Response:
    """List windows of a stream, those made last first, with what each is to a group."""
    query: WindowsQuery = call.query
    group = query.consumer_group or None
    if group is None and query.state in _FOR_A_GROUP:
        raise InvalidRequest(f"a window is {query.state} for a group: name it with consumerGroup")
    stream = await find_stream(call)
    database = call.broker.database
    rows = await database.admin(
        "stream_windows", stream.id, group, [query.key] if query.key else None, query.state, query.limit,
        database.now(), *span_of(query), None,
    )  # fmt: skip
    return reply(WindowList([shown_window(stream, row) for row in rows]))


def span_of(query: WindowsQuery | TimelineQuery) -> tuple[int | None, int | None]:
    """From and to of a query, as windows count time."""
    start, end = moment_or_none(query.from_, "from"), moment_or_none(query.to, "to")
    return None if start is None else windows.to_us(start), None if end is None else windows.to_us(end)


def shown_window(stream: Stream, row: Any) -> WindowInfo:
    if stream.window_type == "count":
        start, end = row["first_at"], row["last_at"] and row["last_at"] + timedelta(microseconds=1)
    else:
        start, end = moment(row["start_us"]), moment(row["end_us"])
    number = stream.window_id(row["key"], row["start_us"], row["end_us"])
    shown: WindowInfo = pick(WindowInfo, {**row, "id": number}, start=start, end=end)
    return shown


@routes.get(
    "/api/v1/resources/streams/{stream}/late",
    expensive=True,
    scope=STREAM_IN_PATH,
    role=Role.READ_ONLY,
    query=LateQuery,
    answers={200: LateList, **_ONE},
)
async def list_late(call: Call) -> Response:
    """List the messages that no window took, the newest first."""
    query: LateQuery = call.query
    stream = await find_stream(call)
    database = call.broker.database
    rows = await database.admin("late_messages", stream.id, query.key or None, query.limit)
    return reply(LateList([_late(row) for row in rows], rows[0]["total"] if rows else 0))


def _late(row: Any) -> LateInfo:
    missed = None if row["end_us"] is None else MissedWindow(moment(row["start_us"]), moment(row["end_us"]))
    lateness = None if row["lateness_us"] is None else row["lateness_us"] / 1000
    shown: LateInfo = pick(
        LateInfo, row, event_time=_at(row["event_us"]), window=missed, lateness_ms=lateness
    )
    return shown


@routes.get(
    "/api/v1/resources/streams/{stream}/explain",
    expensive=True,
    scope=STREAM_IN_PATH,
    role=Role.READ_ONLY,
    query=ExplainQuery,
    answers={200: Explained, **_ONE},
)
async def explain(call: Call) -> Response:
    """Say why a group gets no window, gets one again, or misses messages, and what to do."""
    query: ExplainQuery = call.query
    stream = await find_stream(call)
    return reply(await why(call.broker, stream, query.consumer_group or None, query.key or None))


@routes.delete(
    "/api/v1/resources/streams/{stream}",
    scope=STREAM_IN_PATH,
    role=Role.ADMIN,
    answers={200: StreamDeleted, 400: ErrorBody},
)
async def delete_stream(call: Call) -> Response:
    """Delete a stream with its windows, groups and dead letters; its sources stay as they are."""
    name = _name(call)
    broker = call.broker
    existed = (await broker.database.admin("delete_stream", name))[0]["existed"]
    broker.directory.drop(OWN + name)
    await broker.streams.load()
    broker.notices.settings()
    return reply(StreamDeleted(existed, name, existed))
