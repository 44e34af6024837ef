"""Streams over HTTP: what a definition takes, when a window comes, and what becomes of it. Time is turned."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from queenstream.broker.app import Broker
from queenstream.windows import Count, Session, Sliding, Span, Tumbling, iso, to_us, window_id
from tests.acceptance.speaking import Json, check, configure, moment, push
from tests.conftest import Clock, StartBroker

KEY = "k1:" + base64.b64encode(bytes(range(32))).decode()
MINUTE = 60.0
YEAR = 365 * 86_400.0
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)  # where event times begin: a full minute
FIRST_MINUTE = (iso(to_us(BEGIN)), iso(to_us(BEGIN + timedelta(minutes=1))))


def at(seconds: float) -> str:
    """An event time."""
    return iso(to_us(BEGIN + timedelta(seconds=seconds)))


def ms(seconds: float) -> int:
    """The same, as milliseconds since 1970."""
    return to_us(BEGIN + timedelta(seconds=seconds)) // 1000


def us(value: str) -> int:
    return to_us(datetime.fromisoformat(value))


def span(window: Json) -> Span:
    return Span(us(window["start"]), us(window["end"]))


def data(window: Json) -> list[Any]:
    return [message["data"] for message in window["messages"]]


async def eventually(found: Callable[[], Awaitable[Any]], seconds: float = 5) -> Any:
    """What is true at last: messages reach their windows beside the requests."""
    async with asyncio.timeout(seconds):
        while not (result := await found()):  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.02)
    return result


class Streams:
    """The routes in plain HTTP, as short as a test wants them; every call checks its status."""

    def __init__(self, http: httpx.AsyncClient, clock: Clock) -> None:
        self.http = http
        self.clock = clock

    def align(self, seconds: float = MINUTE, into: float = 1) -> None:
        """Turn to just after the next multiple of ``seconds``, so that a test lies in one window."""
        self.clock.turn(seconds - self.clock().timestamp() % seconds + into)

    async def _post(self, route: str, body: Json, status: int) -> Any:
        answer = await self.http.post(f"/api/v1/stream/{route}", json=body)
        assert answer.status_code == status, answer.text
        if status >= 400:
            assert answer.json()["error"]
        return answer.json() if answer.content else None

    async def define(self, name: str = "s", *sources: str, status: int = 201, **definition: Any) -> Json:
        """One-minute windows without grace over ``q``, unless said otherwise."""
        body = {
            "name": name,
            "namespace": "tests",
            "source_queue_names": list(sources or ("q",)),
            "window_duration_ms": 60_000,
            "window_grace_period_ms": 0,
            **definition,
        }
        defined: Json = await self._post("define", {k: v for k, v in body.items() if v is not None}, status)
        return defined

    async def made(self, name: str = "s", *sources: str, **definition: Any) -> str:
        """Define over queues that are configured first; gives the stream's id."""
        for source in sources or ("q",):
            await configure(self.http, source, ttl=0)
        return str((await self.define(name, *sources, **definition))["stream_id"])

    async def push(self, *payloads: Any, queue: str = "q", key: str = "Default") -> list[Json]:
        return await push(self.http, queue, *payloads, partition=key)

    async def poll(self, name: str = "s", group: str = "g", timeout_ms: int = 5000) -> Json | None:
        body = {"streamName": name, "consumerGroup": group, "timeout": timeout_ms}
        answer = await self.http.post("/api/v1/stream/poll", json=body)
        if answer.status_code == 204:
            assert answer.content == b""
            return None
        assert answer.status_code == 200, answer.text
        assert set(answer.json()) == {"window"}
        window: Json = answer.json()["window"]
        return window

    async def take(self, name: str = "s", group: str = "g") -> Json:
        window = await self.poll(name, group)
        assert window is not None, "no window came"
        return window

    async def nothing(self, name: str = "s", group: str = "g") -> None:
        """A poll gives nothing, though everything had the time to come."""
        assert await self.poll(name, group, 250) is None

    async def ack(self, window: Json, success: bool = True, status: int = 200, **more: Any) -> Json:
        body = {"windowId": window["id"], "leaseId": window["leaseId"], "success": success, **more}
        acked: Json = await self._post("ack", body, status)
        return acked

    async def done(self, name: str = "s", group: str = "g") -> Json:
        """The next window, acknowledged."""
        window = await self.take(name, group)
        assert await self.ack(window) == {"success": True, "acked": True}
        return window

    async def drain(self, count: int, name: str = "s", group: str = "g") -> list[Json]:
        """So many windows, acknowledged, and no more."""
        windows = [await self.done(name, group) for _ in range(count)]
        await self.nothing(name, group)
        return windows

    async def renew(self, lease_id: str, extend_ms: int = 30_000, status: int = 200) -> Json:
        renewed: Json = await self._post("renew-lease", {"leaseId": lease_id, "extend_ms": extend_ms}, status)
        return renewed

    async def seek(self, timestamp: str, name: str = "s", group: str = "g", status: int = 200) -> Json:
        body = {"streamName": name, "consumerGroup": group, "timestamp": timestamp}
        sought: Json = await self._post("seek", body, status)
        return sought

    async def resource(self, path: str = "", status: int = 200, **query: Any) -> Any:
        answer = await self.http.get(f"/api/v1/resources/streams{path}", params=query)
        assert answer.status_code == status, answer.text
        return answer.json()

    async def late(self, count: int, name: str = "s") -> list[Json]:
        """The late output, once it holds so many."""

        async def found() -> Json | None:
            answer: Json = await self.resource(f"/{name}/late")
            return answer if answer["total"] >= count and len(answer["late"]) >= count else None

        answer = await eventually(found)
        assert answer["total"] == count == len(answer["late"])
        late: list[Json] = answer["late"]
        return late

    async def windows(self, name: str = "s", **query: Any) -> list[Json]:
        windows: list[Json] = (await self.resource(f"/{name}/windows", **query))["windows"]
        return windows

    async def explained(self, *words: str, name: str = "s", group: str = "g", key: str | None = None) -> str:
        """Why nothing comes, once some reason says all of these words."""
        query: dict[str, Any] = {"consumerGroup": group} | ({} if key is None else {"key": key})
        seen = ""

        async def found() -> str | None:
            nonlocal seen
            answer = await self.resource(f"/{name}/explain", **query)
            assert (answer["stream"], answer["consumerGroup"]) == (name, group)
            assert moment(answer["now"])
            seen = repr(answer)
            for reason in answer["reasons"]:
                assert reason["code"]
                assert reason["message"]
                assert reason["remedy"], "a reason says what to do"
                text = f"{reason['code']} {reason['message']} {reason['remedy']}"
                if all(word.lower() in text.lower() for word in words):
                    return text
            return None

        try:
            return str(await eventually(found))
        except TimeoutError:
            raise AssertionError(f"no reason says {words}: {seen}") from None


@pytest.fixture
async def streams(http: httpx.AsyncClient, clock: Clock) -> Streams:
    return Streams(http, clock)


# Define


