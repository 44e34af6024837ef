"""The last number of each partition, remembered, so that a push need not look for it.

Only for queues that this broker alone pushes into, which the database checks under the partition's lock (see
``queen.push``); and only while one batch at a time is under way, so that nothing can come in between.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

MOST = 200_000  # partitions


class Tails:
    """The last ``seq`` and time of partitions.

    >>> tails = Tails()
    >>> tails.take([7])
    ([None], None)
    >>> moment = datetime(2026, 1, 31)
    >>> tails.keep([7], [41], moment)
    >>> tails.take([7]) == ([41], moment)
    True
    """

    def __init__(self) -> None:
        self.pusher = secrets.randbits(62)  # the name under which the database believes it
        self._known: dict[int, tuple[int, datetime]] = {}
        self._out: set[int] = set()  # the partitions of the batch that relies on what was known
        self._back = asyncio.Event()
        self._apart: Counter[int] = Counter()  # partitions of pushes that run beside the batches
        self._spoilt: set[int] = set()  # those, and those of such pushes that ended during this batch

    def take(self, partitions: Iterable[int]) -> tuple[list[int | None], datetime | None]:
        """What is known of these partitions, and the latest of their times; it is known no more."""
        take = self._known.pop
        found = [take(partition, None) for partition in partitions]
        times = {known[1] for known in found if known is not None}
        return [known and known[0] for known in found], max(times, default=None)

    def rely(self, partitions: Collection[int]) -> None:
        """A batch sets out with what was known of these partitions."""
        self._out.update(partitions)

    def settle(self) -> None:
        """That batch is stored, or has failed, and what it tells is kept."""
        self._out.clear()
        self._spoilt = set(self._apart)
        self._back.set()

    def keep(self, partitions: Sequence[int], seqs: Sequence[int], stored_at: datetime) -> None:
        """The messages up to these are stored."""
        if len(self._known) + len(partitions) > MOST:
            self._known.clear()
        self._known.update(zip(partitions, [(seq, stored_at) for seq in seqs], strict=True))
        for partition in self._spoilt:
            self._known.pop(partition, None)

    def forget(self) -> None:
        """Nothing that was known holds any more."""
        self._known.clear()

    @asynccontextmanager
    async def apart(self, partitions: Collection[int]) -> AsyncIterator[None]:
        """While a push into these partitions runs beside the batches, nothing is known of them."""
        self._apart.update(partitions)
        self._spoilt.update(partitions)
        try:
            self.take(partitions)
            while not self._out.isdisjoint(partitions):
                self._back.clear()
                await self._back.wait()
            yield
        finally:
            self._apart.subtract(partitions)
            self._apart = +self._apart
