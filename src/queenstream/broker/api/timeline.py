"""The routes for looking into streams: windows of keys on a time line, and one window with what is in it."""

from __future__ import annotations

from typing import Any

from msgspec import Raw

from queenstream.broker.api.history import readable
from queenstream.broker.api.queues import pick
from queenstream.broker.api.search import MOST_BYTES
from queenstream.broker.api.stream_views import find_stream, shown_window, span_of
from queenstream.broker.auth.scope import STREAM_IN_PATH
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.schemas.streams import (
    KeyTimeline,
    LateWindow,
    Timeline,
    TimelineQuery,
    WindowContent,
    WindowDetail,
    WindowInfo,
    WindowQuery,
)
from queenstream.broker.streams.diagnose import explain, moment
from queenstream.broker.streams.model import Stream
from queenstream.core import windows
from queenstream.errors import NotFound

routes = Routes("streams")


@routes.get(
    "/api/v1/resources/streams/{stream}/timeline",
    expensive=True,
    scope=STREAM_IN_PATH,
    role=Role.READ_ONLY,
    query=TimelineQuery,
    answers={200: Timeline, 400: ErrorBody, 404: ErrorBody},
)
async def show_timeline(call: Call) -> Response:
    """Show the windows of some keys, by key, with what came too late; to draw a time line."""
    query: TimelineQuery = call.query
    span = span_of(query)
    stream = await find_stream(call)
    database = call.broker.database
    keys, following = await _keys(call, stream)
    found = {key: KeyTimeline(key, [], []) for key in keys}
    rows = await database.admin(
        "stream_windows", stream.id, query.consumer_group or None, keys, None, query.limit + 1,
        database.now(), *span, None,
    )  # fmt: skip
    for row in rows[: query.limit]:
        found[row["key"]].windows.append(shown_window(stream, row))
    for row in await database.admin("late_by_window", stream.id, keys, *span):
        late = LateWindow(moment(row["start_us"]), moment(row["end_us"]), row["messages"])
        found[row["key"]].late.append(late)
    [clock] = await database.admin("moment", database.now())
    watermark = None if stream.watermark_us is None else moment(stream.watermark_us)
    complete = len(rows) <= query.limit
    return reply(Timeline(stream.name, clock["now"], watermark, list(found.values()), complete, following))


async def _keys(call: Call, stream: Stream) -> tuple[list[str], str | None]:
    """The keys asked for, and the last of them if there are more."""
    query: TimelineQuery = call.query
    if query.key:
        return [query.key], None
    rows = await call.broker.database.admin(
        "keys_of_windows", stream.id, query.after or None, query.prefix or None, query.keys + 1
    )
    keys = [row["key"] for row in rows[: query.keys]]
    return keys, keys[-1] if len(rows) > query.keys else None


@routes.get(
    "/api/v1/resources/streams/{stream}/windows/{window}",
    expensive=True,
    scope=STREAM_IN_PATH,
    role=Role.READ_ONLY,
    query=WindowQuery,
    answers={200: WindowDetail, 400: ErrorBody, 404: ErrorBody},
)
async def show_window(call: Call) -> Response:
    """Show one window: its state to a group, its messages, and why it has not come yet."""
    query: WindowQuery = call.query
    stream = await find_stream(call)
    database = call.broker.database
    group = query.consumer_group or None
    number, window = await _find_window(call, stream, group)
    after_at = after_id = None
    if query.after:
        at, _, last = query.after.partition("-")
        after_at, after_id = moment(int(at)), int(last)
    rows = await database.admin("window_page", number, after_at, after_id, query.limit + 1, MOST_BYTES)
    shown = rows[: query.limit]
    following = None
    if len(rows) > query.limit:
        following = f"{windows.to_us(shown[-1]['created_at'])}-{shown[-1]['id']}"
    why = await explain(call.broker, stream, group, window.key)
    content = [_content(call, row) for row in shown]
    return reply(WindowDetail(window, content, following, why.reasons))


async def _find_window(call: Call, stream: Stream, group: str | None) -> tuple[int, WindowInfo]:
    """The window that the path names: its row's id, and how it is shown."""
    name, database = call.params["window"], call.broker.database
    place = stream.parse_window_id(name)
    found = [] if place is None else await database.admin("window_by_span", stream.id, *place)
    if place is not None and found:
        number: int = found[0]["id"]
        # The newest of its key that is older than the next number is it.
        rows = await database.admin(
            "stream_windows", stream.id, group, [place[0]], None, 1, database.now(), None, None, number + 1
        )
        if rows and rows[0]["id"] == number:
            return number, shown_window(stream, rows[0])
    raise NotFound(
        f"stream {stream.name} has no window {name[:200]!r}; it may be forgotten by now. "
        "GET …/windows lists those there are."
    )


def _content(call: Call, row: Any) -> WindowContent:
    left_out = row["payload"] is None
    data, encrypted = (Raw(b"null"), False) if left_out else readable(call.broker, row)
    made: WindowContent = pick(WindowContent, row, data=data, left_out=left_out)
    if encrypted:
        made.encrypted = encrypted
    return made
