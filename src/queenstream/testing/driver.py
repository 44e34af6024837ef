"""``PipelineDriver``: a pipeline that a test drives by hand. No server, no thread, no clock but the test's.

>>> from queenstream import Pipeline, Queue, count, tumbling
>>> totals = (
...     Pipeline("totals")
...     .source(Queue("clicks"))
...     .key_by("user")
...     .window(tumbling("1m"), time="at")
...     .aggregate(n=count())
...     .late(Queue("too-late"))
...     .to(Queue("totals"))
... )
>>> driver = PipelineDriver(totals)
>>> driver.send({"user": "ann", "at": "2026-01-31T12:00:10Z"})
>>> driver.send({"user": "ann", "at": "2026-01-31T12:00:50Z"})
>>> driver.crash()
>>> driver.advance("1m")
>>> [(row["user"], row["n"]) for row in driver.rows("totals")]
[('ann', 2)]
>>> driver.send({"user": "ann", "at": "2026-01-31T12:00:59Z"})
>>> [row["lateness_ms"] for row in driver.late()]
[51000]
"""

from __future__ import annotations

import asyncio
import copy
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeAlias

import msgspec

from queenstream.client._base.payloads import encode
from queenstream.connectors.rules import completed
from queenstream.core import durations
from queenstream.core.batches import Batch
from queenstream.core.windows import from_us, length_us, to_us
from queenstream.engines.local.engine import Engine, Outputs
from queenstream.engines.local.failures import Counts
from queenstream.errors import ConfigError
from queenstream.pipeline.analytics.rules import FixedBook, read_file
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.plan.nodes import Apply, EventTime, Late, Lookup, Node, Read, Replay, Write
from queenstream.pipeline.plan.planner import Plan
from queenstream.runtime.encoding import pack, unpack
from queenstream.testing.feed import Feed, as_datetime

Step: TypeAlias = Callable[[Engine], Coroutine[Any, Any, Outputs]]
"""One thing that happened to the engine: it can happen to another one just so."""

BEGINNING = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class Stats:
    """What happened since the pipeline was started, the last time.

    ``watermark``: what every step has reached; None: nothing yet. ``steps``: the counts of each step.
    """

    records: int
    rows: int
    late: int
    failed: int
    retried: int
    dead_letters: int
    watermark: datetime | None
    steps: Mapping[str, Counts]


@dataclass
class _Committed:
    """What a checkpoint would hold: bytes, so that what comes back is what a restart would find."""

    state: dict[str, dict[str | bytes, bytes]] = field(default_factory=dict)
    watermarks: dict[str, int] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()

    def take(self, engine: Engine, idle: frozenset[str]) -> None:
        """All that changed since the last time."""
        for name, changes in engine.changes().items():
            entries = self.state.setdefault(name, {})
            for key, value in changes.items():
                if value is None:
                    entries.pop(key, None)
                else:
                    entries[key] = pack(value)
        self.watermarks = engine.watermarks()
        self.idle = idle

    def restore(self, engine: Engine) -> None:
        """Into an engine that knows nothing yet."""
        state = {
            name: {key: unpack(value) for key, value in entries.items()}
            for name, entries in self.state.items()
        }
        engine.restore(state, self.watermarks)


