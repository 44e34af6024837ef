"""Define a stream: check it, make its queue and its groups in the sources, or take over what may change."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from queenstream.broker.messaging.catalog import too_many_groups
from queenstream.broker.schemas.streams import DefineBody
from queenstream.broker.storage import sql
from queenstream.broker.streams.model import OWN, definition_of
from queenstream.core import paths
from queenstream.core.windows import Sliding
from queenstream.errors import ConfigError, Conflict, InvalidRequest

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

MOST_OVERLAP = 1000  # windows that one message may be in

# What makes the windows: with another value they would not be the same ones.
_FIXED = (
    "partitioned",
    "window_type",
    "size_us",
    "slide_us",
    "size_count",
    "slide_count",
    "event_time_path",
    "max_in_flight",
)
_FREE = (
    "namespace",
    "grace_us",
    "lease_seconds",
    "retry_limit",
    "idle_timeout_us",
    "emit_empty",
    "subscription_from",
)


def checked(body: DefineBody, since: datetime | None) -> dict[str, Any]:
    """The columns of a stream; InvalidRequest, with the remedy, for one that cannot be."""
    if len(set(body.source_queue_names)) < len(body.source_queue_names):
        raise InvalidRequest("a source is named twice; name each queue once")
    for name in body.source_queue_names:
        if name.startswith(OWN):
            raise InvalidRequest(f"{name[:200]!r} holds a stream's windows; name ordinary queues as sources")
    count = body.window_type == "count"
    size = body.window_session_gap_ms if body.window_type == "session" else body.window_duration_ms
    numbers: dict[str, int | None] = {
        "size_us": None if count or size is None else size * 1000,
        "slide_us": None,
        "size_count": body.window_size_count if count else None,
        "slide_count": body.window_slide_count if count else None,
    }
    if body.window_type == "sliding" and body.window_slide_ms is not None:
        numbers["slide_us"] = body.window_slide_ms * 1000
    wanted = {
        "tumbling": "window_duration_ms",
        "sliding": "window_duration_ms and window_slide_ms",
        "session": "window_session_gap_ms",
        "count": "window_size_count",
    }[body.window_type]
    try:
        windows = definition_of(body.window_type, **numbers)
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"a {body.window_type} window needs {wanted}: {error}") from None
    overlap = 1
    if isinstance(windows, Sliding):
        overlap = windows.size_us // windows.slide_us
    elif count and numbers["slide_count"]:
        overlap = (numbers["size_count"] or 0) // numbers["slide_count"]
    if overlap > MOST_OVERLAP:
        raise InvalidRequest(
            f"each message would be in {overlap} windows; make the slide larger, for {MOST_OVERLAP} at most"
        )
    if body.idle_timeout_ms is not None and body.event_time_path is None:
        raise InvalidRequest("idle_timeout_ms is for event time; name event_time_path, or leave it out")
    if body.event_time_path is not None:
        try:
            paths.segments(body.event_time_path)
        except ConfigError as error:
            raise InvalidRequest(f"event_time_path: {error}") from None
    if body.emit_empty and body.window_type not in ("tumbling", "sliding"):
        raise InvalidRequest("emit_empty is for tumbling and sliding windows; leave it out")
    return {
        **numbers,
        "namespace": body.namespace or "",
        "partitioned": body.partitioned,
        "window_type": body.window_type,
        "grace_us": body.window_grace_period_ms * 1000,
        "lease_seconds": body.window_lease_timeout_ms / 1000,
        "retry_limit": body.retry_limit,
        "max_in_flight": body.max_in_flight,
        "event_time_path": body.event_time_path,
        "idle_timeout_us": None if body.idle_timeout_ms is None else body.idle_timeout_ms * 1000,
        "emit_empty": body.emit_empty,
        "subscription_from": since,
    }


async def define(broker: Broker, body: DefineBody, since: datetime | None) -> int:
    """Make the stream or bring it up to date; its id."""
    columns = checked(body, since)

    async def work(connection: Any) -> int:
        await connection.execute("select pg_advisory_xact_lock(72006, 0)")  # one definition at a time
        found = await connection.fetch(
            "select id, name from queen.queues where name = any($1) and stream_id is null",
            body.source_queue_names,
        )
        sources = {row["name"]: row["id"] for row in found}
        missing = [name for name in body.source_queue_names if name not in sources]
        if missing:
            raise InvalidRequest(f"there is no queue {missing[0]!r}; configure it or push into it first")
        row = await connection.fetchrow("select * from queen.streams where name = $1", body.name)
        changed = [] if row is None else [name for name in _FIXED if row[name] != columns[name]]
        if row is not None and changed and not body.reset and await _has_progress(connection, row["id"]):
            raise Conflict(
                f"stream {body.name!r} has windows already, and {', '.join(changed)} would change them; "
                "send reset: true to start over, or define a stream of another name"
            )
        if row is not None and (changed or body.reset):
            await connection.execute(sql.bind("select queen.delete_stream($1)"), body.name)
            row = None
        stream_id: int = await _create(connection, body.name, columns) if row is None else row["id"]
        if row is not None:
            await connection.execute("select pg_advisory_xact_lock(72006, $1)", stream_id)
            await _update(connection, stream_id, columns)
        await _link(broker, connection, stream_id, sources)
        return stream_id

    return await broker.database.transaction(work)


async def _has_progress(connection: Any, stream_id: int) -> bool:
    found: bool = await connection.fetchval(
        "select exists (select from queen.windows where stream_id = $1)", stream_id
    )
    return found


async def _create(connection: Any, name: str, columns: dict[str, Any]) -> int:
    queue_id = await connection.fetchval(
        "insert into queen.queues (name, retry_delay_ms, dead_letter_queue, lease_time_seconds, retry_limit, "
        "lanes) values ($1, 0, true, $2, $3, $4) returning id",
        OWN + name,
        _whole_seconds(columns["lease_seconds"]),
        columns["retry_limit"],
        columns["max_in_flight"],
    )
    names = ", ".join(columns)
    places = ", ".join(f"${number}" for number in range(3, 3 + len(columns)))
    stream_id: int = await connection.fetchval(
        f"insert into queen.streams (name, queue_id, {names}) values ($1, $2, {places}) returning id",  # noqa: S608
        name,
        queue_id,
        *columns.values(),
    )
    await connection.execute("update queen.queues set stream_id = $1 where id = $2", stream_id, queue_id)
    return stream_id


async def _update(connection: Any, stream_id: int, columns: dict[str, Any]) -> None:
    values = ", ".join(f"{name} = ${number}" for number, name in enumerate(_FREE, 2))
    await connection.execute(
        f"update queen.streams set {values}, updated_at = clock_timestamp() where id = $1",  # noqa: S608
        stream_id,
        *(columns[name] for name in _FREE),
    )
    await connection.execute(
        "update queen.queues set lease_time_seconds = $2, retry_limit = $3, version = version + 1 "
        "where stream_id = $1 and (lease_time_seconds, retry_limit) <> ($2, $3)",
        stream_id,
        _whole_seconds(columns["lease_seconds"]),
        columns["retry_limit"],
    )


async def _link(broker: Broker, connection: Any, stream_id: int, sources: dict[str, int]) -> None:
    """Make the stream a group of each of its sources, and of no other queue."""
    wanted = {queue_id: name for name, queue_id in sources.items()}
    rows = await connection.fetch("select queue_id from queen.stream_sources where stream_id = $1", stream_id)
    known = {row["queue_id"] for row in rows}
    for queue_id in sorted(known - wanted.keys()):
        await connection.execute(sql.bind("select queen.drop_source($1, $2)"), stream_id, queue_id)
    for queue_id in sorted(wanted.keys() - known):
        most = broker.settings.max_groups
        [row] = await connection.fetch(sql.QUERIES["group_exists"], most, queue_id, f"{OWN}{stream_id}")
        if row["n"] >= most:
            raise too_many_groups(wanted[queue_id], most)
        group = await connection.fetchval(
            sql.bind("select queen.ensure_group($1, $2, 'all', null, null, null, $3)"),
            queue_id,
            f"{OWN}{stream_id}",
            stream_id,
        )
        await connection.execute(
            "insert into queen.stream_sources (stream_id, queue_id, group_id) values ($1, $2, $3)",
            stream_id,
            queue_id,
            group,
        )


def _whole_seconds(seconds: float) -> int:
    """A queue's lease is in whole seconds: rather longer than shorter."""
    return max(1, -int(-seconds // 1))
