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

from queenstream.errors import QueenstreamError
from queenstream.pipeline.nodes import Node
from queenstream.pipeline.policies import DeadLetters

Address: TypeAlias = tuple[str, ...]
"""What tells one sink from another: ``Endpoint.address``."""

log = logging.getLogger("queenstream.local")


class StepFailed(QueenstreamError):
    """A step failed on a record, and its policy is to end the pipeline; the cause is what it raised."""


class _Gone:
    """Stands where the outcome of a failed record would be. It is false, so a filter drops it."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "GONE"


GONE = _Gone()


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

    ``tracking``: changes of state are written down, for a checkpoint.
    """

    pipeline: str
    now: Callable[[], datetime]
    sleep: Callable[[float], Awaitable[None]]
    tracking: bool = False
    letters: dict[Address, list[dict[str, Any]]] = field(default_factory=dict)


class Guard:
    """What stands between a step's failures and the pipeline."""

    __slots__ = ("_address", "_around", "_counts", "_node", "_policy")

    def __init__(self, node: Node, around: Surroundings, counts: Counts) -> None:
        self._node = node
        self._policy = node.policy
        self._around = around
        self._counts = counts
        then = node.policy.then
        self._address = then.sink.address if isinstance(then, DeadLetters) else None

    async def recover(self, record: Any, error: Exception, call: Callable[[Any], Any]) -> Any:
        """What a further try gives, or ``GONE`` after the last one; the first failed with ``error``."""
        attempt = 1
        while attempt <= self._policy.max_retries:
            await self._around.sleep(self._policy.pause(attempt).total_seconds())
            self._counts.retried += 1
            attempt += 1
            try:
                outcome = call(record)
                return await outcome if inspect.isawaitable(outcome) else outcome
            except Exception as again:  # noqa: BLE001 - whatever a user's function raises
                error = again
        self.give_up(record, error, attempt)
        return GONE

    def give_up(self, record: Any, error: Exception, attempts: int = 1) -> None:
        """Count it, and do what the policy says comes after the last try."""
        counts, node = self._counts, self._node
        counts.failed += 1
        if self._policy.then == "fail":
            raise StepFailed(
                f"{node.where}: {node.name} failed on {_short(record)}: {_told(error)}; mend the record or "
                "the step, or write on_error='skip' or DeadLetters('name') to go on without such records"
            ) from error
        if self._address is not None:
            counts.dead_letters += 1
            self._around.letters.setdefault(self._address, []).append(self.letter(record, error, attempts))
        # The first, and then ever more rarely: a thousand bad records are not a thousand lines.
        if counts.failed & (counts.failed - 1) == 0:
            log.warning(
                "%s: %s failed on %d record(s) so far; the last: %s",
                self._around.pipeline,
                node.name,
                counts.failed,
                _told(error),
            )

    def letter(self, record: Any, error: Exception, attempts: int) -> dict[str, Any]:
        """A dead letter."""
        return {
            "record": record,
            "error": str(error),
            "error_type": type(error).__name__,
            "step": self._node.name,
            "attempts": attempts,
            "pipeline": self._around.pipeline,
            "failed_at": self._around.now(),
        }


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _short(record: object) -> str:
    text = repr(record)
    return text if len(text) <= 80 else f"{text[:77]}..."
