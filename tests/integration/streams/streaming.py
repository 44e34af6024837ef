"""The routes of streams as tests want them. Time is turned, never slept for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx

from queenstream.core.windows import Span, iso, to_us
from tests.acceptance.speaking import Json, configure, moment, push
from tests.conftest import Clock

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
