"""What a failure of a step comes to, on every engine: a dead letter, or the end of the pipeline."""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any, NamedTuple

from queenstream.core.records import moment, short
from queenstream.errors import StepFailed
from queenstream.pipeline.plan.nodes import Node
from queenstream.pipeline.policies import Outcome
from queenstream.runtime.keys import key_to_json

log = logging.getLogger("queenstream.pipeline")


class Gone:
    """Stands where the outcome of a failed record would be. It is false, so a filter drops it."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return "GONE"


GONE = Gone()


def told(error: Exception) -> str:
    """An error in a line.

    >>> told(KeyError("user"))
    "KeyError: 'user'"
    """
    return f"{type(error).__name__}: {error}"


def the_end(node: Node, record: object, error: Exception) -> str:
    """What people are told when a failure ends the pipeline."""
    return (
        f"{node.where}: {node.name} failed on {short(record, 80)}: {told(error)}; mend the record or "
        "the step, or write on_error='skip' or DeadLetters('name') to go on without such records"
    )


def may_retry(node: Node, record: Any, error: Exception, attempt: int) -> bool:
    """Whether a record is tried again after its failed try number ``attempt``, counted from 1."""
    if attempt > node.policy.max_retries:
        return False
    try:
        return node.policy.is_for(error, record)
    except Exception as broken:
        raise _broken_policy(node, record, error, broken) from broken


def give_up(node: Node, record: Any, error: Exception) -> Outcome:
    """What becomes of a record after its last try; tells the policy's callback. ``StepFailed``: the end."""
    policy = node.policy
    if policy.callback is not None:
        try:
            policy.callback(error, record, node.name)
        except Exception:
            log.exception("%s: the callback of the error policy failed", node.name)
    try:
        outcome = policy.outcome(error, record)
    except Exception as broken:
        raise _broken_policy(node, record, error, broken) from broken
    if outcome == "fail":
        raise StepFailed(the_end(node, record, error)) from error
    return outcome


def _broken_policy(node: Node, record: Any, error: Exception, broken: Exception) -> StepFailed:
    return StepFailed(
        f"{node.where}: {node.name} failed on {short(record, 80)}: {told(error)}; its error policy failed "
        f"too: {told(broken)}; mend the function that is given as on="
    )


class Along(NamedTuple):
    """What goes along with a record at the input of a step: with it, the record can be let in there again.

    ``time`` is in µs; ``port``: which of the step's inputs it is.
    """

    time: int | None = None
    key: Any = None
    port: int = 0


def letter(
    pipeline: str,
    step: str,
    record: Any,
    error: Exception,
    attempts: int,
    failed_at: datetime,
    along: Along | None,
) -> dict[str, Any]:
    """A dead letter. ``along`` None: it was no record that came in (a timer, a closed window)."""
    time, key, port = along or (None, None, None)
    return {
        "record": record,
        "error": str(error),
        "error_type": type(error).__name__,
        "step": step,
        "attempts": attempts,
        "pipeline": pipeline,
        "failed_at": failed_at,
        "time": None if time is None else moment(time),
        "key": key_to_json(key),
        "input": port,
    }
