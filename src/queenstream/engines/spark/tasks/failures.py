"""What becomes of a record that a step fails on, in the process of a task: again, left out, or reported.

A task cannot write dead letters or end a pipeline. It gives both as rows of its output, and the driver acts
on them before anything of the batch is written: so they are as exactly-once as everything else.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from queenstream.core.records import short
from queenstream.engines.spark.tasks.records import Item
from queenstream.pipeline.plan.nodes import Node, Stateful
from queenstream.pipeline.policies import DeadLetters
from queenstream.runtime.failures import GONE, Along, Gone, give_up, letter, may_retry, told

log = logging.getLogger("queenstream.spark")

_LOG_SECONDS = 10.0  # between two lines about a step


@dataclass(slots=True)
class Troubles:
    """What went wrong in a piece of work: dead letters by the step that failed, and counts by step.

    ``examples``: of each step that failed, the first record and why.
    """

    pipeline: str
    letters: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)

    def count(self, step: str, what: str, number: int = 1) -> None:
        """So many more of ``what`` at a step: taken, given, failed, retried, late, dead_letters."""
        counts = self.counts.setdefault(step, {})
        counts[what] = counts.get(what, 0) + number


class Guard:
    """What stands between a step's failures and the pipeline.

    ``serves``: the items that a step with state is at work on, and which of its inputs they are from.
    """

    __slots__ = ("_node", "_policy", "_troubles", "serves")

    def __init__(self, node: Node, troubles: Troubles) -> None:
        self._node = node
        self._policy = node.policy
        self._troubles = troubles
        self.serves: tuple[Sequence[Item], int] = ((), 0)

    def each(
        self, values: list[Any], call: Callable[[Any], Any], items: Sequence[Item] | None = None
    ) -> list[Any]:
        """``call`` of each value, in order; ``GONE`` where it failed for good. Nothing is called twice.

        ``items`` are what the values are from; without them, it is looked for among those that it serves.
        """
        results: list[Any] = []
        calls = map(call, values)  # goes on behind the value that failed
        while len(results) < len(values):
            error: Exception
            try:
                results.extend(calls)  # what was made before a failure stays in the list
                if len(results) == len(values):
                    break
                error = StopIteration()  # raised by the function: it looks like the end
            except Exception as raised:  # noqa: BLE001 - whatever a user's function raises
                error = raised
            value = values[len(results)]
            went = self._along(value) if items is None else along(items[len(results)])
            results.append(self.recover(value, error, call, went))
        return results

    def _along(self, record: Any) -> Along | None:
        """What went along with a record of a step with state; None: it is none that came in."""
        items, port = self.serves
        if isinstance(self._node, Stateful):  # it has one at a time, and may work on a copy
            return along(items[0], port) if items else None
        return next((along(item, port) for item in items if item.record is record), None)

    def recover(self, record: Any, error: Exception, call: Callable[[Any], Any], went: Along | None) -> Any:
        """What a further try gives, or ``GONE`` after the last one; the first failed with ``error``."""
        attempt = 1
        while may_retry(self._node, record, error, attempt):
            time.sleep(self._policy.pause(attempt).total_seconds())
            self._troubles.count(self._node.name, "retried")
            attempt += 1
            try:
                return call(record)
            except Exception as again:  # noqa: BLE001 - as above
                error = again
        return self.give_up(record, error, went, attempt)

    async def recover_later(
        self,
        record: Any,
        error: Exception,
        call: Callable[[Any], Awaitable[Any]],
        sleep: Callable[[float], Awaitable[None]],
        went: Along | None,
    ) -> Any:
        """The same for what is awaited."""
        attempt = 1
        while may_retry(self._node, record, error, attempt):
            await sleep(self._policy.pause(attempt).total_seconds())
            self._troubles.count(self._node.name, "retried")
            attempt += 1
            try:
                return await call(record)
            except Exception as again:  # noqa: BLE001 - as above
                error = again
        return self.give_up(record, error, went, attempt)

    def retried(self, number: int) -> None:
        """So many records are tried again together."""
        self._troubles.count(self._node.name, "retried", number)

    def give_up(self, record: Any, error: Exception, went: Along | None, attempts: int = 1) -> Gone:
        """Count it, and do what the policy says comes after the last try."""
        node = self._node
        self._troubles.count(node.name, "failed")
        if node.name not in self._troubles.examples:
            self._troubles.examples[node.name] = f"{short(record)}: {told(error)}"
        if isinstance(give_up(node, record, error), DeadLetters):
            self._troubles.count(node.name, "dead_letters")
            now = datetime.now(UTC)
            made = letter(self._troubles.pipeline, node.name, record, error, attempts, now, went)
            self._troubles.letters.append((node.name, made))
        return GONE


def along(item: Item, port: int = 0) -> Along:
    """What goes along with an item's record."""
    return Along(item.time, item.key, port)


class FailureLog:
    """Logs what the steps of a run failed on and left out: of each batch how many records, and one of them.

    A step is logged once in ten seconds at most; what came in between is in the next line.
    """

    def __init__(self, pipeline: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._last: dict[str, float] = {}
        self._unsaid: dict[str, int] = {}
        self._total: dict[str, int] = {}

    def __call__(self, step: str, number: int, example: str) -> None:
        """A step failed on so many more records."""
        self._total[step] = self._total.get(step, 0) + number
        number += self._unsaid.pop(step, 0)
        last, now = self._last.get(step), self._clock()
        if last is not None and now < last + _LOG_SECONDS:
            self._unsaid[step] = number
            return
        self._last[step] = now
        log.warning(
            "%s: %s failed on %d record(s), %d so far; the first: %s",
            self._pipeline,
            step,
            number,
            self._total[step],
            example,
        )


def messages_of(error: BaseException | None) -> Iterator[str]:
    """All that an error of Spark's says, with what it was caused by."""
    while error is not None:
        yield str(error)
        yield str(getattr(error, "_stackTrace", None) or "")
        error = getattr(error, "_cause", None) or error.__cause__


_OURS = re.compile(r"queenstream(?:\.\w+)+\.\w+: (.+)")
# Not what only says that Java failed, or that somebody waited for it.
_RAISED = re.compile(
    r"^(?!py4j\.|.*Exception thrown in awaitResult)(?:\w+\.)*\w+(?:Error|Exception): .+$", re.MULTILINE
)
_CAUSED = re.compile(r"^Caused by: [\w.$]+(?:Error|Exception): (?!Job aborted)(.+)$", re.MULTILINE)


def cause_of(failure: str) -> str:
    """What a failure of Spark's is about, in a line: ours, if it was in a task; else what Python raised.

    >>> cause_of("[STREAM_FAILED] Query: Traceback …\\nqueenstream.errors.NotFound: no queue 'x'\\n\\tat …")
    "no queue 'x'"
    >>> cause_of("[STREAM_FAILED] it failed\\nand so on")
    '[STREAM_FAILED] it failed'
    >>> cause_of("py4j.protocol.Py4JJavaError: o2\\nCaused by: x.SparkException: a worker is gone")
    'a worker is gone'
    """
    for pattern in (_OURS, _RAISED, _CAUSED):
        found = pattern.findall(failure)
        if found:
            return str(found[-1])
    return failure.partition("\n")[0]