async def test_a_definition_needs_a_name_sources_and_a_size(streams: Streams) -> None:
    """As existing clients send it; the answer is what they expect."""
    await configure(streams.http, "q")
    body = {
        "name": "s", "namespace": "n", "source_queue_names": ["q"], "partitioned": True,
        "window_type": "tumbling", "window_duration_ms": 5000, "window_grace_period_ms": 1000,
        "window_lease_timeout_ms": 10_000,
    }  # fmt: skip
    answer = await streams.http.post("/api/v1/stream/define", json=body)
    assert answer.status_code == 201, answer.text
    defined = answer.json()
    assert set(defined) >= {"success", "stream_id", "name"}
    assert (defined["success"], defined["name"]) == (True, "s")


async def test_the_defaults(streams: Streams) -> None:
    """Global, tumbling, 30 s of grace, 60 s of lease."""
    await streams.made(window_grace_period_ms=None)
    streams.align()
    await streams.push(1, key="a")
    await streams.push(2, key="b")
    streams.clock.turn(MINUTE + 20)
    await streams.nothing()
    streams.clock.turn(10)
    first = await streams.take()
    assert (first["key"], data(first)) == ("__GLOBAL__", [1, 2])
    streams.clock.turn(55)
    await streams.nothing()
    streams.clock.turn(6)
    assert (await streams.take())["id"] == first["id"]


async def test_the_same_definition_again_changes_nothing(streams: Streams) -> None:
    number = await streams.made()
    streams.align()
    await streams.push(1)
    streams.clock.turn(MINUTE)
    await streams.done()
    assert str((await streams.define())["stream_id"]) == number
    await streams.nothing()
    await streams.push(2)
    streams.clock.turn(MINUTE)
    assert data(await streams.take()) == [2]


async def test_other_sources_are_taken_over(streams: Streams) -> None:
    number = await streams.made("s", "old", "both")
    streams.align()
    await streams.push(1, queue="old")
    streams.clock.turn(MINUTE)
    assert data(await streams.done()) == [1]
    assert await streams.made("s", "both", "new") == number
    for queue in ("old", "both", "new"):
        await streams.push(queue, queue=queue)
    streams.clock.turn(MINUTE)
    assert [data(window) for window in await streams.drain(1)] == [["both", "new"]]


async def test_another_window_is_refused_unless_reset(streams: Streams) -> None:
    await streams.made()
    streams.align()
    await streams.push(1)
    streams.clock.turn(30)
    await streams.push(2)
    streams.clock.turn(MINUTE)
    assert data(await streams.done()) == [1, 2]
    for other in (
        {"window_duration_ms": 30_000},
        {"window_type": "sliding", "window_slide_ms": 30_000},
        {"partitioned": True},
        {"event_time_path": "data.ts"},
    ):
        refused = await streams.define(status=409, **other)
        assert "reset" in refused["error"], "the error says what to do"
    await streams.nothing()
    await streams.define(window_duration_ms=30_000, reset=True)
    assert [data(window) for window in await streams.drain(2)] == [[1], [2]]


BAD_DEFINITIONS: list[Json] = [
    {"window_duration_ms": None},
    {"window_duration_ms": 0},
    {"window_duration_ms": -1000},
    {"window_duration_ms": "a minute"},
    {"window_type": "hopping"},
    {"window_type": "sliding"},
    {"window_type": "sliding", "window_slide_ms": 0},
    {"window_type": "sliding", "window_slide_ms": 60_001},
    {"window_type": "session", "window_session_gap_ms": 0},
    {"window_type": "session", "window_session_gap_ms": None, "window_duration_ms": None},
    {"window_type": "count", "window_size_count": 0},
    {"window_type": "count", "window_size_count": None, "window_duration_ms": None},
    {"window_type": "count", "window_size_count": 5, "window_slide_count": 6},
    {"window_type": "count", "window_size_count": 5, "window_slide_count": 0},
    {"window_grace_period_ms": -1},
    {"window_lease_timeout_ms": 0},
    {"retry_limit": -1},
    {"max_in_flight": 0},
    {"idle_timeout_ms": -1},
    {"subscription_from": "yesterday"},
    {"source_queue_names": []},
    {"source_queue_names": ["q", "q"]},
    {"source_queue_names": ["nowhere"]},
    {"source_queue_names": ["__stream__:other"]},
    {"name": ""},
]


async def test_a_definition_that_cannot_be(streams: Streams) -> None:
    """It says what is wrong and what to do, and leaves nothing behind."""
    await configure(streams.http, "q")
    await streams.made("other", "p")
    for definition in BAD_DEFINITIONS:
        refused = await streams.define(status=400, **definition)
        assert len(refused["error"]) > 20, definition
    assert [stream["name"] for stream in (await streams.resource())["streams"]] == ["other"]


# Poll


async def test_a_window_comes_after_its_end_and_grace(streams: Streams) -> None:
    await streams.made(window_grace_period_ms=10_000)
    streams.align(into=30)
    await streams.push(1)
    await streams.nothing()
    streams.clock.turn(30)  # the end
    await streams.nothing()
    streams.clock.turn(8)
    await streams.nothing()
    streams.clock.turn(2.5)
    assert data(await streams.take()) == [1]


async def test_a_poll_without_a_window_is_204_after_its_timeout(streams: Streams) -> None:
    await streams.made()
    started = time.monotonic()
    assert await streams.poll(timeout_ms=400) is None
    assert 0.39 <= time.monotonic() - started < 2


async def test_a_poll_of_an_unknown_stream_is_404(streams: Streams) -> None:
    body = {"streamName": "nowhere", "consumerGroup": "g", "timeout": 100}
    answer = await streams.http.post("/api/v1/stream/poll", json=body)
    assert answer.status_code == 404
    assert "nowhere" in answer.json()["error"]


@pytest.mark.parametrize(
    "body", [{}, {"streamName": "s"}, {"streamName": "s", "consumerGroup": "g", "timeout": -1}], ids=repr
)
async def test_a_poll_that_cannot_be(streams: Streams, body: Json) -> None:
    await streams.made()
    assert (await streams.http.post("/api/v1/stream/poll", json=body)).status_code == 400


async def test_what_a_window_says(streams: Streams) -> None:
    number = await streams.made(partitioned=True)
    streams.align()
    payload = {"user": "alice", "n": [1, 2.5, None], "text": 'ü"\\'}
    [stored] = await streams.push(payload, key="chat-1")
    streams.clock.turn(MINUTE)
    window = await streams.take()
    check(window, {
        "id": str, "leaseId": str, "key": str, "start": moment, "end": moment, "attempt": int,
        "complete": bool, "leaseSeconds": float, "messages": list,
    })  # fmt: skip
    [message] = window["messages"]
    check(message, {
        "id": str, "transactionId": str, "data": dict, "payload": dict, "created_at": moment, "queue": str,
        "partition": str,
    })  # fmt: skip
    assert message["data"] == message["payload"] == payload
    assert (message["queue"], message["partition"]) == ("q", "chat-1")
    assert (message["id"], message["transactionId"]) == (stored["message_id"], stored["transaction_id"])
    assert (window["key"], window["attempt"], window["complete"]) == ("chat-1", 1, True)
    [own] = Tumbling(timedelta(minutes=1)).assign(us(message["created_at"]))
    assert (window["start"], window["end"]) == (iso(own.start), iso(own.end))
    assert window["id"] == window_id(number, "chat-1", own)


