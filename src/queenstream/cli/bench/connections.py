"""Connections that keep one request in flight each, and the tally of what they do."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

from queenstream.cli.bench.histogram import Histogram
from queenstream.cli.support.target import Target, refusal, unreachable
from queenstream.errors import ConfigError

CONNECT_SECONDS = 15.0
GRACE_SECONDS = 15.0  # how long what is in flight at the end may take
HEAD_BYTES = 65_536  # an answer's head that is longer than this is none


class Tally:
    """What has been done so far, and until when it goes on."""

    def __init__(self, seconds: float, *, strict: bool = False) -> None:
        self.strict = strict  # the first failure ends it
        self.count = self.in_time = self.errors = self.sent = self.payload_bytes = 0
        self.error = ""  # the first one
        self.times = Histogram()
        self.open = 0  # connections at work
        self.grace = GRACE_SECONDS
        self.stopped = False
        self._changed = asyncio.Event()
        self.restart(seconds)

    def restart(self, seconds: float) -> None:
        """The time counts from now on. If a stop was asked for before, there is none."""
        self.started = self.last = time.perf_counter()
        self.ends = self.started + (0 if self.stopped else seconds)

    def add(self, messages: int, seconds: float) -> None:
        """So many messages are done, in one request that took this long."""
        now = time.perf_counter()
        self.count += messages
        if now <= self.ends:
            self.in_time += messages
            self.last = now
        self.times.add(seconds)

    def fail(self, what: str, count: int = 1) -> None:
        """Something went wrong. Only the first text is kept."""
        self.errors += count
        self.error = self.error or what[:300]
        if self.strict:
            self.stop()

    def stop(self) -> None:
        """End now; what is in flight is waited for."""
        self.stopped = True
        self.ends = min(self.ends, time.perf_counter())
        self._changed.set()

    def hurry(self) -> None:
        """Wait no longer for what is in flight."""
        self.grace = 0.0
        self._changed.set()

    def closed(self) -> None:
        """A connection is done."""
        self.open -= 1
        if not self.open:
            self._changed.set()

    async def until_end(self) -> None:
        """Wait until the time is over, somebody says stop, or no connection is left."""
        await self._wait(lambda: self.ends)

    async def until_idle(self) -> None:
        """Wait until no connection is left, but no longer than the grace time."""
        await self._wait(lambda: self.ends + self.grace)

    async def _wait(self, deadline: Callable[[], float]) -> None:
        # A stop moves the deadline, so it is asked for again.
        while self.open and (left := deadline() - time.perf_counter()) > 0:
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._changed.wait()

    def rate(self, *, whole: bool = True) -> float:
        """Messages a second, of those answered in time; not ``whole``: only up to the last answer."""
        seconds = (self.ends if whole else self.last) - self.started
        return self.in_time / seconds if seconds > 0 else 0.0


_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)[ \t]*\r\n", re.IGNORECASE)


def answer_size(data: bytes) -> int:
    """How long the answer is that starts with these bytes; 0 if its head is not all there yet.

    >>> answer_size(b"HTTP/1.1 200 OK\\r\\nContent-Length: 5\\r\\n\\r\\nab")
    43
    """
    head = data.find(b"\r\n\r\n")
    if head < 0:
        if len(data) > HEAD_BYTES:
            raise ValueError("the answer's head does not end; is this a broker?")
        return 0
    found = _LENGTH.search(data, 0, head + 2)
    if found is not None:
        return head + 4 + int(found[1])
    if data[9:12] in (b"204", b"304"):
        return head + 4
    raise ValueError("the answer does not say its length (no Content-Length)")


def body_of(answer: bytes) -> bytes:
    """What comes after the head."""
    return answer[answer.index(b"\r\n\r\n") + 4 :]


class Connection(asyncio.Protocol):
    """One keep-alive connection, one request at a time; ``answered`` decides what comes next."""

    def __init__(self, tally: Tally) -> None:
        self.tally = tally
        self.transport: asyncio.Transport | None = None
        self.sent_at = 0.0
        self.busy = False  # a request is under way
        self.finished = False
        self._parts: list[bytes] = []
        self._missing = 0  # bytes until it is worth looking at the parts again
        tally.open += 1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, _: Exception | None) -> None:
        if not self.finished and (self.busy or not self.over()):
            self.tally.fail("the broker closed the connection")
        self.finish()

    def over(self) -> bool:
        """Whether no more requests are to be sent."""
        return self.finished or time.perf_counter() >= self.tally.ends

    def finish(self) -> None:
        """Close it; what is under way is dropped."""
        if not self.finished:
            self.finished = True
            self.tally.closed()
        if self.transport is not None:
            self.transport.close()

    def rest(self) -> None:
        """The time is over: close it, unless an answer has to be waited for."""
        if not self.busy:
            self.finish()

    def send(self, request: bytes) -> None:
        assert self.transport is not None
        self.busy = True
        self.sent_at = time.perf_counter()
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return
            data = b"".join(self._parts)
        try:
            size = self.size(data)
        except ValueError as error:
            self.tally.fail(str(error))
            self.finish()
            return
        if size == 0 or size > len(data):
            self._parts = [data]
            self._missing = size - len(data) if size else 1
            return
        self._parts = []
        self.busy = False
        if not self.finished:
            self.answered(data)

    def size(self, data: bytes) -> int:
        """How long the answer is that starts with this; 0 if that cannot be told yet."""
        return answer_size(data)

    def start(self) -> None:
        """Send the next request, or finish."""
        raise NotImplementedError

    def answered(self, data: bytes) -> None:
        """An answer is whole."""
        raise NotImplementedError

    def later(self, seconds: float) -> None:
        """Go on after a while."""
        asyncio.get_running_loop().call_later(seconds, self.start)

    def refused(self, data: bytes) -> None:
        """The broker says no. To a wrong token it always will: then everything ends."""
        status = int(data[9:12]) if data[9:12].isdigit() else 0
        self.tally.fail(refusal(status, body_of(data) if b"\r\n\r\n" in data else data))
        if status in (401, 403):
            self.tally.stop()


async def connect(target: Target, connections: Sequence[Connection]) -> None:
    """Open them all, or raise."""
    loop = asyncio.get_running_loop()
    context: Any = target.tls_context()

    async def one(connection: Connection) -> None:
        await loop.create_connection(lambda: connection, target.host, target.port, ssl=context)

    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            await asyncio.gather(*(one(connection) for connection in connections))
    except OSError as error:  # TimeoutError is one
        for connection in connections:
            connection.finish()
        if error.errno == errno.EMFILE:
            raise ConfigError(
                f"{len(connections)} connections are more files than this process may open;"
                " use fewer --connections or raise `ulimit -n`"
            ) from None
        raise unreachable(target, error) from None


async def drive(tally: Tally, connections: Sequence[Connection]) -> None:
    """Run them until the time is over, then wait for what is in flight, but not for ever."""
    try:
        for connection in connections:
            connection.start()
        await tally.until_end()
        for connection in connections:
            connection.rest()
        await tally.until_idle()
        if tally.open and tally.grace:
            tally.fail(f"{tally.open} requests were not answered within {tally.grace:g} s", tally.open)
    finally:
        for connection in connections:
            connection.finish()
