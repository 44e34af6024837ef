"""What happens to a record whose step raises, and to records that come faster than they can be taken.

A step that raises hits one record, not the pipeline. The policy is data, so that both engines do the same:
so many tries with such pauses, and then the record is left out and counted ("skip"), stops the pipeline
("fail"), or goes to the dead letters with its error, its step and its attempts.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from queenstream import durations
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Queue, Sink, Source

Backoff: TypeAlias = Literal["exponential", "constant"]
Strategy: TypeAlias = Literal["block", "drop_oldest", "drop_newest", "error"]
Duration: TypeAlias = str | float | timedelta

REPLAY = ".replay"
"""What is added to the name of a queue of dead letters: there they come back."""


@dataclass(frozen=True)
class DeadLetters:
    """Where records go that a step gave up on: a queue by its name, or any sink.

    A dead letter has ``record``, ``error``, ``error_type``, ``step``, ``attempts``, ``pipeline``,
    ``failed_at``, and what went along with the record: ``time``, ``key`` and ``input``.

    The pipeline also reads the queue ``<name>.replay``: a letter that somebody puts there (``Letters``, or
    ``queen pipeline dlq replay``) lets its record in again, at the step that failed on it. ``replay``: False,
    or another source of letters.

    >>> letters = DeadLetters("failed-events")
    >>> letters.sink.title, letters.comes_back_from.title
    ('queue failed-events', 'queue failed-events.replay')
    """

    to: str | Sink
    _: KW_ONLY
    replay: bool | Source[Any] = True

    @property
    def sink(self) -> Sink:
        """Where they are written."""
        return Queue(self.to) if isinstance(self.to, str) else self.to

    @property
    def comes_back_from(self) -> Source[Any] | None:
        """Where letters are taken from that are to be tried again; None: nowhere."""
        if isinstance(self.replay, Source):
            return self.replay
        sink = self.sink
        return Queue(sink.name + REPLAY, url=sink.url) if self.replay and isinstance(sink, Queue) else None


Outcome: TypeAlias = Literal["skip", "fail"] | DeadLetters


@dataclass(frozen=True, kw_only=True)
class ErrorPolicy:
    """Tries, the pauses between them, and what becomes of the record after the last; ``retry`` makes one.

    >>> policy = ErrorPolicy(max_retries=3, delay=timedelta(seconds=1))
    >>> [policy.pause(attempt).total_seconds() for attempt in (1, 2, 3)]
    [1.0, 2.0, 4.0]
    """

    max_retries: int = 0
    backoff: Backoff = "exponential"
    delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(minutes=1)
    then: Outcome = "skip"

    def __post_init__(self) -> None:
        if isinstance(self.max_retries, bool) or self.max_retries < 0:
            raise ConfigError(f"max_retries is {self.max_retries!r}; write 0 or more")
        if self.backoff not in get_args(Backoff):
            raise ConfigError(f"backoff is {self.backoff!r}; write 'exponential' or 'constant'")
        if not isinstance(self.then, DeadLetters) and self.then not in ("skip", "fail"):
            raise ConfigError(f"then is {self.then!r}; write 'skip', 'fail' or DeadLetters('name')")

    def pause(self, attempt: int) -> timedelta:
        """How long to wait after the failed try number ``attempt``, counted from 1."""
        factor = 1 if self.backoff == "constant" else 1 << min(attempt - 1, 30)
        return min(self.delay * factor, self.max_delay)

    def __str__(self) -> str:
        tries = f"retry {self.max_retries} times, {self.backoff} from {durations.format(self.delay)}, then "
        then = f"dead letters to {self.then.sink.title}" if isinstance(self.then, DeadLetters) else self.then
        return f"{tries if self.max_retries else ''}{then}"


SKIP = ErrorPolicy()
"""What holds where nobody said anything: the record is left out, counted and reported."""

OnError: TypeAlias = Literal["skip", "fail", "retry"] | DeadLetters | ErrorPolicy


def retry(
    max_retries: int = 3,
    *,
    backoff: Backoff = "exponential",
    delay: Duration = "1s",
    max_delay: Duration = "1m",
    then: Outcome = "skip",
) -> ErrorPolicy:
    """Try again, with growing pauses, and then do something else.

    >>> print(retry(3, then=DeadLetters("failed-events")))
    retry 3 times, exponential from 1s, then dead letters to queue failed-events
    """
    return ErrorPolicy(
        max_retries=max_retries,
        backoff=backoff,
        delay=durations.parse(delay),
        max_delay=durations.parse(max_delay),
        then=then,
    )


def policy_of(on_error: OnError) -> ErrorPolicy:
    """The policy that a user's short form stands for.

    >>> print(policy_of("retry"), "|", policy_of("skip"))
    retry 3 times, exponential from 1s, then skip | skip
    """
    if isinstance(on_error, ErrorPolicy):
        return on_error
    if isinstance(on_error, DeadLetters):
        return ErrorPolicy(then=on_error)
    if on_error == "retry":
        return retry()
    if on_error in ("skip", "fail"):
        return ErrorPolicy(then=on_error)
    raise ConfigError(f"on_error is {on_error!r}; write 'skip', 'fail', 'retry' or DeadLetters('name')")


@dataclass(frozen=True)
class Backpressure:
    """What a source that cannot be slowed does when ``threshold`` records wait.

    ``block`` slows the source, and loses nothing; the others are for sources that do not wait.
    """

    strategy: Strategy = "block"
    threshold: int = 10_000

    def __post_init__(self) -> None:
        if self.strategy not in get_args(Strategy):
            known = ", ".join(map(repr, get_args(Strategy)))
            raise ConfigError(f"backpressure is {self.strategy!r}; write one of {known}")
        if isinstance(self.threshold, bool) or self.threshold < 1:
            raise ConfigError(f"the threshold is {self.threshold!r}; write how many records may wait, from 1")

    def __str__(self) -> str:
        return f"{self.strategy} at {self.threshold}"


BLOCK = Backpressure()
"""What holds where nobody said anything."""
