"""Administration of dead letters; ``queen.dlq(…)`` is the shorter way to them."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET

from queenstream.client._async.retry import Calls
from queenstream.client._base.http import path_of
from queenstream.client._base.responses.history import (
    DeadLetter,
    DeadLetterDetail,
    DeadLetterList,
    LetterErrorList,
    LettersDeleted,
    LettersRetried,
    Retried,
)
from queenstream.client._base.responses.resources import Page

_LETTERS = ("api", "v1", "dlq")


class AsyncLetterAdmin:
    """Dead letters."""

    _calls: Calls

    async def dead_letters(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        partition: str | None = None,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        error_pattern: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Page[DeadLetter]:
        """Dead letters, the newest first; times are those of the failure, patterns of ``letter_errors``.

        >>> [one.error_message for one in await queen.admin.dead_letters(queue="orders")]  # doctest: +SKIP
        ['no such customer']
        """
        query = {
            "queue": queue, "consumerGroup": group, "partition": partition, "from": from_, "to": to,
            "errorPattern": error_pattern, "limit": limit, "offset": offset,
        }  # fmt: skip
        found = await self._calls.call("GET", path_of(*_LETTERS), query=query, type=DeadLetterList)
        return Page(found.messages, limit=limit, offset=offset, total=found.total)

    async def letter_errors(
        self,
        *,
        queue: str | None = None,
        group: str | None = None,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        limit: int = 100,
    ) -> LetterErrorList:
        """What dead letters failed with, those alike together, the most frequent first.

        >>> [(e.pattern, e.letters) for e in (await queen.admin.letter_errors()).errors]  # doctest: +SKIP
        [('timeout after # s', 31)]
        """
        query = {"queue": queue, "consumerGroup": group, "from": from_, "to": to, "limit": limit}
        return await self._calls.call("GET", path_of(*_LETTERS, "errors"), query=query, type=LetterErrorList)

    async def dead_letter(self, id: str) -> DeadLetterDetail:
        """One dead letter, with how it came here: ``(await admin.dead_letter("17")).cause``."""
        return await self._calls.call("GET", path_of(*_LETTERS, id), type=DeadLetterDetail)

    async def retry_dead_letter(self, id: str, *, payload: object = UNSET) -> Retried:
        """Replay one dead letter, as it is or with another payload.

        ``await admin.retry_dead_letter("17", payload={"n": 1})``
        """
        body = {} if payload is UNSET else {"payload": payload}
        path = path_of(*_LETTERS, id, "retry")
        # Sent again, it would say that there is no such letter.
        return await self._calls.call("POST", path, body=body, type=Retried, repeat=False)

    async def delete_dead_letter(self, id: str) -> LettersDeleted:
        """Delete one dead letter: ``await admin.delete_dead_letter("17")``."""
        # Sent again, it would say that there is no such letter.
        return await self._calls.call("DELETE", path_of(*_LETTERS, id), type=LettersDeleted, repeat=False)

    async def retry_dead_letters(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        error_contains: str | None = None,
        error_pattern: str | None = None,
        limit: int = 1000,
    ) -> LettersRetried:
        """Replay the dead letters of a queue that fit, in the order in which they died, ``limit`` at most.

        >>> done = await queen.admin.retry_dead_letters("orders", error_contains="timeout")  # doctest: +SKIP
        >>> done.retried  # doctest: +SKIP
        3
        """
        body = _filter(queue, group, partition, error_contains, error_pattern, limit)
        path = path_of(*_LETTERS, "retry")
        # Sent again, it would replay the next ones too.
        return await self._calls.call("POST", path, body=body, type=LettersRetried, repeat=False)

    async def delete_dead_letters(
        self,
        queue: str,
        *,
        group: str | None = None,
        partition: str | None = None,
        error_contains: str | None = None,
        error_pattern: str | None = None,
        limit: int = 1000,
    ) -> LettersDeleted:
        """Delete the dead letters of a queue that fit, the oldest first, ``limit`` at most.

        >>> (await queen.admin.delete_dead_letters("orders", group="billing")).deleted  # doctest: +SKIP
        3
        """
        body = _filter(queue, group, partition, error_contains, error_pattern, limit)
        path = path_of(*_LETTERS, "delete")
        # Sent again, it would delete the next ones too.
        return await self._calls.call("POST", path, body=body, type=LettersDeleted, repeat=False)


def _filter(
    queue: str,
    group: str | None,
    partition: str | None,
    error_contains: str | None,
    error_pattern: str | None,
    limit: int,
) -> dict[str, object]:
    return {
        "queue": queue,
        "consumerGroup": group,
        "partition": partition,
        "errorContains": error_contains,
        "errorPattern": error_pattern,
        "limit": limit,
    }
