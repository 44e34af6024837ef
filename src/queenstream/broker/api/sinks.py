"""The routes for queues as sinks of pipelines: which checkpoint a queue is written from."""

from __future__ import annotations

import msgspec

from queenstream.broker.api.queues import pick
from queenstream.broker.auth.scope import QUEUE_IN_BODY, QUEUE_IN_QUERY
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.schemas.sinks import SinkCheckpoint, SinkCheckpointBody, SinkQuery
from queenstream.errors import InvalidRequest, NotFound

routes = Routes("pipelines")


@routes.get(
    "/api/v1/sinks/checkpoint",
    scope=QUEUE_IN_QUERY,
    role=Role.READ_ONLY,
    query=SinkQuery,
    answers={200: SinkCheckpoint, 400: ErrorBody, 404: ErrorBody},
)
async def show_sink_checkpoint(call: Call) -> Response:
    """Show which checkpoint a step of a pipeline has last written a queue from."""
    query: SinkQuery = call.query
    rows = await call.broker.database.admin("sink_checkpoint", *_sink(query))
    if not rows:
        raise NotFound(f"the step {query.step} of {query.pipeline} has not written {query.queue}")
    return reply(pick(SinkCheckpoint, rows[0]))


@routes.post(
    "/api/v1/sinks/checkpoint",
    audited=False,
    scope=QUEUE_IN_BODY,
    role=Role.READ_WRITE,
    body=SinkCheckpointBody,
    answers={200: SinkCheckpoint, 400: ErrorBody},
)
async def record_sink_checkpoint(call: Call) -> Response:
    """Record the checkpoint that a step of a pipeline writes a queue from."""
    body: SinkCheckpointBody = call.body
    database = call.broker.database
    [row] = await database.admin(
        "record_sink_checkpoint", *_sink(body), body.checkpoint_id, body.place, body.run, database.now()
    )
    return reply(
        SinkCheckpoint(
            checkpoint_id=body.checkpoint_id, place=body.place, run=body.run, began_at=row["began_at"]
        )
    )


def _sink(of: SinkQuery | SinkCheckpointBody) -> tuple[str, str, str]:
    if any("\0" in str(value) for value in msgspec.structs.astuple(of)):
        raise InvalidRequest("NUL (\\u0000) is in the request; leave it out")
    return of.queue, of.pipeline, of.step