class PipelineDriver:
    """Runs a pipeline in the test: its sources are what the test sends, its sinks are lists.

    Every ``send`` is a batch of its own, and time moves at the end of a batch. After every ``commit_every``
    batches there is a checkpoint; ``crash`` goes back to the last one. ``start`` is what the driver's clock
    shows at first: the event time of what is sent to a queue without a ``time``. ``rules``: the text of a
    file of rules, for steps that go by them.

    >>> with PipelineDriver(totals) as driver:  # doctest: +SKIP
    ...     driver.send({"user": "ann", "at": 0})
    ...     driver.end()
    ...     assert driver.rows() == [...]
    """

    def __init__(
        self,
        pipeline: Pipeline[Any] | Plan,
        *,
        commit_every: int = 1,
        start: datetime | str = BEGINNING,
        rules: str = "",
    ) -> None:
        if commit_every < 1:
            raise ConfigError(f"commit_every is {commit_every}; write after how many batches, from 1")
        self._books: dict[str, FixedBook] = {}
        self.plan = pipeline if isinstance(pipeline, Plan) else pipeline.plan()
        if rules:
            self.apply_rules(rules)
            self.plan = completed(self.plan, self._books)
        self._feeds = {read.name: Feed(read) for read in self.plan.sources}
        self._clocks = _clocks(self.plan)
        self._commit_every = commit_every
        self._now = as_datetime(start)
        self._idle: frozenset[str] = frozenset()
        self._ended = False
        self._committed = _Committed()
        self._pending: list[Step] = []
        self._undelivered = Outputs()
        self._delivered = Outputs()
        self._loop = _loop_for(self.plan)
        if self._loop is not None:
            weakref.finalize(self, self._loop.close)
        self._engine = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what async steps hold. Rows can still be looked at."""
        self._engine.close()
        if self._loop is not None:
            self._loop.close()

    # What happens to the pipeline

    def send(
        self,
        *records: Any,
        source: str | None = None,
        time: datetime | str | None = None,
        key: str | None = None,
    ) -> None:
        """Records arrive together, from ``source`` (which may be left out where there is only one).

        ``time`` is their event time, where the source has one of its own (a queue's ``created_at``); ``key``
        the partition of a queue's message, or the key of a topic's, where it has ``envelope=True``.

        >>> driver.send({"user": "ann"}, {"user": "bob"}, time="2026-01-31T12:00:00Z")  # doctest: +SKIP
        """
        feed = self._feed(source)
        self._send({feed: self._batch(feed, records, time, key)})

    def send_together(self, records: Mapping[str, Sequence[Any]]) -> None:
        """Records of several sources arrive in one batch.

        >>> driver.send_together({"queue:orders": [{"id": 1}], "queue:users": [{"id": 7}]})  # doctest: +SKIP
        """
        feeds = {self._feed(source): given for source, given in records.items()}
        self._send({feed: self._batch(feed, given, None, None) for feed, given in feeds.items()})

    def replay(self, *letters: Mapping[str, Any]) -> None:
        """Dead letters come back, as they were or edited; each record goes on at the step that failed on it.

        >>> [letter] = driver.dead_letters()  # doctest: +SKIP
        >>> driver.replay({**letter, "record": {"amount": 5}})  # doctest: +SKIP
        """
        known = {
            step: each.name for each in self.plan.sources if isinstance(each, Replay) for step in each.steps
        }
        for letter in letters:
            if letter["step"] not in known:
                steps = ", ".join(map(repr, known)) or "no step"
                raise ConfigError(f"no letters come back to {letter['step']!r}; they do to {steps}")
        for name in dict.fromkeys(known.values()):
            own = [letter for letter in letters if known[letter["step"]] == name]
            if own:  # as JSON, which is what a queue gives
                self.send(*(msgspec.json.decode(encode(letter)) for letter in own), source=name)

    def apply_rules(self, rules: str) -> None:
        """Sets of rules change, as with ``queen rules apply``: the text of a file says them.

        >>> driver.apply_rules("[fraud.patterns]\\nrapid = 'COUNT(*) > 5 IN 30s'")  # doctest: +SKIP
        """
        for name, found in read_file(rules).items():
            book = self._books.setdefault(name, FixedBook(found, 0))
            book.rules, book.number = found, book.number + 1

    def advance(self, by: str | float | timedelta) -> None:
        """Time passes: the clock, and event time from the latest that was seen, as if all sources showed it.

        Before the first record there is no event time to move: only the clock is turned.

        >>> driver.advance("5m")  # doctest: +SKIP
        """
        passed = durations.parse(by)
        self._now += passed
        seen = [time for name, time in self._engine.watermarks().items() if name in self._clocks]
        if seen:
            reached = max(seen) + length_us(passed)
            self._do(lambda engine: engine.advance(reached))

    def idle(self, source: str) -> None:
        """A source has been quiet for its ``idle_timeout``: it holds nobody back until its next record.

        >>> driver.idle("queue:orders")  # doctest: +SKIP
        """
        name = self._feed(source).name
        self._idle |= {name}
        self._do(lambda engine: engine.process({}, idle=[name]))

    def end(self) -> None:
        """All sources have ended: every window closes, and nothing can be sent after it."""
        self._check_open()
        self._ended = True
        self._do(lambda engine: engine.finish())

    def commit(self) -> None:
        """A checkpoint: what was done stays done, and its rows are in the sinks."""
        self._committed.take(self._engine, self._idle)
        self._pending.clear()
        self._delivered.add(self._undelivered)
        self._undelivered = Outputs()

    def crash(self) -> None:
        """As after ``kill -9``: the engine is gone, with all that it had done since the last checkpoint.

        A new one starts there, and the sources give it again what they had given since.
        """
        self._engine.close()
        self._undelivered = Outputs()
        self._engine = self._start()
        for step in self._pending:
            self._undelivered.add(self._run(step(self._engine)))

    # What came of it

    @property
    def now(self) -> datetime:
        """What the driver's clock shows."""
        return self._now

    def rows(self, sink: str | None = None) -> list[Any]:
        """What is in a sink, by its name (``"queue:totals"`` or ``"totals"``), in the order it was written.

        Where there is only one (beside late output and dead letters), the name may be left out.

        >>> driver.rows("totals")  # doctest: +SKIP
        """
        writes = {write.name: write for write in self.plan.sinks if sink is not None or not _is_late(write)}
        letters = {} if sink is None else {each.slug: each for each in self.plan.dead_letters}
        labels = {name: write.sink.label for name, write in writes.items()}
        labels = {name: each.label for name, each in letters.items()} | labels
        name = _choose("sink", sink, labels)
        if name in writes:
            return list(self._delivered.rows.get(name, ()))
        return list(self._delivered.dead_letters.get(letters[name].address, ()))

    def late(self) -> list[dict[str, Any]]:
        """What came too late, as ``Pipeline.late`` writes it; ``stats().late`` counts it in any case."""
        writes = [write.name for write in self.plan.sinks if _is_late(write)]
        return [row for name in writes for row in self._delivered.rows.get(name, ())]

    def dead_letters(self) -> list[dict[str, Any]]:
        """The records that steps gave up on, each with ``record``, ``error``, ``step`` and ``attempts``."""
        return [letter for letters in self._delivered.dead_letters.values() for letter in letters]

    def stats(self) -> Stats:
        """The figures since the pipeline was started; a crash starts them anew."""
        steps = {name: copy.copy(counts) for name, counts in self._engine.counts.items()}
        reached = self._engine.watermark
        return Stats(
            records=sum(steps[read.name].taken for read in self.plan.inputs),
            rows=sum(steps[write.name].taken for write in self.plan.sinks if not _is_late(write)),
            late=sum(counts.late for counts in steps.values()),
            failed=sum(counts.failed for counts in steps.values()),
            retried=sum(counts.retried for counts in steps.values()),
            dead_letters=sum(counts.dead_letters for counts in steps.values()),
            watermark=None if reached is None else from_us(reached),
            steps=steps,
        )

    # How it is done

    def _start(self) -> Engine:
        engine = Engine(self.plan, tracking=True, now=lambda: self._now, sleep=self._sleep)
        self._committed.restore(engine)
        if self._committed.idle:
            self._run(engine.process({}, idle=self._committed.idle))
        return engine

    async def _sleep(self, seconds: float) -> None:
        """A pause between two tries takes the test no time."""
        self._now += timedelta(seconds=seconds)

    def _feed(self, source: str | None) -> Feed:
        meant = {read.name for read in (self.plan.inputs if source is None else self.plan.sources)}
        labels = {name: feed.source.label for name, feed in self._feeds.items() if name in meant}
        return self._feeds[_choose("source", source, labels)]

    def _batch(
        self, feed: Feed, records: Sequence[Any], time: datetime | str | None, key: str | None
    ) -> Batch:
        batch = feed.batch(records, time, key, self._now)
        latest = batch.highest_time
        if latest is not None and latest > to_us(self._now):
            self._now = from_us(latest)
        return batch

    def _send(self, batches: Mapping[Feed, Batch]) -> None:
        self._check_open()
        self._idle -= {feed.name for feed, batch in batches.items() if batch.records}
        named = {feed.name: batch for feed, batch in batches.items()}
        # Steps may change the records that they get; after a crash these come as they were sent.
        self._do(lambda engine: engine.process(copy.deepcopy(named)))

    def _do(self, step: Step) -> None:
        self._undelivered.add(self._run(step(self._engine)))
        self._pending.append(step)
        if len(self._pending) >= self._commit_every:
            self.commit()

    def _check_open(self) -> None:
        if self._ended:
            raise ConfigError("the input has ended, nothing can come after it; make a new PipelineDriver")

    def _run(self, work: Coroutine[Any, Any, Outputs]) -> Outputs:
        if self._loop is not None:
            return self._loop.run_until_complete(work)
        try:
            work.send(None)
        except StopIteration as done:
            outputs: Outputs = done.value
            return outputs
        raise AssertionError("a plan without async steps never waits")


def _loop_for(plan: Plan) -> asyncio.AbstractEventLoop | None:
    """An event loop, if a step has use for one; without, a driver works in async tests too."""
    if any(isinstance(node, Lookup) for node in plan.nodes):
        return asyncio.new_event_loop()
    steps = [node for node in plan.nodes if isinstance(node, Apply)]
    if not any(step.is_async or step.concurrency > 1 or step.timeout is not None for step in steps):
        return None
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.new_event_loop()
    raise ConfigError(
        f"the pipeline {plan.name!r} has async steps, and an event loop runs here already; "
        "write the test as a plain function (def, not async def)"
    )


def _clocks(plan: Plan) -> frozenset[str]:
    """The steps whose event times the steps with state go by: the nearest ones before them."""
    found: set[str] = set()
    pending: list[Node] = [each for node in plan.nodes if node.keeps_state for each in node.inputs]
    while pending:
        node = pending.pop()
        if isinstance(node, Read | EventTime):
            found.add(node.name)
        else:
            pending += node.inputs
    return frozenset(found)


def _is_late(write: Write) -> bool:
    return isinstance(write.inputs[0], Late)


def _choose(what: str, said: str | None, labels: Mapping[str, str]) -> str:
    """The step that a test means: by its name, or as its queue, topic or function is called (``labels``)."""
    if said is not None and said in labels:
        return said
    meant = [name for name, label in labels.items() if said in (None, label)]
    if len(meant) == 1:
        return meant[0]
    known = ", ".join(map(repr, labels)) or "none"
    asked = f"there are {len(labels)}" if said is None else f"{said!r} is {'several' if meant else 'none'}"
    raise ConfigError(f"which {what}? {asked}; write one of {known}")