async def test_messages_stand_by_time_then_id(streams: Streams) -> None:
    """Over queues and partitions, as they were pushed."""
    await streams.made("s", "one", "two")
    streams.align()
    for n in range(6):
        await streams.push({"n": n}, queue=("two", "one")[n % 2], key="ab"[n % 3 == 0])
        streams.clock.turn(0.01)
    await streams.push({"n": 6}, {"n": 7}, queue="one", key="b")
    streams.clock.turn(MINUTE)
    window = await streams.take()
    assert [d["n"] for d in data(window)] == list(range(8))
    stamps = [(us(m["created_at"]), int(m["id"])) for m in window["messages"]]
    assert stamps == sorted(stamps)


async def test_a_poll_that_waits_is_answered_when_the_window_is_ripe(streams: Streams) -> None:
    """By a timer: no message pushes it out. This one passes in real time."""
    await streams.made(window_duration_ms=1000)
    await streams.push(1)
    window = await streams.take()
    late = streams.clock().timestamp() - us(window["end"]) / 1e6
    assert 0 <= late < 0.5


async def test_a_poll_that_waits_is_woken_from_another_broker(
    streams: Streams, start_broker: StartBroker
) -> None:
    await streams.made(window_type="count", window_size_count=2, window_duration_ms=None)
    other = await start_broker(clock=streams.clock)
    async with httpx.AsyncClient(base_url=other.address, timeout=60) as http:
        there = Streams(http, streams.clock)
        waiting = asyncio.create_task(there.poll(timeout_ms=20_000))
        await asyncio.sleep(0.3)
        started = time.monotonic()
        await streams.push(1, 2)
        window = await waiting
        assert time.monotonic() - started < 1
        assert window is not None
        assert data(window) == [1, 2]
        await streams.ack(window)  # a lease holds on every broker


async def test_a_gap_of_a_year_is_one_step(streams: Streams) -> None:
    """A second of width: a walk over the empty windows would be 31 million steps."""
    await streams.made(window_duration_ms=1000)
    await streams.push(1)
    streams.clock.turn(YEAR)
    await streams.push(2)
    streams.clock.turn(2)
    started = time.monotonic()
    assert [data(window) for window in [await streams.done(), await streams.done()]] == [[1], [2]]
    assert time.monotonic() - started < 2
    await streams.nothing()


async def test_empty_windows_come_if_asked_for(streams: Streams) -> None:
    await streams.made(emit_empty=True)
    streams.align()
    await streams.push(1)
    streams.clock.turn(3 * MINUTE)
    await streams.push(2)
    streams.clock.turn(MINUTE)
    windows = [await streams.done() for _ in range(4)]
    assert [data(window) for window in windows] == [[1], [], [], [2]]
    starts = [span(window).start for window in windows]
    assert [b - a for a, b in itertools.pairwise(starts)] == [60_000_000] * 3
    assert len({window["id"] for window in windows}) == 4


async def test_a_partitioned_stream_goes_by_partition_name_over_all_queues(streams: Streams) -> None:
    await streams.made("s", "messages", "reactions", partitioned=True)
    streams.align()
    await streams.push("hello", queue="messages", key="chat-1")
    await streams.push("smile", queue="reactions", key="chat-1")
    await streams.push("other", queue="messages", key="chat-2")
    streams.clock.turn(MINUTE)
    windows = {window["key"]: data(window) for window in await streams.drain(2)}
    assert windows == {"chat-1": ["hello", "smile"], "chat-2": ["other"]}


async def test_a_quiet_source_holds_nothing_back(streams: Streams) -> None:
    await streams.made("s", "q", "quiet")
    streams.align()
    await streams.push(1)
    streams.clock.turn(MINUTE)
    assert data(await streams.take()) == [1]


async def test_messages_from_before_the_definition_are_in_it(streams: Streams) -> None:
    await configure(streams.http, "q", ttl=0)
    streams.align()
    await streams.push(1)
    streams.clock.turn(MINUTE)
    await streams.push(2)
    streams.clock.turn(MINUTE)
    await streams.define()
    assert [data(window) for window in await streams.drain(2)] == [[1], [2]]


async def test_an_encrypted_source_comes_out_readable(start_broker: StartBroker, clock: Clock) -> None:
    broker = await start_broker(clock=clock, encryption_keys=KEY)
    async with httpx.AsyncClient(base_url=broker.address, timeout=60) as http:
        streams = Streams(http, clock)
        await configure(http, "q", ttl=0, encryptionEnabled=True)
        await streams.define(event_time_path="data.ts")  # the path is read inside, too
        await streams.push({"ts": at(5), "secret": 1}, {"ts": at(61), "secret": 2})
        assert data(await streams.take()) == [{"ts": at(5), "secret": 1}]


# The kinds of windows


async def test_tumbling_windows(streams: Streams) -> None:
    """Aligned to the epoch; every message in one."""
    await streams.made(window_duration_ms=7000)
    streams.align(7)
    for n in range(4):
        await streams.push(n)
        streams.clock.turn(3.5)
    streams.clock.turn(7)
    windows = await streams.drain(2)
    assert [data(window) for window in windows] == [[0, 1], [2, 3]]
    for window in windows:
        assert span(window).start % 7_000_000 == 0
        assert span(window).end - span(window).start == 7_000_000


@pytest.mark.parametrize(("size", "slide"), [(10, 5), (10, 4), (10, 10), (9, 2)])
async def test_sliding_windows(streams: Streams, size: int, slide: int) -> None:
    """Every window that covers the message, also where the slide does not divide the size."""
    number = await streams.made(
        window_type="sliding", window_duration_ms=1000 * size, window_slide_ms=1000 * slide
    )
    streams.align(180)
    await streams.push("a")
    streams.clock.turn(3)
    await streams.push("b")
    streams.clock.turn(2 * size)
    definition = Sliding(timedelta(seconds=size), timedelta(seconds=slide))
    first = await streams.take()
    [start] = [us(m["created_at"]) for m in first["messages"] if m["data"] == "a"]
    await streams.ack(first)
    expected = definition.assign(start)
    later = [s for s in definition.assign(start + 3_000_000) if s not in expected]
    windows = [first, *await streams.drain(len(expected) + len(later) - 1)]
    assert [span(window) for window in windows] == [*expected, *later]
    assert [window["id"] for window in windows] == [window_id(number, "__GLOBAL__", span(w)) for w in windows]
    for window in windows:
        held = [name for name, time in (("a", start), ("b", start + 3_000_000)) if time in span(window)]
        assert data(window) == held


