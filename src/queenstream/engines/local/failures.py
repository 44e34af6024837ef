"""What becomes of a record that a step fails on: again, left out, to the dead letters, or the end.

Every step has a ``Guard``, which knows its policy. A step's loop goes on after a failure with the next
record, so one bad record hits nobody but itself.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias

from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.policies import DeadLetters
from queenstream.runtime.failures import GONE, Along, give_up, letter, may_retry, told

Address: TypeAlias = tuple[str, ...]
"""What tells one sink from another: ``Endpoint.address``."""

log = logging.getLogger("queenstream.local")


@dataclass(slots=True)
class Counts:
    """What happened at one step so far."""

    taken: int = 0
    given: int = 0
    failed: int = 0
    retried: int = 0
    late: int = 0
    dead_letters: int = 0


@dataclass(slots=True)
class Surroundings:
    """What the operators of one engine share. ``now`` and ``sleep`` are parameters: a test turns the clock.

    ``tracking``: changes of state are written down, for a checkpoint. ``url`` and ``token`` are the run's.
    """

    pipeline: str
    now: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]]
    tracking: bool = False
    url: str | None = None
    token: str | None = None
    letters: dict[Address, list[dict[str, Any]]] = field(default_factory=dict)


class Guard:
    """What stands between a step's failures and the pipeline."""

    __slots__ = ("_around", "_counts", "_node", "_policy")

    def __init__(self, node: Node, around: Surroundings, counts: Counts) -> None:
        self._node = node
        self._policy = node.policy
        self._around = around
        self._counts = counts

    async def recover(
        self, record: Any, error: Exception, call: Callable[[Any], Any], along: Along | None
    ) -> Any:
        """What a further try gives, or ``GONE`` after the last one; the first failed with ``error``.

        ``along`` is what went along with the record; None: what failed was no record that came in.
        """
        attempt = 1
        while may_retry(self._node, record, error, attempt):
            await self._around.sleep(self._policy.pause(attempt).total_seconds())
            self._counts.retried += 1
            attempt += 1
            try:
                outcome = call(record)
                return await outcome if inspect.isawaitable(outcome) else outcome
            except Exception as again:  # noqa: BLE001 - whatever a user's function raises
                error = again
        self.give_up(record, error, along, attempt)
        return GONE

    def give_up(self, record: Any, error: Exception, along: Along | None, attempts: int = 1) -> None:
        """Count it, and do what the policy says comes after the last try."""
        counts, node, around = self._counts, self._node, self._around
        counts.failed += 1
        outcome = give_up(node, record, error)
        if isinstance(outcome, DeadLetters):
            counts.dead_letters += 1
            made = letter(around.pipeline, node.name, record, error, attempts, around.now(), along)
            around.letters.setdefault(outcome.sink.address, []).append(made)
        # The first, and then ever more rarely: a thousand bad records are not a thousand lines.
        if counts.failed & (counts.failed - 1) == 0:
            log.warning(
                "%s: %s failed on %d record(s) so far; the last: %s",
                around.pipeline,
                node.name,
                counts.failed,
                told(error),
            )
