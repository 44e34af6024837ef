"""StreamProcessor: filter, map, window, aggregate and join events inside one process, without a server.

    stream = StreamProcessor("my-stream")
    stream.filter(lambda event: event.data.get("value", 0) > 100).map(enrich).sink(print)
    stream.tumbling_window(10.0)
    stream.emit("event-1", {"value": 150, "user": "alice"})

Everything is in memory and bounded; for what must not be lost there are queues and pipelines, and
``as_pipeline`` takes the steps there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from queenstream.core import durations
from queenstream.core.windows import Session, Sliding, Tumbling, length_us
from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Record, Source
from queenstream.processor.event_log import EventLog
from queenstream.processor.events import Event, EventWindow, Instant, LateEvent, seconds_of, us_of
from queenstream.processor.metrics import ProcessorMetrics, Tally, report, report_late
from queenstream.processor.pipeline import ToRecord, pipeline_of
from queenstream.processor.queries import Aggregator, aggregated, counted, joined
from queenstream.processor.steps import Failure, Kind, LateStep, Step, name_of, run
from queenstream.processor.windows import Definition, Kept, WindowTable

__all__ = ["Event", "EventWindow", "LateEvent", "ProcessorMetrics", "StreamProcessor"]

Duration: TypeAlias = str | float | timedelta
Group = TypeVar("Group", bound=Hashable)

# As many windows as the broker lets one message lie in.
_MOST_WINDOWS_PER_EVENT = 1000


class StreamProcessor:
    """A stream of events in this process, with steps that each event passes as it is emitted.

    Steps run in the order in which they were added, in the thread that emits. All methods may be called from
    any thread, from steps too. A step that raises hits one event: it is counted and logged, and the stream
    goes on.

    The last ``max_events`` events are kept, and at most ``max_windows`` windows; what had to go is counted.
    ``clock`` gives the time in seconds, for events without a timestamp and for which windows are over.

    >>> stream = StreamProcessor("clicks")
    >>> seen = []
    >>> _ = stream.filter(lambda event: event.data["value"] > 100).sink(lambda event: seen.append(event.id))
    >>> _ = stream.emit("e1", {"value": 150}), stream.emit("e2", {"value": 50})
    >>> seen
    ['e1']
    """

    def __init__(
        self,
        name: str,
        *,
        max_events: int = 100_000,
        max_windows: int = 10_000,
        clock: Callable[[], float] = time.time,
    ) -> None:
        _check_bound("max_events", max_events)
        _check_bound("max_windows", max_windows)
        if not name.strip():
            raise ConfigError("a stream needs a name: its log lines and its pipeline go by it")
        self._name = name
        self._max_events = max_events
        self._max_windows = max_windows
        self._clock = clock
        # Held only around what is kept and counted, never while a function of the user's runs.
        self._lock = threading.Lock()
        self._steps: tuple[Step, ...] = ()
        self._late: tuple[LateStep, ...] = ()
        self._definition: Definition | None = None
        self._forget()

    @property
    def name(self) -> str:
        """What it is called in the log.

        >>> StreamProcessor("clicks").name
        'clicks'
        """
        return self._name

    def __repr__(self) -> str:
        return f"<StreamProcessor {self._name!r}>"

    # Steps

    def filter(self, predicate: Callable[[Event], object], *, name: str | None = None) -> StreamProcessor:
        """Only events for which this is true go on.

        >>> stream = StreamProcessor("clicks").filter(lambda event: event.data.get("type") == "important")
        >>> stream.emit("e1", {"type": "other"}) is None
        True
        """
        return self._add("filter", predicate, name)

    def map(self, function: Callable[[Event], Event], *, name: str | None = None) -> StreamProcessor:
        """Each event becomes what this returns: the same one with other data, or a new one.

        >>> def double(event):
        ...     event.data["double"] = event.data["value"] * 2
        ...     return event
        >>> StreamProcessor("clicks").map(double).emit("e1", {"value": 5}).data
        {'value': 5, 'double': 10}
        """
        return self._add("map", function, name)

    def sink(self, function: Callable[[Event], object], *, name: str | None = None) -> StreamProcessor:
        """Gets each event as it is at this place; there may be many.

        >>> stream = StreamProcessor("clicks").sink(lambda event: print(event.data))
        >>> _ = stream.emit("e1", {"value": 5})
        {'value': 5}
        """
        return self._add("sink", function, name)

    def late(self, function: Callable[[LateEvent], object], *, name: str | None = None) -> StreamProcessor:
        """Gets each event that came after all of its windows had been cleared; it is in none of them.

        >>> stream = StreamProcessor("clicks", clock=lambda: 30.0).tumbling_window(10.0)
        >>> _ = stream.late(lambda late: print(late.event.id, late.window_end, late.lateness))
        >>> _ = stream.clear_old_windows(), stream.emit("e1", {}, timestamp=7.0)
        e1 10.0 23.0
        """
        with self._lock:
            found = name_of("late", function, name, self._names())
            self._late = (*self._late, LateStep(found, function))
        return self

    def emit(
        self, id: str, data: Mapping[str, Any], key: str | None = None, timestamp: Instant | None = None
    ) -> Event | None:
        """Send an event through the steps; the event as it came out, or None if it did not.

        ``timestamp`` is in seconds since 1970, or a datetime, or ISO 8601 text; without one it is now. The
        dictionary is copied, so that a step which changes it does not change the caller's.

        >>> StreamProcessor("clicks").emit("e1", {"value": 5}, key="ann", timestamp="1970-01-01T00:01:00Z")
        Event(id='e1', data={'value': 5}, key='ann', timestamp=60.0)
        """
        if not isinstance(data, Mapping):
            raise ConfigError(f"the data of event {id!r} is {type(data).__name__}; give a dictionary")
        moment = self._clock() if timestamp is None else seconds_of(timestamp)
        passed = run(self._steps, Event(id, dict(data), key, moment))
        with self._lock:
            self._tally.fates[passed.fate] += 1
            failures = [(failure, self._tally.failed(failure)) for failure in passed.failures]
            late = None if passed.event is None else self._keep(passed.event)
        for failure, times in failures:
            report(self._name, failure, times)
        if late is not None:
            self._tell_late(late)
        return passed.event

    # Windows

    def tumbling_window(self, window_size: Duration) -> StreamProcessor:
        """Windows side by side, aligned to the epoch; a number counts seconds.

        A stream has one kind of windows. Another one replaces it, and takes the events that are kept.

        >>> stream = StreamProcessor("clicks").tumbling_window(window_size=10.0)
        >>> for moment in (3.0, 9.9, 10.0):
        ...     _ = stream.emit(f"e{moment}", {}, timestamp=moment)
        >>> [(window.start, window.end, len(window.events)) for window in stream.get_windows()]
        [(0.0, 10.0, 2), (10.0, 20.0, 1)]
        """
        return self._define(Tumbling(durations.parse(window_size)))

    def sliding_window(self, window_size: Duration, slide_interval: Duration) -> StreamProcessor:
        """Windows that overlap: one starts at every slide, and an event is in each that covers it.

        >>> stream = StreamProcessor("clicks").sliding_window(window_size=30.0, slide_interval=10.0)
        >>> _ = stream.emit("e1", {}, timestamp=25.0)
        >>> [(window.start, window.end) for window in stream.get_windows()]
        [(0.0, 30.0), (10.0, 40.0), (20.0, 50.0)]
        """
        definition = Sliding(durations.parse(window_size), durations.parse(slide_interval))
        most = min(_MOST_WINDOWS_PER_EVENT, self._max_windows)
        if definition.size_us > definition.slide_us * most:
            raise ConfigError(
                f"an event would lie in more than {most} windows; make slide_interval "
                f"{durations.format(definition.size / most)} or more"
            )
        return self._define(definition)

    def session_window(self, timeout: Duration) -> StreamProcessor:
        """A window for each run of events of one key: from the first to the last plus the timeout.

        >>> stream = StreamProcessor("clicks").session_window(timeout=300.0)
        >>> for moment in (0.0, 60.0, 420.0):
        ...     _ = stream.emit(f"e{moment}", {}, key="user-123", timestamp=moment)
        >>> [(window.key, window.start, window.end) for window in stream.get_windows()]
        [('user-123', 0.0, 360.0), ('user-123', 420.0, 720.0)]
        """
        return self._define(Session(durations.parse(timeout)))

    def get_windows(self, active_only: bool = False) -> list[EventWindow]:
        """The windows that have events, by start; ``active_only``: those whose end has not come yet.

        >>> stream = StreamProcessor("clicks", clock=lambda: 15.0).tumbling_window(10.0)
        >>> _ = stream.emit("e1", {}, timestamp=5.0), stream.emit("e2", {}, timestamp=12.0)
        >>> len(stream.get_windows()), [window.start for window in stream.get_windows(active_only=True)]
        (2, [10.0])
        """
        now = us_of(self._clock())
        with self._lock:
            kept = self._windows or ()
            return [self._shown(window) for window in kept if not active_only or now < window.span.end]

    def clear_old_windows(self) -> int:
        """Remove the windows whose end has come; how many they were. What still comes for them is late.

        >>> stream = StreamProcessor("clicks", clock=lambda: 15.0).tumbling_window(10.0)
        >>> _ = stream.emit("e1", {}, timestamp=5.0), stream.emit("e2", {}, timestamp=12.0)
        >>> stream.clear_old_windows(), len(stream.get_windows())
        (1, 1)
        """
        now = us_of(self._clock())
        with self._lock:
            return 0 if self._windows is None else self._windows.clear(now)

    def aggregate_window(self, window: EventWindow, aggregators: Mapping[str, Aggregator]) -> dict[str, Any]:
        """A value for each name: what a function says of the window's events, or an ``Aggregate``.

        The fields of an ``Aggregate`` are those of the events' data; ``value`` and ``data.value`` are the
        same.

        >>> from queenstream.core.aggregates import avg
        >>> stream = StreamProcessor("clicks").tumbling_window(10.0)
        >>> for value in (1, 2, 6):
        ...     _ = stream.emit(f"e{value}", {"value": value}, timestamp=value)
        >>> stream.aggregate_window(stream.get_windows()[0], {"count": len, "mean": avg("value")})
        {'count': 3, 'mean': 3.0}
        """
        return {name: aggregated(name, each, window.events) for name, each in aggregators.items()}

    # What is kept

    def group_by(self, function: Callable[[Event], Group]) -> dict[Group, list[Event]]:
        """The events that are kept, by what the function says, in the order of arrival.

        >>> stream = StreamProcessor("clicks")
        >>> _ = stream.emit("e1", {"user": "ann"}), stream.emit("e2", {"user": "bob"})
        >>> {user: len(events) for user, events in stream.group_by(lambda event: event.data["user"]).items()}
        {'ann': 1, 'bob': 1}
        """
        groups: dict[Group, list[Event]] = {}
        for event in self._arrived():
            groups.setdefault(function(event), []).append(event)
        return groups

    def count_by_key(self, field: str) -> dict[Any, int]:
        """How many of the events that are kept have which value in a field; those without it do not count.

        >>> stream = StreamProcessor("clicks")
        >>> for number in range(3):
        ...     _ = stream.emit(f"e{number}", {"instance_id": f"instance-{number % 2}"})
        >>> stream.count_by_key("instance_id")
        {'instance-0': 2, 'instance-1': 1}
        """
        return counted(self._arrived(), field)

    def join_streams(
        self, other: StreamProcessor, join_key: str, window_seconds: Duration
    ) -> list[tuple[Event, Event]]:
        """Pairs of an event of this stream and one of the other, of those that are kept.

        They have the same value in the field ``join_key`` and lie at most ``window_seconds`` apart. Pairs
        stand by the time of ours, then of theirs. An event without the field has no partner.

        >>> logins, places = StreamProcessor("logins"), StreamProcessor("places")
        >>> _ = logins.emit("e1", {"user_id": "alice", "action": "login"}, timestamp=0.0)
        >>> _ = places.emit("e2", {"user_id": "alice", "location": "NYC"}, timestamp=60.0)
        >>> [(one.id, two.id) for one, two in logins.join_streams(places, "user_id", 60.0)]
        [('e1', 'e2')]
        """
        apart = length_us(durations.parse(window_seconds))
        ours = self._between(None, None)
        if not ours:
            return []
        # One lock at a time, so that two streams can be joined both ways at once.
        theirs = other._between(ours[0].us - apart, ours[-1].us + apart + 1)
        return joined(ours, theirs, join_key, apart)

    def get_recent_events(self, count: int = 10) -> list[Event]:
        """The last events to arrive, oldest first.

        >>> stream = StreamProcessor("clicks")
        >>> for number in range(5):
        ...     _ = stream.emit(f"e{number}", {})
        >>> [event.id for event in stream.get_recent_events(count=2)]
        ['e3', 'e4']
        """
        if count < 0:
            raise ConfigError(f"count is {count}; write 0 or more")
        with self._lock:
            return self._log.recent(count)

    def get_events_in_range(self, start: Instant, end: Instant | None = None) -> list[Event]:
        """The events in ``[start, end)``, by time; without an end, all from ``start`` on.

        As with windows, ``start`` belongs to it and ``end`` does not.

        >>> stream = StreamProcessor("clicks")
        >>> for moment in (10.0, 20.0, 30.0):
        ...     _ = stream.emit(f"e{moment:g}", {}, timestamp=moment)
        >>> [event.id for event in stream.get_events_in_range(10.0, 30.0)]
        ['e10', 'e20']
        """
        return self._between(us_of(start), None if end is None else us_of(end))

    # The whole

    def get_metrics(self) -> ProcessorMetrics:
        """How much came, went on, was left out and is kept; ``ProcessorMetrics`` says what each means.

        >>> stream = StreamProcessor("clicks").map(lambda event: event.data["nothing"])
        >>> _ = stream.emit("e1", {})
        >>> metrics = stream.get_metrics()
        >>> metrics["events_failed"], metrics["last_error"]
        (1, "step 'map' failed on event 'e1': KeyError: 'nothing'")
        """
        with self._lock:
            tally, windows = self._tally, self._windows
            return {
                "events_received": tally.fates.total(),
                "events_processed": tally.fates["processed"],
                "events_filtered": tally.fates["filtered"],
                "events_failed": tally.fates["failed"],
                "events_late": tally.late,
                "events_evicted": self._log.evicted,
                "events_kept": len(self._log),
                "windows_created": tally.windows_created,
                "windows_cleared": tally.windows_cleared,
                "windows_evicted": tally.windows_evicted,
                "windows_kept": 0 if windows is None else len(windows),
                "errors": tally.errors_by_step.total(),
                "errors_by_step": dict(tally.errors_by_step),
                "last_error": tally.last_error,
            }

    def reset(self) -> None:
        """Forget all events, windows and figures. Steps stay, and so does the kind of windows.

        >>> stream = StreamProcessor("clicks")
        >>> _ = stream.emit("e1", {})
        >>> stream.reset()
        >>> stream.get_metrics()["events_received"], stream.get_recent_events()
        (0, [])
        """
        with self._lock:
            self._forget()

    def as_pipeline(
        self,
        source: Source[Record],
        *,
        id: str = "id",
        data: str = "data",
        key: str = "key",
        time: str = "timestamp",
        grace: Duration = 0,
    ) -> Pipeline[Record]:
        """The same steps as a pipeline, for Spark or the local engine; the stream itself does not change.

        A record of the source becomes an event by the paths of its parts: ``id`` and ``key`` (none, if they
        are not there), ``data`` (the empty path is the whole record) and ``time``, which is read as ``emit``
        reads a timestamp. For messages of a queue with their data around them, write
        ``as_pipeline(Queue("clicks", envelope=True), key="partition", time="created_at")``.

        Behind the steps, records have ``id``, ``data``, ``key`` and ``timestamp``, so that aggregates take
        ``sum_("data.value")``. If the stream has windows, the pipeline waits for ``.aggregate(…)``; there a
        window closes ``grace`` after its end instead of when it is cleared.

        >>> from queenstream.pipeline.endpoints import Memory
        >>> from queenstream.pipeline.shorthand import count
        >>> stream = StreamProcessor("clicks").filter(lambda event: event.data["value"] > 1)
        >>> clicks = Memory([{"id": "e1", "data": {"value": 5}, "timestamp": 12.0}])
        >>> pipeline = stream.tumbling_window("10s").as_pipeline(clicks).aggregate(n=count()).to(print)
        >>> [node.name for node in pipeline.plan().nodes]
        ['memory', 'event', 'event_time', 'filter', 'aggregate', 'function:print']
        """
        with self._lock:
            steps, definition = self._steps, self._definition
        pipeline = pipeline_of(self._name, source, ToRecord(id, data, key, time), steps)
        if definition is None:
            return pipeline
        keyed = pipeline.key_by("key") if isinstance(definition, Session) else pipeline
        return keyed.window(definition, grace=grace)

    # Inside

    def _forget(self) -> None:
        self._tally = Tally()
        self._log = EventLog(self._max_events)
        self._windows = self._placed(self._definition)

    def _names(self) -> set[str]:
        return {step.name for step in self._steps} | {step.name for step in self._late}

    def _add(self, kind: Kind, function: Callable[[Event], Any], name: str | None) -> StreamProcessor:
        with self._lock:
            self._steps = (*self._steps, Step(kind, name_of(kind, function, name, self._names()), function))
        return self

    def _define(self, definition: Definition) -> StreamProcessor:
        with self._lock:
            if definition != self._definition:
                self._definition = definition
                self._windows = self._placed(definition)
        return self

    def _placed(self, definition: Definition | None) -> WindowTable | None:
        """The windows of the events that are kept."""
        if definition is None:
            return None
        self._log.forgive()
        table = WindowTable(definition, self._max_windows, self._tally, self._log.evicted_us)
        for event in self._log:
            table.add(event.key, event.us)
        return table

    def _shown(self, window: Kept) -> EventWindow:
        span = window.span
        if isinstance(self._definition, Session):
            events = self._log.of_session(window.key, span.start, span.end)
        else:
            events = self._log.between(span.start, span.end)
        complete = window.whole and len(events) == window.total
        return EventWindow(span.start / 1_000_000, span.end / 1_000_000, window.key, tuple(events), complete)

    def _arrived(self) -> list[Event]:
        with self._lock:
            return list(self._log)

    def _between(self, start: int | None, end: int | None) -> list[Event]:
        with self._lock:
            return self._log.between(start, end)

    def _keep(self, event: Event) -> LateEvent | None:
        """Keep an event and place it; what to say of it, if it is late. The lock is held."""
        missed = None if self._windows is None else self._windows.add(event.key, event.us)
        self._log.add(event, late=missed is not None)
        if missed is None:
            return None
        self._tally.late += 1
        start, end = missed.span.start / 1_000_000, missed.span.end / 1_000_000
        return LateEvent(event, start, end, missed.lateness_us / 1_000_000)

    def _tell_late(self, late: LateEvent) -> None:
        functions = self._late
        if not functions:
            report_late(self._name, late, self._tally.late)
        for step in functions:
            try:
                step.function(late)
            except Exception as error:  # noqa: BLE001 - as with every function of the user's
                failure = Failure(step.name, late.event.id, error)
                with self._lock:
                    times = self._tally.failed(failure)
                report(self._name, failure, times)


def _check_bound(what: str, most: object) -> None:
    # True is an int to Python; as a bound it is a mistake.
    if not isinstance(most, int) or isinstance(most, bool) or most < 1:
        raise ConfigError(f"{what} is {most!r}; write how many may be kept, from 1")