async def test_session_windows(streams: Streams) -> None:
    """From the first message of a key to its last plus the gap."""
    await streams.made(
        window_type="session", window_session_gap_ms=10_000, window_duration_ms=None, partitioned=True
    )
    await streams.push("a1", key="a")
    streams.clock.turn(6)
    await streams.push("a2", key="a")
    await streams.push("b1", key="b")
    streams.clock.turn(6)
    await streams.push("a3", key="a")
    await streams.nothing()
    streams.clock.turn(5)
    assert data(await streams.done()) == ["b1"]
    streams.clock.turn(6)
    await streams.push("a4", key="a")
    first = await streams.done()
    times = [us(message["created_at"]) for message in first["messages"]]
    assert (first["key"], data(first)) == ("a", ["a1", "a2", "a3"])
    assert [span(first)] == Session(timedelta(seconds=10)).of(times)
    await streams.nothing()
    streams.clock.turn(11)
    assert [data(window) for window in await streams.drain(1)] == [["a4"]]


async def test_a_late_event_bridges_two_sessions(streams: Streams) -> None:
    await streams.made(
        window_type="session", window_session_gap_ms=10_000, window_duration_ms=None,
        window_grace_period_ms=30_000, event_time_path="data.ts",
    )  # fmt: skip
    await streams.push({"ts": at(0)}, {"ts": at(15)}, {"ts": at(8)})
    await streams.nothing()
    await streams.push({"ts": at(54.9)})
    await streams.nothing()
    await streams.push({"ts": at(55)})
    [window] = await streams.drain(1)
    assert [d["ts"] for d in data(window)] == [at(0), at(15), at(8)], "by created_at, then id"
    assert (window["start"], window["end"]) == (at(0), at(25))


async def test_count_windows(streams: Streams) -> None:
    """Full ones only; never by time."""
    number = await streams.made(
        window_type="count", window_size_count=3, window_duration_ms=None, partitioned=True
    )
    await streams.push(1, 2, key="a")
    await streams.push(1, 2, 3, 4, 5, key="b")
    first = await streams.done()
    assert (first["key"], data(first)) == ("b", [1, 2, 3])
    assert first["id"] == window_id(number, "b", range(3))
    times = [us(message["created_at"]) for message in first["messages"]]
    assert us(first["start"]) == times[0]
    assert us(first["end"]) >= times[-1]
    streams.clock.turn(YEAR)
    await streams.nothing()
    await streams.push(6, key="b")
    second = await streams.done()
    assert (second["id"], data(second)) == (window_id(number, "b", range(3, 6)), [4, 5, 6])


async def test_count_windows_that_slide(streams: Streams) -> None:
    number = await streams.made(
        window_type="count", window_size_count=3, window_slide_count=2, window_duration_ms=None
    )
    await streams.push(0, 1, 2, 3)
    await streams.push(4, 5, 6, 7)
    windows = await streams.drain(3)
    ranges = Count(3, slide=2).ranges(8)
    assert [data(window) for window in windows] == [list(r) for r in ranges]
    assert [window["id"] for window in windows] == [window_id(number, "__GLOBAL__", r) for r in ranges]


# Event time


@pytest.mark.parametrize("path", ["data.ts", "payload.ts", "data.a.b"])
@pytest.mark.parametrize("form", [at, ms])
async def test_event_time_is_a_field_of_the_payload(
    streams: Streams, path: str, form: Callable[[float], Any]
) -> None:
    """ISO 8601 or milliseconds since 1970. The clock plays no part: a later event ends the window."""

    def event(seconds: float) -> Json:
        return {"a": {"b": form(seconds)}} if path == "data.a.b" else {"ts": form(seconds)}

    await streams.made(event_time_path=path, window_grace_period_ms=5000)
    await streams.push(event(30), event(10), event(59.999))
    streams.clock.turn(YEAR)
    await streams.nothing()
    await streams.push(event(60), event(64.999))
    await streams.nothing()
    await streams.push(event(20))  # in the grace
    await streams.push(event(65))
    [window] = await streams.drain(1)
    assert (window["start"], window["end"]) == FIRST_MINUTE
    assert data(window) == [event(s) for s in (30, 10, 59.999, 20)]


async def test_event_times_may_lie_before_1970(streams: Streams) -> None:
    await streams.made(event_time_path="data.ts")
    await streams.push({"ts": "1969-12-31T23:59:30Z"}, {"ts": 0})
    [window] = await streams.drain(1)
    assert (window["start"], window["end"]) == ("1969-12-31T23:59:00Z", "1970-01-01T00:00:00Z")


async def test_event_times_may_lie_ahead_of_the_clock(streams: Streams) -> None:
    """A device whose clock is wrong, or a simulation: only the watermark counts."""
    await streams.made(event_time_path="data.ts")
    times = [f"2099-01-01T00:0{n}:30Z" for n in range(4)]
    await streams.push(*[{"ts": time} for time in times])
    assert [data(window) for window in await streams.drain(3)] == [[{"ts": time}] for time in times[:3]]
    await streams.seek("2099-01-01T00:01:00Z")
    assert [data(window) for window in await streams.drain(2)] == [[{"ts": time}] for time in times[1:3]]


async def test_the_watermark_is_that_of_the_slowest_source(streams: Streams) -> None:
    await streams.made("s", "fast", "slow", event_time_path="data.ts")
    await streams.push({"ts": at(5), "q": "fast"}, {"ts": at(600)}, queue="fast")
    await streams.nothing()
    await streams.push({"ts": at(10), "q": "slow"}, queue="slow")
    await streams.nothing()
    await streams.push({"ts": at(60)}, queue="slow")
    [window] = await streams.drain(1)
    assert [d["q"] for d in data(window)] == ["fast", "slow"]
    assert (await streams.resource("/s/late"))["total"] == 0


async def test_an_idle_source_stops_holding_the_watermark(streams: Streams) -> None:
    """That is decided once: what the source brings afterwards is late, for a new group too."""
    await streams.made("s", "q", "idle", event_time_path="data.ts", idle_timeout_ms=10_000)
    await streams.push({"ts": at(5)}, {"ts": at(61)})
    await streams.nothing()
    streams.clock.turn(8)
    await streams.nothing()
    streams.clock.turn(3)
    first = await streams.done()
    assert data(first) == [{"ts": at(5)}]
    await streams.push({"ts": at(6)}, queue="idle")
    [late] = await streams.late(1)
    assert (late["queue"], late["eventTime"]) == ("idle", at(6))
    again = await streams.done(group="other")
    assert (again["id"], again["messages"]) == (first["id"], first["messages"])


async def test_what_is_too_late_goes_to_the_late_output(streams: Streams) -> None:
    await streams.made(partitioned=True, event_time_path="data.ts", window_grace_period_ms=2000)
    await streams.push({"ts": at(5)}, {"ts": at(70)}, key="a")
    window = await streams.done()  # it has closed
    assert (window["key"], data(window)) == ("a", [{"ts": at(5)}])
    [stored] = await streams.push({"ts": at(10)}, key="b")
    await streams.push({"ts": at(69)}, key="b")
    [late] = await streams.late(1)
    assert (
        late.items()
        >= {
            "messageId": stored["message_id"],
            "transactionId": stored["transaction_id"],
            "queue": "q",
            "partition": "b",
            "key": "b",
            "eventTime": at(10),
            "window": {"start": FIRST_MINUTE[0], "end": FIRST_MINUTE[1]},
            "latenessMs": 60_000,
        }.items()
    )
    assert late["reason"]
    assert moment(late["notedAt"])
    await streams.nothing()
    assert (await streams.resource("/s"))["late"] == 1


