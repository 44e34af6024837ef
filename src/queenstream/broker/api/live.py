"""The routes that show what goes on: the figures of each second, and how far groups are behind over time."""

from __future__ import annotations

from queenstream.broker.api.messages import check_name
from queenstream.broker.api.queues import find_partition, unknown_queue
from queenstream.broker.auth.scope import QUEUE_IN_QUERY
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.schemas.live import (
    EventStream,
    HistoryQuery,
    LagHistory,
    LagQuery,
    LagSeries,
    LiveFigures,
    LiveHistory,
)
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.streams.model import refuse_own
from queenstream.errors import InvalidRequest, NotFound

routes = Routes("live")

MOST_QUEUES = 20  # of a group, if none is named
_HEADERS = (("Cache-Control", "no-store"), ("X-Accel-Buffering", "no"))


@routes.get("/api/v1/events", role=Role.READ_ONLY, answers={200: EventStream})
async def events(call: Call) -> Response:
    """Send the figures of this broker once a second, as server-sent events; max_wait ends them."""
    # It ends now and then, and the next one comes with a token that holds.
    request = call.request
    listener = call.broker.live_figures.listen(call.broker.settings.max_wait, request.caller)
    return Response(200, b"", EventStream.media_type, _HEADERS, chunks=listener)


@routes.get("/api/v1/live", role=Role.READ_ONLY, answers={200: LiveFigures})
async def show_live(call: Call) -> Response:
    """Show the same figures once."""
    return reply(await call.broker.live_figures.figures())


@routes.get(
    "/api/v1/live/history",
    role=Role.READ_ONLY,
    query=HistoryQuery,
    answers={200: LiveHistory, 400: ErrorBody},
)
async def show_live_history(call: Call) -> Response:
    """Show what the figures of this broker were in the last minutes."""
    query: HistoryQuery = call.query
    return reply(LiveHistory(str(call.broker.id), call.broker.live_figures.since(query.minutes)))


@routes.get(
    "/api/v1/consumer-groups/{group}/lag",
    scope=QUEUE_IN_QUERY,
    role=Role.READ_ONLY,
    query=LagQuery,
    answers={200: LagHistory, 400: ErrorBody, 404: ErrorBody},
)
async def show_lag(call: Call) -> Response:
    """Show how far a group was behind over time, by queue or in one partition; kept from now on."""
    query: LagQuery = call.query
    name = check_name(call.params["group"], "the consumer group's name")
    refuse_own([name])
    queues = await _queues(call, name)
    partition = query.partition or None
    lags = call.broker.lags
    watched = {queue: lags.watch(name, queue, partition) for queue in queues}
    if any(not each.points for each in watched.values()):
        await lags.first()
    series = [LagSeries(queue, partition, list(each.points)) for queue, each in watched.items()]
    return reply(LagHistory(name, str(call.broker.id), round(lags.every_seconds, 1), series))


async def _queues(call: Call, group: str) -> list[str]:
    """Those of the group that were asked for."""
    query: LagQuery = call.query
    broker, wanted = call.broker, query.queue or None
    if wanted is None and query.partition:
        raise InvalidRequest("a partition is one of a queue: name it with queue")
    rows = await broker.database.admin("queues_of_group", group, wanted, MOST_QUEUES)
    if not rows:
        raise NotFound(
            f"there is no consumer group {group}{f' of queue {wanted}' if wanted else ''}; "
            "GET /api/v1/consumer-groups lists them"
        )
    if wanted is not None and query.partition:
        queue = await broker.directory.queue(wanted)
        if queue is None:
            raise unknown_queue(wanted)
        await find_partition(call, queue, query.partition)
    return [row["queue"] for row in rows]
