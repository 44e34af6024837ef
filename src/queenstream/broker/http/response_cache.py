"""Answers that cost much, given again to who says that older ones will do (``Cache-Control: max-age=``).

To count a queue of 100,000 partitions takes a second. Pages that show such counts ask every few seconds, and
several of them at once: they say how old an answer may be, and share one. Whoever says nothing gets it fresh.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from time import monotonic

from queenstream.broker.http.routing import Request, Response

MOST_ANSWERS = 200
MOST_BYTES = 32 * 1024 * 1024
SHARE = 20.0  # an answer holds for so many times what it took: a cheap one is made anew
_MAX_AGE = re.compile(rb"max-age=([0-9]{1,6})")

Key = tuple[str, str]  # path and query
Work = Callable[[], Awaitable[Response | None]]


def most_age(request: Request) -> float:
    """How many seconds old the answer may be.

    >>> most_age(Request("GET", "/", "", {b"cache-control": b"max-age=30"}, b""))
    30.0
    """
    said = _MAX_AGE.search(request.headers.get(b"cache-control", b""))
    return 0.0 if said is None else float(said[1])


class Remembered:
    """The answers of one broker. They do not depend on who asks: every role that may ask sees the same."""

    def __init__(self) -> None:
        self._answers: OrderedDict[Key, tuple[float, float, Response]] = OrderedDict()  # when, how long for
        self._under_way: dict[Key, asyncio.Event] = {}
        self._bytes = 0

    async def answer(self, request: Request, work: Work) -> Response | None:
        """One that is young enough, or that of the same question under way, or a new one."""
        key = (request.path, request.query)
        found = self._young(key, most_age(request))
        if found is None and (same := self._under_way.get(key)) is not None:
            await same.wait()
            found = self._young(key, most_age(request))
        return found if found is not None else await self._made(key, work)

    def _young(self, key: Key, most_seconds: float) -> Response | None:
        known = self._answers.get(key)
        if known is None:
            return None
        made_at, holds_seconds, response = known
        age = monotonic() - made_at
        if age > min(most_seconds, holds_seconds):
            return None
        return Response(
            response.status, response.body, response.content_type, (*response.headers, ("Age", str(int(age))))
        )

    async def _made(self, key: Key, work: Work) -> Response | None:
        begun = monotonic()
        done = self._under_way.setdefault(key, asyncio.Event())
        try:
            response = await work()
        finally:
            done.set()
            if self._under_way.get(key) is done:
                del self._under_way[key]
        if response is not None:
            self._keep(key, response, monotonic() - begun)
        return response

    def _keep(self, key: Key, response: Response, took: float) -> None:
        self._forget(key)
        self._answers[key] = (monotonic(), SHARE * took, response)
        self._bytes += len(response.body)
        while len(self._answers) > MOST_ANSWERS or self._bytes > MOST_BYTES:
            self._forget(next(iter(self._answers)))

    def _forget(self, key: Key) -> None:
        known = self._answers.pop(key, None)
        if known is not None:
            self._bytes -= len(known[2].body)
