"""Streams on a real broker against the arithmetic of ``core.windows``, driven by random operations.

The oracle knows every message, and says at any moment which windows are closed, what is in them, and what was
too late. ``QUEENSTREAM_LONG=1`` runs it for longer. Hypothesis prints the failing example.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import httpx
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from queenstream import config
from queenstream.broker.app import Broker
from queenstream.core.windows import (
    Count,
    Definition,
    Late,
    Session,
    Sliding,
    Span,
    Tumbling,
    Watermark,
    iso,
    length_us,
    place,
    to_us,
    window_id,
    windows_of,
)

T = TypeVar("T")

LONG = bool(os.environ.get("QUEENSTREAM_LONG"))
EXAMPLES, STEPS = (600, 50) if LONG else (40, 30)
LEAST_STEPS = 10_000 if LONG else 500

GLOBAL = "__GLOBAL__"
PARTITIONS = ("a", "b", "c")
GROUPS = ("one", "two")
LEASE_SECONDS = 20.0
WAIT_MS, PATIENCE = 500, 10  # for what has to come
LONG_AGO = "1900-01-01T00:00:00Z"
# Behind the broker's clock, and ahead of it: event times are nobody's but the producer's.
EVENTS_BEGIN = [to_us(datetime(year, 6, 1, tzinfo=UTC)) for year in (1969, 2025, 2027)]
_numbers = itertools.count(1)

# Whether a source holds something that the stream has not read.
UNREAD = (
    "select exists (select from queen.stream_sources s join queen.cursors c on c.group_id = s.group_id "
    "where s.stream_id = $1 and c.ready_at is not null) as unread"
)

SECOND = timedelta(seconds=1)
DEFINITIONS: tuple[Definition, ...] = (
    Tumbling(10 * SECOND),
    Sliding(10 * SECOND, 5 * SECOND),
    Sliding(10 * SECOND, 4 * SECOND),
    Session(6 * SECOND),
    Count(3),
    Count(3, slide=2),
)


def body_of(definition: Definition) -> dict[str, Any]:
    """A definition as the broker takes it."""
    match definition:
        case Tumbling(size):
            return {"window_type": "tumbling", "window_duration_ms": size // SECOND * 1000}
        case Sliding(size, slide):
            more = {"window_slide_ms": slide // SECOND * 1000}
            return {"window_type": "sliding", "window_duration_ms": size // SECOND * 1000, **more}
        case Session(gap):
            return {"window_type": "session", "window_session_gap_ms": gap // SECOND * 1000}
        case Count(size, slide):
            more = {} if slide is None else {"window_slide_count": slide}
            return {"window_type": "count", "window_size_count": size, **more}


@dataclass(frozen=True)
class Message:
    id: int
    queue: str
    partition: str
    created_us: int
    event_us: int | None
    push: int  # windows close between pushes, never inside one


@dataclass
class Window:
    """What the oracle says that a closed window is."""

    id: str
    key: str
    span: Span
    ids: list[int]


@dataclass
class Oracle:
    """All messages of a stream in the order of their arrival, and what follows from them."""

    stream_id: str
    definition: Definition
    grace_us: int
    event_time: bool
    partitioned: bool
    sources: tuple[str, ...]
    messages: list[Message] = field(default_factory=list)

    def key(self, message: Message) -> str:
        return message.partition if self.partitioned else GLOBAL

    def window(self, key: str, place: Span | range, span: Span, messages: list[Message]) -> Window:
        ordered = sorted(messages, key=lambda message: (message.created_us, message.id))
        return Window(window_id(self.stream_id, key, place), key, span, [message.id for message in ordered])

    def closed(self, now_us: int) -> tuple[dict[str, list[Window]], set[int]]:
        """The closed windows of every key in their order, and the late messages."""
        if self.event_time:
            return self._by_event_time()
        keys: dict[str, list[Message]] = {}
        for message in self.messages:
            keys.setdefault(self.key(message), []).append(message)
        return {key: self._by_arrival(key, arrived, now_us) for key, arrived in keys.items()}, set()

    def _by_arrival(self, key: str, arrived: list[Message], now_us: int) -> list[Window]:
        found = windows_of(self.definition, arrived, lambda message: message.created_us)
        if isinstance(self.definition, Count):
            ranges = self.definition.ranges(len(arrived))
            return [self.window(key, r, *one) for r, one in zip(ranges, found, strict=True)]
        return [
            self.window(key, span, span, messages)
            for span, messages in found
            if span.ripe_at(self.grace_us) <= now_us
        ]

    def _by_event_time(self) -> tuple[dict[str, list[Window]], set[int]]:
        watermark = Watermark(self.sources)
        windows: dict[str, dict[Span, list[Message]]] = {}
        late: set[int] = set()
        for _, together in itertools.groupby(self.messages, key=lambda message: message.push):
            seen: list[Message] = []
            for message in together:
                taking: list[list[Message]] = []
                if message.event_us is not None:
                    seen.append(message)
                    spans = windows.setdefault(self.key(message), {})
                    taking = self._take(spans, message.event_us, watermark.time)
                for messages in taking:
                    messages.append(message)
                if not taking:
                    late.add(message.id)
            for message in seen:
                watermark.observe(message.queue, message.event_us or 0)
        reached = watermark.time
        return {
            key: [
                self.window(key, span, span, messages)
                for span, messages in sorted(spans.items(), key=lambda item: item[0])
                if reached is not None and span.ripe_at(self.grace_us) <= reached
            ]
            for key, spans in windows.items()
        }, late

    def _take(
        self, spans: dict[Span, list[Message]], event_us: int, watermark: int | None
    ) -> list[list[Message]]:
        """The contents of the windows that still take an event; sessions grow together on the way."""
        if not isinstance(self.definition, Session):
            assert not isinstance(self.definition, Count)
            placed = place(self.definition.assign(event_us), event_us, watermark, self.grace_us)
            return [] if isinstance(placed, Late) else [spans.setdefault(span, []) for span in placed]
        still_open = [s for s in spans if watermark is None or watermark < s.ripe_at(self.grace_us)]
        together, taken = self.definition.add(still_open, event_us)
        if isinstance(place([together], event_us, watermark, self.grace_us), Late):
            return []
        held = [message for span in taken for message in spans.pop(span)]
        spans[together] = held
        return [held]


class World:
    """A broker with a clock that only the test turns, an event loop to run it in, and HTTP to it."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.url = url
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.steps = 0
        self.run(self._start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    async def _start(self) -> None:
        settings = config.load({"port": 0, "drain_timeout": "2s"}, {}, None)
        self.broker = Broker(settings, self.url, clock=lambda: self.now)
        await self.broker.start()
        self.http = httpx.AsyncClient(base_url=self.broker.address, timeout=60)

    async def _stop(self) -> None:
        await self.http.aclose()
        await self.broker.stop()

    def restart(self) -> None:
        self.run(self._stop())
        self.run(self._start())

    def close(self) -> None:
        self.run(self._stop())
        self.runner.close()

    def post(self, path: str, body: Any, *statuses: int) -> tuple[int, Any]:
        answer = self.run(self.http.post(f"/api/v1/{path}", json=body))
        assert answer.status_code in (statuses or (200, 201)), (path, body, answer.text)
        return answer.status_code, answer.json() if answer.content else None

    def get(self, path: str, **query: Any) -> Any:
        answer = self.run(self.http.get(f"/api/v1/resources/streams/{path}", params=query))
        assert answer.status_code == 200, answer.text
        return answer.json()


@dataclass
class Taken:
    """A window that was handed out, and how long its lease holds."""

    group: str
    window: dict[str, Any]
    until: datetime
    over: bool = False  # acknowledged, failed, or made void by a seek


@dataclass
class Group:
    """A consumer group since its last seek."""

    floor_us: int | None = None  # windows that start before this are not for it
    acked: set[str] = field(default_factory=set)
    deliveries: dict[str, int] = field(default_factory=dict)
    order: dict[str, list[str]] = field(default_factory=dict)  # by key: windows as they first came


class Machine(RuleBasedStateMachine):
    """Random pushes, polls, acks, renewals, seeks, restarts and turns of the clock on one stream."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.number = next(_numbers)
        self.stream = f"s{self.number}"
        self.oracle: Oracle | None = None
        self.front_us = EVENTS_BEGIN[0]  # about where event times have got to
        self.groups: dict[str, Group] = {}
        self.taken: list[Taken] = []
        self.contents: dict[str, list[int]] = {}  # every window as it was first seen, by any group

    @property
    def now_us(self) -> int:
        return to_us(self.world.now)

    @property
    def known(self) -> Oracle:
        assert self.oracle is not None
        return self.oracle

    @initialize(
        definition=st.sampled_from(DEFINITIONS),
        event_time=st.booleans(),
        partitioned=st.booleans(),
        queues=st.sampled_from([1, 2, 2]),
        grace_seconds=st.sampled_from([0, 0, 5]),
        in_flight=st.sampled_from([1, 1, 1, 2]),
        begin_us=st.sampled_from(EVENTS_BEGIN),
    )
    def define(
        self, definition: Definition, event_time: bool, partitioned: bool, queues: int, grace_seconds: int,
        in_flight: int, begin_us: int,
    ) -> None:  # fmt: skip
        sources = tuple(f"q{self.number}-{n}" for n in range(queues))
        self.in_flight = in_flight
        self.front_us = begin_us
        event_time = event_time and not isinstance(definition, Count)
        for queue in sources:
            self.world.post("configure", {"queue": queue, "options": {"ttl": 0}})
        body = {
            "name": self.stream, "namespace": "tests", "source_queue_names": list(sources),
            "partitioned": partitioned, "window_grace_period_ms": 1000 * grace_seconds,
            "window_lease_timeout_ms": int(1000 * LEASE_SECONDS), "retry_limit": 1000,
            "max_in_flight": in_flight, **body_of(definition),
        }  # fmt: skip
        if event_time:
            body["event_time_path"] = "data.ts"
        _, answer = self.world.post("stream/define", body)
        self.oracle = Oracle(
            str(answer["stream_id"]), definition, length_us(grace_seconds * SECOND), event_time, partitioned,
            sources,
        )  # fmt: skip

    # Messages and time

    @rule(
        items=st.lists(
            st.tuples(
                st.integers(0, 1),
                st.sampled_from(PARTITIONS),
                st.integers(0, 6),
                st.sampled_from([0, 0, 0, 0, 3, 12, 40, None]),
            ),
            min_size=1,
            max_size=6,
        )
    )
    def push(self, items: list[tuple[int, str, int, int | None]]) -> None:
        """Event times go forward on the whole; some lie back, some are missing."""
        sent: list[tuple[str, str, int | None]] = []
        first = items[0][0]
        for drawn, partition, forward, back in items:
            # A push into two queues is two to the watermark, in an order that nobody promises.
            queue = first if self.known.event_time else drawn
            self.front_us += forward * 1_000_000
            event_us = None if back is None else self.front_us - back * 1_000_000
            sent.append((self.known.sources[queue % len(self.known.sources)], partition, event_us))
        self.store(sent)

    def store(self, sent: list[tuple[str, str, int | None]]) -> None:
        self.world.steps += 1
        body = [
            {"queue": queue, "partition": partition, "payload": {} if us is None else {"ts": iso(us)}}
            for queue, partition, us in sent
        ]
        _, results = self.world.post("push", {"items": body})
        new = [
            Message(int(result["message_id"]), *item[:2], self.now_us, item[2], self.world.steps)
            for item, result in zip(sent, results, strict=True)
        ]
        # One push stands in the store by id, whatever its order in the request.
        self.known.messages += sorted(new, key=lambda message: message.id)
        if self.known.event_time:
            # What is late depends on what was read before: let every push be read by itself.
            self.world.run(self.read_to_the_end())

    async def read_to_the_end(self) -> None:
        async with asyncio.timeout(20):
            while (await self.world.broker.database.hot(UNREAD, int(self.known.stream_id)))[0]["unread"]:  # noqa: ASYNC110
                await asyncio.sleep(0.002)

    @rule(seconds=st.sampled_from([0.3, 3.1, 6, 11.3, 23.9]))
    def turn(self, seconds: float) -> None:
        """Windows become ripe, leases run out."""
        self.world.steps += 1
        self.world.now += timedelta(seconds=seconds)

    @rule(chance=st.integers(0, 7))
    def restart(self, chance: int) -> None:
        if chance == 7:
            self.world.steps += 1
            self.world.restart()

    # Windows

    def holding(self, group: str, key: str) -> list[Taken]:
        """The leases of a key that hold."""
        return [
            t
            for t in self.taken
            if t.group == group and t.window["key"] == key and not t.over and self.world.now < t.until
        ]

    def left(self, name: str) -> dict[str, list[Window]]:
        """By key: the closed windows that a group has yet to acknowledge, in their order."""
        group = self.groups[name]
        closed, _ = self.known.closed(self.now_us)
        return {
            key: [
                window
                for window in windows
                if window.id not in group.acked
                and (group.floor_us is None or window.span.start >= group.floor_us)
            ]
            for key, windows in closed.items()
        }

    def ready(self, name: str) -> tuple[set[str], set[str]]:
        """The windows that must come, and those that may."""
        must: set[str] = set()
        may: set[str] = set()
        for key, windows in self.left(name).items():
            out = {t.window["id"] for t in self.holding(name, key)}
            free = [window.id for window in windows[: self.in_flight] if window.id not in out]
            may.update(free[:1])
            if not out:
                must.update(free[:1])
        return must, may

    @rule(name=st.sampled_from(GROUPS))
    def poll(self, name: str) -> None:
        self.world.steps += 1
        group = self.groups.setdefault(name, Group())
        for _ in range(PATIENCE):
            must, may = self.ready(name)
            body = {"streamName": self.stream, "consumerGroup": name, "timeout": WAIT_MS if must else 20}
            _, answer = self.world.post("stream/poll", body, 200, 204)
            if answer is not None or not must:
                break
            # A pop that met a push looks again a few milliseconds later, by a clock that stands still.
            self.world.now += timedelta(milliseconds=10)
        if answer is None:
            assert not must, f"these windows should have come: {must}"
            return
        window = answer["window"]
        assert window["id"] in may, f"{window['id']} came, but only these could: {may}"
        self.check_content(window)
        deliveries = group.deliveries.get(window["id"], 0) + 1
        assert window["attempt"] == deliveries
        group.deliveries[window["id"]] = deliveries
        if deliveries == 1:
            group.order.setdefault(window["key"], []).append(window["id"])
        self.taken.append(Taken(name, window, self.world.now + timedelta(seconds=LEASE_SECONDS)))

    def check_content(self, window: dict[str, Any]) -> None:
        """As the oracle says, and the same whenever and to whomever it comes."""
        closed, _ = self.known.closed(self.now_us)
        [expected] = [w for w in closed[window["key"]] if w.id == window["id"]]
        ids = [int(message["id"]) for message in window["messages"]]
        assert ids == expected.ids
        assert self.contents.setdefault(window["id"], ids) == ids
        assert window["complete"] is True
        if not isinstance(self.known.definition, Count):
            assert (window["start"], window["end"]) == (iso(expected.span.start), iso(expected.span.end))

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 4), success=st.sampled_from([True, True, True, False]))
    def ack(self, which: int, success: bool) -> None:
        """Under a lease that holds, or one that does not."""
        self.world.steps += 1
        taken = self.taken[-1 - which % len(self.taken)]
        holds = not taken.over and self.world.now < taken.until
        body = {"windowId": taken.window["id"], "leaseId": taken.window["leaseId"], "success": success}
        self.world.post("stream/ack", body, 200 if holds else 400)
        if holds:
            taken.over = True
            if success:
                self.groups[taken.group].acked.add(taken.window["id"])

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 4), seconds=st.sampled_from([1, 30]))
    def renew(self, which: int, seconds: int) -> None:
        self.world.steps += 1
        taken = self.taken[-1 - which % len(self.taken)]
        holds = not taken.over and self.world.now < taken.until
        body = {"leaseId": taken.window["leaseId"], "extend_ms": 1000 * seconds}
        self.world.post("stream/renew-lease", body, 200 if holds else 404)
        if holds:
            taken.until = self.world.now + timedelta(seconds=seconds)

    @rule(name=st.sampled_from(GROUPS), back_seconds=st.sampled_from([None, None, -15, 0, 8, 25]))
    def seek(self, name: str, back_seconds: int | None) -> None:
        """To the beginning, or to a time near the end; only windows on a grid say where that is."""
        if name not in self.groups:
            return
        definition = self.known.definition
        if back_seconds is None or not isinstance(definition, Tumbling | Sliding):
            self.go(name, LONG_AGO, None)
            return
        target = (self.front_us if self.known.event_time else self.now_us) - back_seconds * 1_000_000
        self.go(name, iso(target), definition.aligned(target))

    def go(self, name: str, timestamp: str, floor_us: int | None) -> None:
        self.world.steps += 1
        body = {"streamName": self.stream, "consumerGroup": name, "timestamp": timestamp}
        self.world.post("stream/seek", body)
        self.groups[name] = Group(floor_us)
        for taken in self.taken:
            taken.over = taken.over or taken.group == name

    # The end

    def teardown(self) -> None:
        if self.oracle is None:
            return
        self.world.now += timedelta(seconds=1000)  # leases run out, windows end
        if self.known.event_time:
            far = self.front_us + 10_000_000_000
            for queue in self.known.sources:
                self.store([(queue, "z", far)])
        self.groups.setdefault(GROUPS[0], Group())
        for name in self.groups:
            self.drain(name)
        self.go(GROUPS[0], LONG_AGO, None)
        self.drain(GROUPS[0])
        self.check_all()
        answer = self.world.run(self.world.http.delete(f"/api/v1/resources/streams/{self.stream}"))
        assert answer.status_code == 200, answer.text

    def drain(self, name: str) -> None:
        """Complete all that is left of a group; then nothing comes any more."""
        while any(self.left(name).values()):
            self.poll(name)
            self.ack(0, True)
        count = len(self.taken)
        self.poll(name)
        assert len(self.taken) == count

    def check_all(self) -> None:
        """Every message is where the definition says, exactly as often; and every key kept its order."""
        closed, late = self.known.closed(self.now_us)
        expected = {window.id: window.ids for windows in closed.values() for window in windows}
        replayed = self.groups[GROUPS[0]]
        assert replayed.acked == set(expected)
        assert {id: self.contents[id] for id in replayed.acked} == expected
        noted = self.world.get(f"{self.stream}/late", limit=1000)
        assert sorted(int(entry["messageId"]) for entry in noted["late"]) == sorted(late)
        assert noted["total"] == len(late)
        for group in self.groups.values():
            for key, ids in group.order.items():
                ordered = [window.id for window in closed[key]]
                assert ids == [id for id in ordered if id in ids], "order inside a key"


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    try:
        yield world
    finally:
        world.close()


@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 300)
def test_streams_agree_with_the_arithmetic(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    run_state_machine_as_test(
        lambda: Machine(world),  # type: ignore[arg-type]  # any maker of machines will do
        settings=settings(
            max_examples=EXAMPLES,
            # A poll that gets nothing is waited for: to make an example smaller may take many minutes.
            phases=[Phase.reuse, Phase.generate, *([Phase.shrink] if LONG else [])],
            stateful_step_count=STEPS,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    seconds = time.perf_counter() - started
    with capsys.disabled():
        print(f" {world.steps} steps, {world.steps / seconds:.0f} steps/s", end="")  # noqa: T201
    assert world.steps >= LEAST_STEPS
