"""The routes for dead letters: look at them, alone or by what they failed with, replay and delete them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from queenstream.broker.api.history import readable, replay
from queenstream.broker.api.queues import moment_or_none, pick, unknown_queue
from queenstream.broker.auth.scope import LETTER_IN_PATH, QUEUE_IN_BODY, QUEUE_IN_QUERY
from queenstream.broker.http.routing import Call, Response, Role, Routes, reply
from queenstream.broker.messaging.ack import partition_number
from queenstream.broker.schemas.admin import Page
from queenstream.broker.schemas.history import (
    DeadLetter,
    DeadLetterDetail,
    DeadLetterList,
    DeadLettersQuery,
    ErrorsQuery,
    LetterError,
    LetterErrorList,
    LetterFilter,
    LetterRetryBody,
    LettersDeleted,
    LettersRetried,
    Retried,
)
from queenstream.broker.schemas.messages import ErrorBody
from queenstream.errors import NotFound

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

routes = Routes("history")

MOST_FOLDED = 50_000  # dead letters that are looked at to group them


@routes.get(
    "/api/v1/dlq",
    expensive=True,
    scope=QUEUE_IN_QUERY,
    role=Role.READ_ONLY,
    query=DeadLettersQuery,
    answers={200: DeadLetterList, 400: ErrorBody},
)
async def list_dead_letters(call: Call) -> Response:
    """List dead letters, the newest first."""
    query: DeadLettersQuery = call.query
    database = call.broker.database
    wanted = (
        query.queue or None,
        query.consumer_group or None,
        query.partition or None,
        moment_or_none(query.from_, "from"),
        moment_or_none(query.to, "to"),
    )
    pattern = query.error_pattern
    rows = await database.admin("list_dead_letters", *wanted, None, query.limit, query.offset, pattern)
    total = (await database.admin("count_dead_letters", *wanted, pattern))[0]["total"]
    letters = [_letter(call.broker, DeadLetter, row) for row in rows]
    return reply(DeadLetterList(letters, Page(query.limit, query.offset, total=total), total))


def _letter(broker: Broker, struct: Any, row: Any) -> Any:
    data, encrypted = readable(broker, row)
    return pick(struct, row, data=data, encrypted=encrypted)


@routes.get(
    "/api/v1/dlq/errors",
    scope=QUEUE_IN_QUERY,
    costly=True,
    role=Role.READ_ONLY,
    query=ErrorsQuery,
    answers={200: LetterErrorList, 400: ErrorBody},
)
async def list_letter_errors(call: Call) -> Response:
    """List what dead letters failed with, those alike together; the most frequent first."""
    query: ErrorsQuery = call.query
    rows = await call.broker.database.admin(
        "letter_errors", query.queue or None, query.consumer_group or None,
        moment_or_none(query.from_, "from"), moment_or_none(query.to, "to"), MOST_FOLDED, query.limit,
    )  # fmt: skip
    looked = rows[0]["looked"] if rows else 0
    errors = [pick(LetterError, row) for row in rows]
    return reply(LetterErrorList(errors, looked, looked < MOST_FOLDED))


async def _find_letter(call: Call) -> Any:
    rows = await call.broker.database.admin(
        "list_dead_letters", None, None, None, None, None, partition_number(call.params["id"]), 1, 0, None
    )
    if not rows:
        raise NotFound(
            f"there is no dead letter {call.params['id'][:20]}; it may have been retried or deleted. "
            "GET /api/v1/dlq lists those there are."
        )
    return rows[0]


@routes.get(
    "/api/v1/dlq/{id}",
    scope=LETTER_IN_PATH,
    role=Role.READ_ONLY,
    answers={200: DeadLetterDetail, 404: ErrorBody},
)
async def show_dead_letter(call: Call) -> Response:
    """Show one dead letter."""
    return reply(_letter(call.broker, DeadLetterDetail, await _find_letter(call)))


@routes.delete(
    "/api/v1/dlq/{id}",
    scope=LETTER_IN_PATH,
    role=Role.READ_WRITE,
    answers={200: LettersDeleted, 404: ErrorBody},
)
async def delete_dead_letter(call: Call) -> Response:
    """Delete one dead letter."""
    row = await _find_letter(call)
    gone = await call.broker.database.admin("delete_letters", [int(row["id"])])
    return reply(LettersDeleted(True, len(gone)))


@routes.post(
    "/api/v1/dlq/{id}/retry",
    scope=LETTER_IN_PATH,
    role=Role.READ_WRITE,
    body=LetterRetryBody,
    body_optional=True,
    answers={200: Retried, 400: ErrorBody, 404: ErrorBody, 409: ErrorBody},
)
async def retry_dead_letter(call: Call) -> Response:
    """Replay one dead letter, as it is or with another payload."""
    row = await _find_letter(call)
    replayed = await replay(call.broker, [int(row["id"])], [row], call.body.payload)
    return reply(Retried(True, len(replayed), replayed))


async def _letters_like(call: Call) -> list[int]:
    wanted: LetterFilter = call.body
    if await call.broker.directory.queue(wanted.queue) is None:
        raise unknown_queue(wanted.queue)
    rows = await call.broker.database.admin(
        "letters_like", wanted.queue, wanted.consumer_group or None, wanted.partition or None,
        wanted.error_contains or None, wanted.limit, wanted.error_pattern,
    )  # fmt: skip
    return [row["id"] for row in rows]


@routes.post(
    "/api/v1/dlq/retry",
    scope=QUEUE_IN_BODY,
    role=Role.READ_WRITE,
    body=LetterFilter,
    answers={200: LettersRetried, 400: ErrorBody, 404: ErrorBody, 409: ErrorBody},
)
async def retry_dead_letters(call: Call) -> Response:
    """Replay the dead letters of a queue that fit, in the order in which they died."""
    replayed = await replay(call.broker, await _letters_like(call), [])
    return reply(LettersRetried(True, len(replayed)))


@routes.post(
    "/api/v1/dlq/delete",
    scope=QUEUE_IN_BODY,
    role=Role.READ_WRITE,
    body=LetterFilter,
    answers={200: LettersDeleted, 400: ErrorBody, 404: ErrorBody},
)
async def delete_dead_letters(call: Call) -> Response:
    """Delete the dead letters of a queue that fit."""
    gone = await call.broker.database.admin("delete_letters", await _letters_like(call))
    return reply(LettersDeleted(True, len(gone)))