async def test_a_sliding_window_that_is_still_open_takes_what_others_missed(streams: Streams) -> None:
    await streams.made(window_type="sliding", window_slide_ms=30_000, event_time_path="data.ts")
    await streams.push({"ts": at(5)}, {"ts": at(75)})
    early = await streams.drain(2)  # up to the minute
    assert [(window["end"], data(window)) for window in early] == [
        (at(30), [{"ts": at(5)}]),
        (at(60), [{"ts": at(5)}]),
    ]
    await streams.push({"ts": at(45)})
    await streams.push({"ts": at(200)})
    windows = {window["start"]: data(window) for window in await streams.drain(2)}
    assert windows == {at(30): [{"ts": at(75)}, {"ts": at(45)}], at(60): [{"ts": at(75)}]}
    assert (await streams.resource("/s/late"))["total"] == 0


async def test_a_message_without_an_event_time_is_in_the_late_output(streams: Streams) -> None:
    """With the reason, and it stops nothing."""
    payloads: list[Any] = [
        {}, {"ts": None}, {"ts": "soon"}, {"ts": True}, {"ts": {"x": 1}}, {"ts": "2026-13-01"}, {"ts": 1e300},
        {"TS": at(5)}, 7, "text", None, [1],
    ]  # fmt: skip
    await streams.made(event_time_path="data.ts")
    stored = await streams.push({"ts": at(5)}, *payloads, {"ts": at(61)})
    noted = {late["messageId"]: late for late in await streams.late(len(payloads))}
    assert set(noted) == {result["message_id"] for result in stored[1:-1]}
    for late in noted.values():
        assert (late["window"], late["eventTime"], late["latenessMs"]) == (None, None, None)
        assert "data.ts" in late["reason"]
    assert [data(window) for window in await streams.drain(1)] == [[{"ts": at(5)}]]


# Acknowledgement and leases


