"""The route that searches a queue's messages."""

from __future__ import annotations

from typing import Any

from queenstream.broker.api.history import readable
from queenstream.broker.api.queues import find_queue, moment_or_none, pick
from queenstream.broker.auth.scope import QUEUE_IN_PATH
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.messaging.catalog import Queue
from queenstream.broker.ops.search import MOST_SECONDS, Findings, Wanted, payload_test
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.broker.schemas.search import Found, FoundMessage, SearchQuery
from queenstream.errors import InvalidRequest

routes = Routes("history")

MOST_BYTES = 65_536  # of a payload in the answer


@routes.get(
    "/api/v1/queues/{queue}/search",
    expensive=True,
    scope=QUEUE_IN_PATH,
    role=Role.READ_ONLY,
    query=SearchQuery,
    answers={200: Found, 400: ErrorBody, 404: ErrorBody},
)
async def search_messages(call: Call) -> Response:
    """Search a queue's messages by partition, time, transaction or payload, from the newest back."""
    query: SearchQuery = call.query
    broker, database = call.broker, call.broker.database
    wanted = (query.partition or None, query.prefix or None)
    test = payload_test(query.path or None, query.value, query.contains or None)
    start, end = moment_or_none(query.from_, "from"), moment_or_none(query.to, "to")
    queue = await find_queue(call)
    if query.transaction_id:
        if test is not None or start is not None or end is not None:
            raise InvalidRequest("transactionId names a message: leave path, contains, from and to out")
        findings = await _by_transaction(call, queue, *wanted)
    else:
        before = int(query.before) if query.before else None
        findings = await broker.searches.run(Wanted(queue.id, *wanted, start, end, test), before, query.limit)
    columns = [list(column) for column in zip(*findings.places, strict=True)] or [[], []]
    rows = await database.admin("describe_messages", *columns, MOST_BYTES, database.now())
    following = None if findings.next is None else str(findings.next)
    return reply(Found([_shown(call, row) for row in rows], findings.scanned, findings.stopped, following))


async def _by_transaction(call: Call, queue: Queue, partition: str | None, prefix: str | None) -> Findings:
    query: SearchQuery = call.query
    rows = await call.broker.database.bounded(
        MOST_SECONDS, "search_transaction", queue.id, partition, prefix, query.transaction_id, query.limit
    )
    if rows is None:
        return Findings(stopped="time")
    return Findings([(row["partition_id"], row["id"]) for row in rows], len(rows))


def _shown(call: Call, row: Any) -> FoundMessage:
    left_out = row["payload"] is None
    given = {**row, "payload": b"null", "key_id": None} if left_out else row
    data, encrypted = readable(call.broker, given)
    made: FoundMessage = pick(FoundMessage, row, data=data, encrypted=encrypted, left_out=left_out)
    return made
