"""What happens to a record whose step raises, and to records that come faster than they can be taken.

A policy is data, so that both engines do the same: so many tries with such pauses, and then the record stops
the pipeline ("fail", the default: nothing is lost), is left out and counted ("skip"), or goes to the dead
letters with its error, its step and its attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from datetime import timedelta
from typing import Any, Literal, TypeAlias, get_args

from queenstream.core import durations
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Queue, Sink, Source, function_name

Backoff: TypeAlias = Literal["exponential", "constant"]
Strategy: TypeAlias = Literal["block", "drop_oldest", "drop_newest", "error"]
Duration: TypeAlias = str | float | timedelta
Errors: TypeAlias = type[Exception] | tuple[type[Exception], ...] | Callable[[Exception, Any], object]
"""Some errors: by their classes, or by a function of the error and the record."""
Callback: TypeAlias = Callable[[Exception, Any, str], object]
"""Called with the error, the record and the name of the step."""

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
_WORDS = ("skip", "fail")


@dataclass(frozen=True, kw_only=True)
class ErrorPolicy:
    """Tries, the pauses between them, and what becomes of the record after the last; ``retry`` makes one.

    ``on``: the errors that are tried again, None: all. ``then`` is what becomes of these, ``otherwise`` of
    all others, at once (None: the same). ``callback`` is called before that, once for each record.

    >>> policy = ErrorPolicy(max_retries=3, delay=timedelta(seconds=1))
    >>> [policy.pause(attempt).total_seconds() for attempt in (1, 2, 3)]
    [1.0, 2.0, 4.0]
    """

    max_retries: int = 0
    backoff: Backoff = "exponential"
    delay: timedelta = timedelta(seconds=1)
    max_delay: timedelta = timedelta(minutes=1)
    then: Outcome = "fail"
    on: Errors | None = None
    otherwise: Outcome | None = None
    callback: Callback | None = None

    def __post_init__(self) -> None:
        if isinstance(self.max_retries, bool) or self.max_retries < 0:
            raise ConfigError(f"max_retries is {self.max_retries!r}; write 0 or more")
        if self.backoff not in get_args(Backoff):
            raise ConfigError(f"backoff is {self.backoff!r}; write 'exponential' or 'constant'")
        for name, outcome in (("then", self.then), ("otherwise", self.otherwise)):
            if outcome is not None and not isinstance(outcome, DeadLetters) and outcome not in _WORDS:
                raise ConfigError(f"{name} is {outcome!r}; write 'skip', 'fail' or DeadLetters('name')")
        self._check_functions()
        if len({each.sink.address for each in self.outcomes if isinstance(each, DeadLetters)}) > 1:
            raise ConfigError("then and otherwise name two places for dead letters; name the same one")

    def _check_functions(self) -> None:
        classes = self.on if isinstance(self.on, tuple) else (self.on,)
        if isinstance(self.on, tuple | type):
            if not self.on or not all(isinstance(e, type) and issubclass(e, Exception) for e in classes):
                raise ConfigError(f"on is {self.on!r}; write exceptions, such as on=(TimeoutError,)")
        elif self.on is not None and not callable(self.on):
            raise ConfigError(f"on is {self.on!r}; write exceptions, or a function of an error and a record")
        if self.otherwise is not None and self.on is None:
            raise ConfigError("otherwise is for the errors that on= leaves out; write on=(TimeoutError,)")
        if self.callback is not None and not callable(self.callback):
            raise ConfigError(
                f"callback is {self.callback!r}; write a function of an error, a record, a step"
            )

    @property
    def outcomes(self) -> tuple[Outcome, ...]:
        """All that may become of a record."""
        return (self.then,) if self.otherwise is None else (self.then, self.otherwise)

    @property
    def letters(self) -> DeadLetters | None:
        """Where its dead letters go, if it has any."""
        return next((each for each in self.outcomes if isinstance(each, DeadLetters)), None)

    def is_for(self, error: Exception, record: Any) -> bool:
        """Whether this is one of the errors that it tries again."""
        if self.on is None:
            return True
        if isinstance(self.on, tuple | type):
            return isinstance(error, self.on)
        return bool(self.on(error, record))

    def outcome(self, error: Exception, record: Any) -> Outcome:
        """What becomes of the record after the last try."""
        return self.then if self.otherwise is None or self.is_for(error, record) else self.otherwise

    def pause(self, attempt: int) -> timedelta:
        """How long to wait after the failed try number ``attempt``, counted from 1."""
        factor = 1 if self.backoff == "constant" else 1 << min(attempt - 1, 30)
        return min(self.delay * factor, self.max_delay)

    def __str__(self) -> str:
        tries = f"retry {self.max_retries} times, {self.backoff} from {durations.format(self.delay)}, then "
        told = f"{tries if self.max_retries else ''}{_shown(self.then)}"
        if self.on is not None:
            told += f", on {_named(self.on)}"
        if self.otherwise is not None:
            told += f"; else {_shown(self.otherwise)}"
        return told


def _shown(outcome: Outcome) -> str:
    return f"dead letters to {outcome.sink.title}" if isinstance(outcome, DeadLetters) else outcome


def _named(errors: Errors) -> str:
    each = errors if isinstance(errors, tuple) else (errors,)
    return " or ".join(function_name(one) for one in each)


FAIL = ErrorPolicy()
"""The default: the run stops before the record, with an error that names the step and the record."""

OnError: TypeAlias = Literal["skip", "fail", "retry"] | DeadLetters | ErrorPolicy


def retry(
    max_retries: int = 3,
    *,
    backoff: Backoff = "exponential",
    delay: Duration = "1s",
    max_delay: Duration = "1m",
    then: Outcome = "fail",
    on: Errors | None = None,
    otherwise: Outcome | None = None,
    callback: Callback | None = None,
) -> ErrorPolicy:
    """Try again, with growing pauses; after the last try the run stops, unless ``then`` says otherwise.

    ``on``: only these errors are tried again; any other goes at once to ``otherwise``, or without one to
    ``then``. A function gets the error and the record, and says whether it is one of them.

        retry(on=(TimeoutError, ConnectionError), then=DeadLetters("failed"), otherwise="skip")
        retry(on=lambda error, record: getattr(error, "retryable", False), then=DeadLetters("failed"))

    ``callback`` is called with the error, the record and the step's name when a record is given up on: in the
    process that found it (on Spark an executor's; the driver's, if the plan has no Python), again if its
    batch runs again. What it raises is logged.

    >>> print(retry(3, then=DeadLetters("failed-events")))
    retry 3 times, exponential from 1s, then dead letters to queue failed-events
    """
    return ErrorPolicy(
        max_retries=max_retries,
        backoff=backoff,
        delay=durations.parse(delay),
        max_delay=durations.parse(max_delay),
        then=then,
        on=on,
        otherwise=otherwise,
        callback=callback,
    )


def policy_of(on_error: OnError) -> ErrorPolicy:
    """The policy that a user's short form stands for.

    >>> print(policy_of("retry"), "|", policy_of("skip"))
    retry 3 times, exponential from 1s, then fail | skip
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
