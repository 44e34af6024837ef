"""Windows of the broker's streams, read as records.

A position is the last window of a key: ``{key: [start, end]}`` in µs, for a count window the numbers of its
first message and the one after its last. The windows of a key come in that order, so one that comes again
after a crash is known by it, passed over, and acknowledged once more. Those that a killed run had leased come
again when their lease ends (60 s, unless the stream says otherwise).
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import Any

from queenstream.client._async.client import AsyncQueen
from queenstream.client._async.window import AsyncConsumer, AsyncWindow
from queenstream.connectors.base import Context, Positions
from queenstream.connectors.broker.connection import AWAY, Leases, Patience, connect, log
from queenstream.core.batches import Batch
from queenstream.core.windows import from_us, to_us
from queenstream.errors import LeaseLost, QueenstreamError
from queenstream.pipeline.endpoints import Stream

LAG_SECONDS = 10.0  # how old what is known of the lag may be
MOST_MESSAGES = 100_000  # in the windows of one batch: a window is whole, however large it is
_COUNT = re.compile(r":(\d+):(\d+)$")  # how the id of a count window ends; times end otherwise


class StreamReader:
    """Reads the windows of a stream as a consumer group, and acknowledges those that are committed."""

    def __init__(self, source: Stream, context: Context) -> None:
        self._source = source
        self._context = context
        self._group = source.group or context.pipeline
        self._patience = Patience(context.node)
        self._positions: dict[str, tuple[int, int]] = {}
        self._moved: set[str] = set()
        self._taken: list[AsyncWindow[Any]] = []  # since the last changes()
        self._covered: list[AsyncWindow[Any]] = []  # to be acknowledged with the next commit
        self._committing = False
        self._lag: float | None = None
        self._lag_known = 0.0

    async def open(self, positions: Positions) -> None:
        self._positions = {key: (int(first), int(last)) for key, (first, last) in positions.items()}
        self._queen = await connect(self._source.url, self._context)
        self._leases = Leases()
        if self._context.rewound:
            await self._move_back()
        self._consumer = self._subscribed(self._queen)
        await self._measure()

    def _subscribed(self, queen: AsyncQueen) -> AsyncConsumer[Any]:
        start = self._source.start
        # Where there are positions, a group that is gone must not begin anew behind them.
        if self._positions or start == "earliest":
            return queen.consumer(self._source.name, self._group)
        since = "now" if start == "latest" else start
        return queen.consumer(self._source.name, self._group, subscription_from=since)

    async def _move_back(self) -> None:
        """To where the group began: what the positions cover is passed over."""
        start = self._source.start
        if start == "latest":
            start = from_us(min((first for first, _ in self._positions.values()), default=0))
        elif start == "earliest":
            start = from_us(0)
        await self._queen.stream(self._source.name).seek(self._group, start)

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        times: list[int] = []
        batch = Batch([], times)
        messages = 0
        while len(batch) < most and messages < MOST_MESSAGES:
            try:
                window = await self._consumer.poll(0 if batch.records else wait_seconds)
            except AWAY as error:
                await self._patience.wait(error, wait_seconds)
                break
            self._patience.reset()
            if window is None:
                break
            self._taken.append(window)
            self._leases.add(window)
            if self._is_new(window):
                batch.records.append(_record(window))
                times.append(to_us(window.start))
                messages += len(window.all_messages)
        return batch

    def _is_new(self, window: AsyncWindow[Any]) -> bool:
        place = _place(window)
        known = self._positions.get(window.key)
        if known is not None and place <= known:
            return False
        self._positions[window.key] = place
        self._moved.add(window.key)
        return True

    def changes(self) -> dict[str, Any]:
        changed = {key: list(self._positions[key]) for key in self._moved}
        self._moved.clear()
        self._covered += self._taken
        self._taken = []
        return changed

    async def commit(self) -> None:
        covered, self._covered = self._covered, []
        self._committing = True
        try:
            while covered:
                await self._acknowledge(covered[0])
                del covered[0]
        except AWAY as error:
            log.warning("%s could not acknowledge yet: %s", self._context.node, error)
            self._covered = covered + self._covered
            return
        finally:
            self._committing = False
        if time.monotonic() - self._lag_known > LAG_SECONDS:
            await self._measure()

    async def _acknowledge(self, window: AsyncWindow[Any]) -> None:
        try:
            await window.ack()
        except LeaseLost as error:
            log.warning("%r comes again, and is passed over: %s", window, error)
        self._leases.remove(window)

    async def _measure(self) -> None:
        self._lag_known = time.monotonic()
        with contextlib.suppress(QueenstreamError):  # a figure for people: not worth a failure
            groups = await self._queen.admin.stream_groups(self._source.name)
            own = [group.lag for group in groups if group.consumer_group == self._group]
            self._lag = max(0, sum(own) - len(self._covered) - len(self._taken)) if own else None

    def drained(self) -> bool:
        return not self._taken and not self._covered and not self._committing

    def lag(self) -> float | None:
        return self._lag

    async def close(self) -> None:
        for window in self._covered + self._taken:
            with contextlib.suppress(QueenstreamError):  # if not now, then when the lease ends
                await window.ack(False, "the pipeline ended before the window was done")
        await self._leases.close()
        await self._queen.close()


def _place(window: AsyncWindow[Any]) -> tuple[int, int]:
    """Where a window stands among those of its key."""
    count = _COUNT.search(window.id)
    return (int(count[1]), int(count[2])) if count else (to_us(window.start), to_us(window.end))


def _record(window: AsyncWindow[Any]) -> dict[str, Any]:
    return {
        "key": window.key,
        "window_start": window.start,
        "window_end": window.end,
        "messages": [
            {
                "id": message.id,
                "data": message.data,
                "created_at": message.created_at,
                "queue": message.queue,
                "partition": message.partition,
            }
            for message in window.all_messages
        ],
    }
