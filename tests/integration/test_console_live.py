"""What the console shows live: events, figures and their history, and lag over time; from a real broker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.ops import lag_history, live_metrics
from tests.conftest import Clock, StartBroker
from tests.integration.rawhttp import until
from tests.integration.test_roles import SECRET, token

pytestmark = pytest.mark.timeout(60)


async def push(http: httpx.AsyncClient, queue: str, count: int, partition: str = "p") -> None:
    items = [{"queue": queue, "partition": partition, "payload": {"n": n}} for n in range(count)]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201


async def pop(http: httpx.AsyncClient, queue: str, group: str, **query: Any) -> dict[str, Any]:
    answer = await http.get(f"/api/v1/pop/queue/{queue}", params={"consumerGroup": group, **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def listen(http: httpx.AsyncClient) -> AsyncIterator[dict[str, Any]]:
    """The figures, as a page reads them."""
    async with http.stream("GET", "/api/v1/events") as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert answer.headers["cache-control"] == "no-store"
        named = False
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                assert named, "each is of the event figures"
                yield json.loads(line[6:])
            named = line == "event: figures"


async def test_events_tell_what_goes_on(http: httpx.AsyncClient, broker: Broker, clock: Clock) -> None:
    await push(http, "orders", 3)
    await pop(http, "orders", "billing", batch=1)
    clock.turn(100)
    seen = []
    async with asyncio.timeout(20):
        async for figures in listen(http):
            seen.append(figures)
            if figures["rates"]["pushed"] > 0 and len(seen) >= 2:
                break
            await push(http, "orders", 5)
    last = seen[-1]
    assert last["broker"] == str(broker.id)
    assert last["latency"]["p99Ms"] >= last["latency"]["p50Ms"] > 0
    assert last["latencyByKind"]["ack"] == {"p50Ms": None, "p99Ms": None}
    assert last["database"]["connected"] is True
    assert last["database"]["connections"] >= 1
    assert last["deadLetters"] == 0
    assert last["lagSeconds"] == pytest.approx(100, abs=20)
    assert [(g["consumerGroup"], g["queue"]) for g in last["groups"]] == [("billing", "orders")]
    assert last["listeners"] == 1
    assert seen[0]["time"] < last["time"]


async def test_nobody_listens_nothing_is_computed(http: httpx.AsyncClient, broker: Broker) -> None:
    async for _ in listen(http):
        break
    loop = broker.live_figures._loop
    assert loop is not None
    ended = asyncio.Event()
    loop.on_end(ended.set)
    await asyncio.wait_for(ended.wait(), 10)
    assert broker.live_figures.listeners == 0
    assert broker.live_figures.event == b""  # the next one hears no old news


async def test_too_many_listeners_are_refused(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_metrics, "MOST_LISTENERS", 1)
    async for _ in listen(http):
        refused = await http.get("/api/v1/events")
        assert refused.status_code == 503
        assert "/api/v1/live" in refused.json()["error"]
        assert refused.headers["retry-after"]
        break


async def test_one_caller_cannot_take_all_places(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_metrics, "MOST_LISTENERS_OF_ONE", 1)
    broker = await start_broker(auth_secret=SECRET)
    ada, bob = ({"authorization": "Bearer " + token("read-only", sub=sub)} for sub in ("ada", "bob"))
    async with httpx.AsyncClient(base_url=broker.address, timeout=20) as http:
        for _ in range(2):  # a place is free again when its listener has gone
            async with http.stream("GET", "/api/v1/events", headers=ada) as answer:
                assert answer.status_code == 200
                refused = await http.get("/api/v1/events", headers=ada)
                assert refused.status_code == 503
                assert "close some" in refused.json()["error"]
                async with http.stream("GET", "/api/v1/events", headers=bob) as other:
                    assert other.status_code == 200
            await until(lambda: broker.live_figures.listeners == 0)


async def test_a_stream_ends_after_max_wait_and_with_the_broker(start_broker: StartBroker) -> None:
    short = await start_broker(max_wait="300ms")
    long = await start_broker()
    async with httpx.AsyncClient(timeout=20) as http:
        whole = await http.get(f"{short.address}/api/v1/events")
        assert whole.text.startswith("retry: 2000\n\nevent: figures\n")
        async with http.stream("GET", f"{long.address}/api/v1/events") as answer:
            lines = answer.aiter_lines()
            assert await anext(lines) == "retry: 2000"
            await asyncio.wait_for(long.stop(), 10)
            async for line in lines:  # it ends well, and is not cut: that would raise
                assert line == "" or line.startswith(("event: ", "data: "))


async def test_the_same_by_polling_and_its_history(http: httpx.AsyncClient, broker: Broker) -> None:
    await push(http, "orders", 4)
    figures = (await http.get("/api/v1/live")).json()
    assert figures["database"]["connected"] is True
    assert [b["id"] for b in figures["brokers"]] in (
        [],
        [str(broker.id)],
    )  # its first heartbeat may be to come
    await broker.background.heartbeat()
    history = (await http.get("/api/v1/live/history")).json()
    assert history["broker"] == str(broker.id)
    times = [point["time"] for point in history["points"]]
    assert times == sorted(times)
    assert sum(point["pushed"] for point in history["points"]) > 0
    assert (await http.get("/api/v1/live/history?minutes=16")).status_code == 400


async def test_history_is_bounded(broker: Broker, clock: Clock) -> None:
    figures = broker.live_figures
    for _ in range(live_metrics.MOST_POINTS + 10):
        clock.turn(0.5)
        figures.tick()
    assert len(figures.history) <= live_metrics.MOST_POINTS
    clock.turn(live_metrics.HISTORY_SECONDS + 1)
    figures.tick()
    assert len(figures.since(15)) == len(figures.history) == 1


async def test_a_database_that_is_away_is_told_and_stops_no_clock(
    http: httpx.AsyncClient, database_url: str, broker: Broker
) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("alter table queen.dead_letters rename to elsewhere")
    try:
        broker.live_figures._reading._due = 0.0
        figures = (await http.get("/api/v1/live")).json()
        assert figures["database"]["connected"] is False
        assert figures["rates"]["pushed"] >= 0
    finally:
        await connection.execute("alter table queen.elsewhere rename to dead_letters")
        await connection.close()


async def test_lag_over_time(http: httpx.AsyncClient, broker: Broker, clock: Clock) -> None:
    await push(http, "orders", 6, "a")
    await push(http, "orders", 2, "b")
    await push(http, "refunds", 1)
    popped = await pop(http, "orders", "billing", batch=1)
    await pop(http, "refunds", "billing")
    clock.turn(60)
    path = "/api/v1/consumer-groups/billing/lag"
    answer = (await http.get(path)).json()
    assert [(s["queue"], s["partition"]) for s in answer["series"]] == [("orders", None), ("refunds", None)]
    assert answer["everySeconds"] >= lag_history.SAMPLE_SECONDS
    [point] = answer["series"][0]["points"]
    assert (point["lag"], round(point["lagSeconds"], -1)) == (8, 60)

    one = (await http.get(path, params={"queue": "orders", "partition": "b"})).json()
    assert one["series"][0]["partition"] == "b"
    assert one["series"][0]["points"][-1]["lag"] == 2

    message = popped["messages"][0]
    done = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    await http.post("/api/v1/ack", json={**done, "status": "completed", "consumerGroup": "billing"})
    await broker.lags.first()
    series = (await http.get(path, params={"queue": "orders"})).json()["series"][0]["points"]
    assert series[0]["lag"] == 8
    assert series[-1]["lag"] == 7

    assert (await http.get("/api/v1/consumer-groups/nobody/lag")).status_code == 404
    assert (await http.get(path, params={"queue": "nothing"})).status_code == 404
    assert (await http.get(path, params={"partition": "b"})).status_code == 400
    assert (await http.get(path, params={"queue": "orders", "partition": "zz"})).status_code == 404


async def test_what_is_watched_is_bounded(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lag_history, "MOST_WATCHED", 3)
    for n in range(5):
        broker.lags.watch("g", f"q{n}", None)
    assert [queue for _, queue, _ in broker.lags._watched] == ["q2", "q3", "q4"]
    monkeypatch.setattr(lag_history, "WATCH_SECONDS", -1.0)
    broker.lags._forget()
    assert not broker.lags._watched
