"""Which failures of a query pass, so that it goes on from its last batch instead of ending the run.

Spark runs a task that failed again, three times. What is left are failures of the processes beside the tasks,
and servers that stayed away longer than the tasks have patience. A batch that failed is done again from the
checkpoint, and the sinks know it again: so another try is always safe. It is only not always of use.
"""

from __future__ import annotations

from queenstream.client._base.brokers import backoff
from queenstream.spark.datasource.database import AGAIN

MOST = 10
"""How many restarts there are without a batch in between."""

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
)


class Restarts:
    """Counts the restarts of one run.

    >>> restarts = Restarts()
    >>> restarts.allows("queenstream.errors.Unavailable: …", batches=0)
    False
    >>> restarts.allows("queenstream.errors.Unavailable: …", batches=1)
    True
    """

    def __init__(self) -> None:
        self._batches = 0
        self._in_a_row = 0

    def allows(self, failure: str, batches: int) -> bool:
        """Whether to go on after a failure; ``batches``: how many were done so far."""
        if batches > self._batches:
            self._batches, self._in_a_row = batches, 0
        passes = _STARVED in failure or (batches > 0 and any(each in failure for each in _PASSING))
        if not passes or self._in_a_row >= MOST:
            return False
        self._in_a_row += 1
        return True

    @property
    def pause_seconds(self) -> float:
        """How long to wait before the next one."""
        return backoff(self._in_a_row)
