"""Which failures of a query pass, so that it goes on from its last batch instead of ending the run.

Spark runs a task that failed again, three times. What is left are failures of the processes beside the tasks,
and servers that stayed away longer than the tasks have patience. A batch that failed is done again from the
checkpoint, and the sinks know it again: so another try is always safe. It is only not always of use.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from queenstream.client._base.brokers import backoff
from queenstream.engines.spark.datasource.database import AGAIN

MOST = 10
"""How many restarts there are without a batch in between."""

MOST_RECENT, RECENT_SECONDS = 30, 600.0
"""How many restarts there are in so much time, whatever was done in between."""

# Spark gives a new process ten seconds: on a busy machine that may not be enough.
_STARVED = "Python worker failed to connect back"
# These pass, too, unless they were there from the beginning: then something is set up wrong.
_PASSING = (
    AGAIN,
    "queenstream.errors.Unavailable",
    "queenstream.errors.BrokerUnreachable",
    "Python worker exited unexpectedly",
    "java.io.EOFException",  # the end of the process that Spark asks about a source
    "Connection reset",
    "Broken pipe",
    "CONCURRENT_STREAM_LOG_UPDATE",  # by the run before this one, whose checkpoint this one has taken over
)


class Restarts:
    """Counts the restarts of one run.

    >>> restarts = Restarts()
    >>> restarts.allows("queenstream.errors.Unavailable: …", batches=0)
    False
    >>> restarts.allows("queenstream.errors.Unavailable: …", batches=1)
    True
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._batches = 0
        self._in_a_row = 0
        self._recent: deque[float] = deque()
        self.total = 0
        self.exhausted: str | None = None  # which limit was reached, for people

    def allows(self, failure: str, batches: int) -> bool:
        """Whether to go on after a failure; ``batches``: how many were done so far."""
        if batches > self._batches:
            self._batches, self._in_a_row = batches, 0
        now = self._clock()
        while self._recent and self._recent[0] <= now - RECENT_SECONDS:
            self._recent.popleft()
        if not (_STARVED in failure or (batches > 0 and any(each in failure for each in _PASSING))):
            return False
        if self._in_a_row >= MOST:
            self.exhausted = f"after {MOST} restarts without a batch in between"
            return False
        if len(self._recent) >= MOST_RECENT:
            self.exhausted = f"after {MOST_RECENT} restarts in {RECENT_SECONDS / 60:.0f} minutes"
            return False
        self._in_a_row += 1
        self._recent.append(now)
        self.total += 1
        return True

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next one: the longer, the more restarts there were of late."""
        return backoff(len(self._recent))