async def three_windows(streams: Streams, *keys: str, **definition: Any) -> list[str]:
    """A stream with three ripe windows for every key, in which one message says key and number."""
    await streams.made(**({"partitioned": True} | definition))
    streams.align()
    starts = []
    for n in range(3):
        starts.append(iso(int(streams.clock().timestamp() // 60) * 60_000_000))
        for key in keys or ("k",):
            await streams.push(f"{key}{n}", key=key)
        streams.clock.turn(MINUTE)
    return starts


async def test_an_acknowledged_window_does_not_come_again(streams: Streams) -> None:
    await three_windows(streams)
    assert [data(window) for window in await streams.drain(3)] == [["k0"], ["k1"], ["k2"]]
    streams.clock.turn(YEAR)
    await streams.nothing()


async def test_a_second_ack_is_refused(streams: Streams) -> None:
    await three_windows(streams)
    window = await streams.done()
    await streams.ack(window, status=400)
    await streams.ack(window, success=False, status=400)
    assert data(await streams.take()) == ["k1"]


@pytest.mark.parametrize("field", ["windowId", "leaseId"])
async def test_an_ack_must_name_window_and_lease(streams: Streams, field: str) -> None:
    """A lease of one window is none of another."""
    await three_windows(streams, "k", "other")
    window, other = await streams.take(), await streams.take()
    name = {"windowId": "id", "leaseId": "leaseId"}[field]
    await streams.ack(window | {name: other[name]}, status=400)
    for wrong in ("nonsense", "00000000-0000-0000-0000-000000000000", ""):
        await streams.ack(window | {name: wrong}, status=400)
    await streams.ack(window)
    await streams.ack(other)


async def test_a_failed_window_comes_again_and_counts(streams: Streams) -> None:
    await three_windows(streams)
    for attempt in range(1, 6):
        window = await streams.take()
        assert (data(window), window["attempt"]) == (["k0"], attempt)
        assert (await streams.ack(window, success=False, error=f"try {attempt}"))["success"] is True
    window = await streams.done()
    assert (data(window), window["attempt"]) == (["k0"], 6)
    window = await streams.take()
    assert (data(window), window["attempt"]) == (["k1"], 1)


async def test_past_the_retry_limit_a_window_is_dead_and_the_key_goes_on(streams: Streams) -> None:
    await three_windows(streams, retry_limit=1)
    for _ in range(2):
        window = await streams.take()
        assert data(window) == ["k0"]
        await streams.ack(window, success=False, error="it does not fit")
    assert [data(w) for w in await streams.drain(2)] == [["k1"], ["k2"]]
    states = {w["id"]: w["state"] for w in await streams.windows(consumerGroup="g")}
    assert states[window["id"]] == "dead"
    [group] = (await streams.resource("/s"))["groups"]
    assert (group["dead"], group["done"], group["lag"]) == (1, 2, 0)


async def test_leases_that_expire_count_as_attempts(streams: Streams) -> None:
    """A window that kills its consumer must not come for ever."""
    await three_windows(streams, retry_limit=2)
    for attempt in range(1, 4):
        window = await streams.take()
        assert (data(window), window["attempt"]) == (["k0"], attempt)
        streams.clock.turn(61)
    assert data(await streams.take()) == ["k1"]


async def test_an_expired_lease_is_worth_nothing(streams: Streams) -> None:
    await three_windows(streams)
    old = await streams.take()
    streams.clock.turn(61)
    await streams.ack(old, status=400)  # even before somebody else has it
    new = await streams.take()
    assert (new["id"], new["attempt"]) == (old["id"], old["attempt"] + 1)
    assert new["messages"] == old["messages"]
    assert new["leaseId"] != old["leaseId"]
    await streams.ack(old, status=400)
    await streams.ack(old, success=False, status=400)
    await streams.nothing()  # still leased to the new one
    await streams.ack(new)
    assert data(await streams.take()) == ["k1"]


async def test_the_lease_is_as_long_as_defined(streams: Streams) -> None:
    await three_windows(streams, window_lease_timeout_ms=5000)
    await streams.take()
    streams.clock.turn(4)
    await streams.nothing()
    streams.clock.turn(1.1)
    assert data(await streams.take()) == ["k0"]


async def test_a_lease_is_renewed(streams: Streams) -> None:
    await three_windows(streams)
    window = await streams.take()
    streams.clock.turn(50)
    renewed = await streams.renew(window["leaseId"], 90_000)
    assert renewed["success"] is True
    left = us(renewed["lease_expires_at"]) / 1e6 - streams.clock().timestamp()
    assert 85 < left <= 90
    streams.clock.turn(80)
    await streams.nothing()
    await streams.ack(window)


async def test_a_lease_that_is_gone_is_not_renewed(streams: Streams) -> None:
    await three_windows(streams)
    for unknown in ("nonsense", "00000000-0000-0000-0000-000000000000"):
        await streams.renew(unknown, status=404)
    window = await streams.take()
    streams.clock.turn(61)
    await streams.renew(window["leaseId"], status=404)
    again = await streams.done()
    await streams.renew(window["leaseId"], status=404)
    await streams.renew(again["leaseId"], status=404)


@pytest.mark.parametrize("extend_ms", [0, -1, "long"])
async def test_a_renewal_that_cannot_be(streams: Streams, extend_ms: Any) -> None:
    await three_windows(streams)
    window = await streams.take()
    await streams.renew(window["leaseId"], extend_ms, status=400)
    await streams.ack(window)


async def test_one_window_of_a_key_is_out_at_a_time(streams: Streams) -> None:
    await three_windows(streams, "k", "other")
    first, other = await streams.take(), await streams.take()
    assert sorted([first["key"], other["key"]]) == ["k", "other"]
    await streams.nothing()
    await streams.ack(other)
    assert data(await streams.take()) == [f"{other['key']}1"]
    await streams.nothing()


async def two_out(streams: Streams, first: int, every: int = 1) -> list[list[Any]]:
    """Two windows of a key may be out; five are closed before a group comes. Gives their contents."""
    await streams.made(event_time_path="data.ts", max_in_flight=2)
    events = [{"ts": at(MINUTE * (first + n * every)), "n": n} for n in range(6)]
    await streams.push(*events)

    async def closed() -> bool:
        return bool((await streams.resource("/s"))["windows"]["closed"] == 5)

    await eventually(closed)
    return [[event] for event in events[:5]]


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("every", [1, 2, 7])
async def test_two_windows_of_a_key_may_be_out(streams: Streams, first: int, every: int) -> None:
    """Whatever the clock says where they start, and however far they are apart."""
    expected = await two_out(streams, first, every)
    one, two = await streams.take(), await streams.take()
    assert [data(one), data(two)] == expected[:2]
    await streams.nothing()
    await streams.ack(one)
    assert data(await streams.take()) == expected[2]
    await streams.nothing()
    await streams.seek("2000-01-01T00:00:00Z")
    assert [data(await streams.take()), data(await streams.take())] == expected[:2]


@pytest.mark.parametrize("first", [0, 1])
async def test_order_is_kept_with_two_out(streams: Streams, first: int) -> None:
    """The later of the two is done first: what comes next is still the next."""
    expected = await two_out(streams, first)
    one, two = await streams.take(), await streams.take()
    await streams.ack(two)
    three = await streams.poll(timeout_ms=500)
    assert three is None or data(three) == expected[2], "a window was passed over"
    await streams.ack(one)
    if three is None:
        three = await streams.take()
    four = await streams.take()
    assert [data(three), data(four)] == expected[2:4]
    await streams.ack(four)
    await streams.ack(three, success=False)
    again = await streams.take()
    assert (data(again), again["attempt"]) == (expected[2], 2), "a failed one comes before later ones"


async def test_the_key_that_has_waited_longest_comes_first(streams: Streams) -> None:
    await three_windows(streams, "a", "b", "c")
    keys = [window["key"] for window in await streams.drain(9)]
    assert [sorted(keys[n : n + 3]) for n in (0, 3, 6)] == [["a", "b", "c"]] * 3


async def test_a_key_that_comes_later_does_not_go_first(streams: Streams) -> None:
    """It has waited since its window closed, however old its events are."""
    await streams.made(partitioned=True, event_time_path="data.ts")
    await streams.push(*[{"ts": at(MINUTE * n), "n": f"b{n}"} for n in range(3)], key="b")
    assert data(await streams.done())[0]["n"] == "b0"  # b1 waits from here on
    await streams.push({"ts": at(MINUTE * 2), "n": "a2"}, {"ts": at(MINUTE * 3)}, key="a")

    async def closed() -> bool:
        return bool((await streams.resource("/s"))["windows"]["closed"] == 4)

    await eventually(closed)
    assert [data(window)[0]["n"] for window in await streams.drain(3)] == ["b1", "a2", "b2"]


async def test_a_failing_key_holds_up_no_other(streams: Streams) -> None:
    await three_windows(streams, "bad", "good", retry_limit=100)
    seen: list[str] = []
    for _ in range(12):
        window = await streams.take()
        await streams.ack(window, success=window["key"] == "good")
        seen += data(window)
        if seen.count("good2"):
            break
    assert [name for name in seen if name.startswith("good")] == ["good0", "good1", "good2"]


# Groups, seek, deletion


async def test_two_groups_are_independent(streams: Streams) -> None:
    await three_windows(streams)
    first = await streams.drain(3, group="one")
    window = await streams.take(group="two")
    await streams.ack(window, success=False)
    second = await streams.drain(3, group="two")
    assert [(w["id"], w["messages"]) for w in first] == [(w["id"], w["messages"]) for w in second]


async def test_a_new_group_starts_at_the_first_message(streams: Streams) -> None:
    await three_windows(streams)
    await streams.drain(3)
    assert [data(window) for window in await streams.drain(3, group="new")] == [["k0"], ["k1"], ["k2"]]


async def test_subscription_from_now_leaves_out_what_is_past(streams: Streams) -> None:
    await three_windows(streams)
    await streams.define("s2", subscription_from="now")
    await streams.nothing("s2")
    await streams.push("new")
    streams.clock.turn(MINUTE)
    assert [data(window) for window in await streams.drain(1, "s2")] == [["new"]]


async def test_subscription_from_a_time_leaves_out_what_ended_before(streams: Streams) -> None:
    await configure(streams.http, "q", ttl=0)
    streams.align()
    for n in range(3):
        if n == 1:
            middle = iso(to_us(streams.clock() + timedelta(seconds=20)))
        await streams.push(n)
        streams.clock.turn(MINUTE)
    await streams.define(subscription_from=middle)
    assert [data(window) for window in await streams.drain(2)] == [[1], [2]]


async def test_seek_back(streams: Streams) -> None:
    """To the window that holds the time: down to its start."""
    starts = await three_windows(streams, "a", "b")
    await streams.drain(6)
    inside = iso(us(starts[1]) + 42_000_000)
    assert (await streams.seek(inside))["success"] is True
    assert sorted(data(window) for window in await streams.drain(4)) == [["a1"], ["a2"], ["b1"], ["b2"]]
    await streams.seek("2000-01-01T00:00:00Z")
    windows = await streams.drain(6)
    assert [data(w) for w in windows if w["key"] == "a"] == [["a0"], ["a1"], ["a2"]]
    assert {window["attempt"] for window in windows} == {1}


async def test_seek_forward(streams: Streams) -> None:
    starts = await three_windows(streams, "a", "b")
    await streams.take()
    await streams.seek(starts[2])
    assert sorted(data(window) for window in await streams.drain(2)) == [["a2"], ["b2"]]


async def test_seek_of_a_global_stream(streams: Streams) -> None:
    starts = await three_windows(streams, partitioned=False)
    await streams.done()
    await streams.seek(starts[2])
    assert [data(window) for window in await streams.drain(1)] == [["k2"]]
    await streams.seek(starts[0])
    assert [data(window) for window in await streams.drain(3)] == [["k0"], ["k1"], ["k2"]]


async def test_seek_moves_one_group_only(streams: Streams) -> None:
    starts = await three_windows(streams)
    await streams.drain(3)
    await streams.drain(3, group="other")
    await streams.seek(starts[0])
    await streams.nothing(group="other")
    await streams.drain(3)


async def test_seek_holds_for_keys_that_do_not_exist_yet(streams: Streams) -> None:
    await three_windows(streams)
    await streams.drain(3)
    await streams.seek(iso(to_us(streams.clock() + timedelta(seconds=MINUTE))))
    await streams.push("too early", key="new")
    streams.clock.turn(MINUTE)
    await streams.push("in time", key="new")
    streams.clock.turn(MINUTE)
    assert [data(window) for window in await streams.drain(1)] == [["in time"]]
    assert len(await streams.drain(5, group="other")) == 5


async def test_a_seek_voids_the_leases_that_are_out(streams: Streams) -> None:
    starts = await three_windows(streams)
    window = await streams.take()
    await streams.seek(starts[0])
    await streams.ack(window, status=400)
    await streams.renew(window["leaseId"], status=404)
    again = await streams.take()
    assert (again["id"], again["attempt"]) == (window["id"], 1)
    await streams.ack(window, status=400)
    await streams.ack(again)


async def test_a_seek_that_cannot_be(streams: Streams) -> None:
    await three_windows(streams)
    await streams.done()
    await streams.seek("2000-01-01T00:00:00Z", name="nowhere", status=404)
    for bad in ("yesterday", "", "2026-01-01T00:00:00"):
        answer = await streams.http.post(
            "/api/v1/stream/seek", json={"streamName": "s", "consumerGroup": "g", "timestamp": bad}
        )
        # Without a zone it may be taken for UTC; nonsense never.
        assert answer.status_code == 400 or bad.startswith("2026"), answer.text


async def test_a_deleted_stream_is_gone_and_its_sources_are_not(streams: Streams) -> None:
    await three_windows(streams)
    window = await streams.take()
    answer = await streams.http.delete("/api/v1/resources/streams/s")
    assert answer.status_code == 200, answer.text
    body = {"streamName": "s", "consumerGroup": "g", "timeout": 0}
    assert (await streams.http.post("/api/v1/stream/poll", json=body)).status_code == 404
    assert (await streams.resource())["streams"] == []
    await streams.resource("/s", status=404)
    await streams.ack(window, status=400)
    popped = await streams.http.get("/api/v1/pop/queue/q", params={"batch": 9})
    assert [m["data"] for m in popped.json()["messages"]] == ["k0", "k1", "k2"]
    await streams.define()  # the name is free, and it begins anew
    assert [data(w) for w in await streams.drain(3)] == [["k0"], ["k1"], ["k2"]]


# A client that goes away


async def send_poll(broker: Broker, timeout_ms: int = 9000) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    body = json.dumps({"streamName": "s", "consumerGroup": "g", "timeout": timeout_ms})
    head = f"POST /api/v1/stream/poll HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write((head + body).encode())
    return writer


async def test_who_leaves_while_it_waits_gets_no_lease(streams: Streams, broker: Broker) -> None:
    await streams.made(window_type="count", window_size_count=1, window_duration_ms=None)
    await streams.nothing()
    before = broker.http.connections_open
    writer = await send_poll(broker)
    await asyncio.sleep(0.3)
    assert broker.http.connections_open == before + 1
    writer.transport.abort()
    await writer.wait_closed()
    async with asyncio.timeout(5):
        while broker.http.connections_open > before:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)
    await streams.push(1)
    window = await streams.take()
    assert window["attempt"] == 1


async def test_who_leaves_before_the_answer_gives_the_lease_back(streams: Streams, broker: Broker) -> None:
    await three_windows(streams)
    writers = [await send_poll(broker) for _ in range(20)]
    for writer in writers:
        writer.transport.abort()
    started = time.monotonic()
    window = await streams.take()
    assert time.monotonic() - started < 2
    for writer in writers:
        await writer.wait_closed()
    assert (data(window), window["attempt"]) == (["k0"], 1)


# What is shown


async def test_the_list_of_streams(streams: Streams) -> None:
    assert await streams.resource() == {"streams": []}
    number = await three_windows(streams) and (await streams.define(partitioned=True))["stream_id"]
    await streams.push("open", key="k")
    await streams.take()
    [shown] = (await streams.resource())["streams"]
    assert shown.items() >= {
        "name": "s", "namespace": "tests", "id": number, "partitioned": True, "window_type": "tumbling",
        "late": 0,
    }.items()  # fmt: skip
    assert "q" in json.dumps(shown["sources"])
    assert moment(shown["createdAt"])

    async def counted() -> bool:
        windows = (await streams.resource("/s"))["windows"]
        return bool(windows["open"] == 1 and windows["closed"] == 3)

    await eventually(counted)
    stats = await streams.resource("/stats")
    assert stats["streams"] == 1
    assert (stats["windows"]["open"], stats["windows"]["closed"], stats["windows"]["leased"]) == (1, 3, 1)
    assert stats["windows"]["late"] == 0
    assert stats["messages"] == 4


async def test_the_groups_of_a_stream(streams: Streams) -> None:
    await three_windows(streams)
    await streams.done()
    await streams.take()
    await streams.take(group="other")
    shown = (await streams.resource("/s"))["groups"]
    assert (await streams.resource("/s/consumers"))["consumers"] == shown
    groups = {group["consumerGroup"]: group for group in shown}
    assert set(groups) == {"g", "other"}
    one, other = groups["g"], groups["other"]
    assert (one["lag"], one["leased"], one["done"], one["dead"]) == (2, 1, 1, 0)
    assert moment(one["lastAckAt"])
    assert (other["lag"], other["leased"], other["done"], other["lastAckAt"]) == (3, 1, 0, None)


async def test_the_windows_of_a_stream(streams: Streams) -> None:
    await three_windows(streams, "a", "b")
    await streams.push("open", key="a")
    done = await streams.done()
    leased = await streams.take()

    async def all_there() -> bool:
        return len(await streams.windows(consumerGroup="g")) == 7

    await eventually(all_there)
    shown = {w["id"]: w for w in await streams.windows(consumerGroup="g")}
    assert shown[done["id"]]["state"] == "done"
    taken = shown[leased["id"]]
    assert (taken["state"], taken["attempt"], taken["messages"]) == ("leased", 1, 1)
    assert (taken["key"], taken["start"], taken["end"]) == (leased["key"], leased["start"], leased["end"])
    assert 50 < us(taken["leasedUntil"]) / 1e6 - streams.clock().timestamp() <= 60
    assert moment(taken["closedAt"])
    counts = [
        len(await streams.windows(consumerGroup="g", state=state))
        for state in ("open", "ripe", "leased", "done")
    ]
    assert counts == [1, 4, 1, 1]
    assert {w["key"] for w in await streams.windows(consumerGroup="g", key="b")} == {"b"}
    assert len(await streams.windows(consumerGroup="g", limit=2)) == 2
    await streams.resource("/nowhere/windows", status=404)


async def test_the_queue_of_a_stream_is_its_own(streams: Streams) -> None:
    """Nobody else pushes, pops, configures or deletes it, and no listing shows it."""
    await three_windows(streams)
    await streams.done()
    name = "__stream__:s"
    http = streams.http
    refused = [
        await http.post("/api/v1/push", json={"items": [{"queue": name, "payload": 1}]}),
        await http.post("/api/v1/push", json={"items": [{"queue": "__stream__:new", "payload": 1}]}),
        await http.get(f"/api/v1/pop/queue/{name}"),
        await http.get(f"/api/v1/pop/queue/{name}/partition/k"),
        await http.post("/api/v1/configure", json={"queue": name}),
        await http.delete(f"/api/v1/resources/queues/{name}"),
        await http.delete(f"/api/v1/queues/{name}/clear"),
    ]
    assert [answer.status_code for answer in refused] == [400] * len(refused), [a.text for a in refused]
    for path in (
        "resources/queues", "resources/overview", "resources/partitions", "resources/namespaces", "status",
        "status/queues", "messages", "consumer-groups", "dlq", "analytics/queue-lag", "analytics/queue-ops",
    ):  # fmt: skip
        answer = await http.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        assert "__stream__" not in answer.text, path
    assert [data(w) for w in await streams.drain(2)] == [["k1"], ["k2"]]


async def test_a_pop_over_a_namespace_takes_no_windows(streams: Streams) -> None:
    await configure(streams.http, "q", "tests", ttl=0)
    await streams.define()
    streams.align()
    await streams.push(1)
    streams.clock.turn(MINUTE)
    await streams.done()
    for _ in range(2):
        answer = await streams.http.get("/api/v1/pop", params={"namespace": "tests", "autoAck": True})
        popped = answer.json()["messages"] if answer.status_code == 200 else []
        assert [m["queue"] for m in popped] in (["q"], [])


# Explain: every problem of the guide's troubleshooting


async def test_explain_names_the_grace(streams: Streams) -> None:
    await streams.made(window_grace_period_ms=30_000)
    streams.align()
    await streams.push(1)
    await streams.nothing()
    await streams.explained("end")
    streams.clock.turn(MINUTE)
    await streams.nothing()
    await streams.explained("grace")


async def test_explain_says_that_there_are_no_messages(streams: Streams) -> None:
    await streams.made()
    await streams.nothing()
    await streams.explained("message", "q")


async def test_explain_names_the_source_that_holds_the_watermark(streams: Streams) -> None:
    await streams.made("s", "clicks", "orders", event_time_path="data.ts")
    await streams.push({"ts": at(5)}, {"ts": at(600)}, queue="clicks")
    await streams.nothing()
    await streams.explained("watermark", "orders")
    await streams.push({"ts": at(30)}, queue="orders")
    await streams.nothing()
    await streams.explained("watermark", "orders")
    assert (await streams.resource("/s/explain", consumerGroup="g"))["watermark"] == at(30)


async def test_explain_says_that_partition_names_differ(streams: Streams) -> None:
    """Two queues whose keys never meet: a join that gives halves."""
    await streams.made("s", "messages", "reactions", partitioned=True)
    streams.align()
    await streams.push(1, queue="messages", key="chat-1")
    await streams.push(2, queue="reactions", key="CHAT-1")
    streams.clock.turn(MINUTE)
    await streams.drain(2)
    await streams.explained("partition", "name")


async def test_explain_says_that_a_key_is_unknown(streams: Streams) -> None:
    await three_windows(streams, "chat-1")
    await streams.drain(3)
    await streams.explained("chat-9", key="chat-9")


async def test_explain_names_leases_that_ran_out(streams: Streams) -> None:
    """Why a window is processed twice."""
    await three_windows(streams)
    await streams.take()
    streams.clock.turn(61)
    await streams.take()
    await streams.explained("lease", "renew")


async def test_explain_counts_what_was_late(streams: Streams) -> None:
    """Why a message is in no window."""
    await streams.made(event_time_path="data.ts")
    await streams.push({"ts": at(5)}, {"ts": at(61)})
    await streams.done()
    await streams.push({"ts": at(6)})
    await streams.late(1)
    await streams.explained("late", "1")


async def test_explain_names_the_lease_that_is_out(streams: Streams) -> None:
    await three_windows(streams)
    await streams.take()
    await streams.nothing()
    await streams.explained("lease")


async def test_explain_names_the_error_of_a_window_that_fails(streams: Streams) -> None:
    """Why a group makes no progress."""
    await three_windows(streams)
    await streams.ack(await streams.take(), success=False, error="division by zero")
    await streams.ack(await streams.take(), success=False, error="division by zero")
    await streams.explained("division by zero")


async def test_explain_of_what_does_not_exist(streams: Streams) -> None:
    await streams.resource("/nowhere/explain", status=404, consumerGroup="g")


# Retention


async def stored(http: httpx.AsyncClient) -> int:
    answer = await http.get("/api/v1/messages", params={"queue": "q", "limit": 100})
    assert answer.status_code == 200, answer.text
    return len(answer.json()["messages"])


async def test_retention_keeps_what_a_window_still_needs(streams: Streams, broker: Broker) -> None:
    """The queue's ttl is over, but a known group has not acknowledged the window yet."""
    await configure(streams.http, "q", ttl=60)
    await streams.define(window_duration_ms=10_000)
    await streams.nothing()  # now the group is known
    streams.align(10)
    await streams.push(1, 2)
    streams.clock.turn(300)
    await broker.background.expire()
    window = await streams.take()
    assert (data(window), window["complete"]) == ([1, 2], True)
    streams.clock.turn(61)
    await broker.background.expire()
    window = await streams.take()
    assert (data(window), window["complete"]) == ([1, 2], True)
    await streams.ack(window)

    async def gone() -> bool:
        await broker.background.expire()
        return await stored(streams.http) == 0

    await eventually(gone)


async def test_retention_goes_on_without_a_group(streams: Streams, broker: Broker) -> None:
    """A stream that nobody reads keeps nothing for ever."""
    await configure(streams.http, "q", ttl=60)
    await streams.define(window_duration_ms=10_000)
    await streams.push(1, 2)
    streams.clock.turn(300)

    async def gone() -> bool:
        await broker.background.expire()
        return await stored(streams.http) == 0

    await eventually(gone)


# A stop


@pytest.fixture
async def second(start_broker: StartBroker, streams: Streams) -> AsyncIterator[Streams]:
    """Another broker on the same database, started after the test's first lines would have run."""
    broker = await start_broker(clock=streams.clock)
    async with httpx.AsyncClient(base_url=broker.address, timeout=60) as http:
        yield Streams(http, streams.clock)


async def test_windows_and_leases_outlive_a_broker(streams: Streams, second: Streams, broker: Broker) -> None:
    await three_windows(streams)
    window = await streams.take()
    await streams.push("k3", key="k")
    await broker.stop()
    second.clock.turn(MINUTE - 10)
    await second.ack(window)
    second.clock.turn(10)
    assert [data(w) for w in await second.drain(3)] == [["k1"], ["k2"], ["k3"]]
