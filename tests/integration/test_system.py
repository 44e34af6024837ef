"""Health, metrics and maintenance against a real broker."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from queenstream import config, postgres
from queenstream.broker.app import Broker
from queenstream.broker.ops import gauges
from queenstream.broker.ops.metrics import RATE_SECONDS, Metrics
from tests.conftest import Clock, StartBroker


async def push(http: httpx.AsyncClient, queue: str, *names: str, partition: str = "Default") -> None:
    items = [
        {"queue": queue, "partition": partition, "payload": {"n": name}, "transactionId": name}
        for name in names
    ]
    answer = await http.post("/api/v1/push", json={"items": items})
    assert answer.status_code == 201, answer.text


async def pop(http: httpx.AsyncClient, queue: str, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get(f"/api/v1/pop/queue/{queue}", params=query)
    if answer.status_code == 204:
        return []
    assert answer.status_code == 200, answer.text
    messages: list[dict[str, Any]] = answer.json()["messages"]
    return messages


async def ack(
    http: httpx.AsyncClient, message: dict[str, Any], status: str, group: str | None = None
) -> None:
    body = {k: message[k] for k in ("transactionId", "partitionId", "leaseId")}
    answer = await http.post("/api/v1/ack", json=body | {"status": status, "consumerGroup": group})
    assert answer.json()[0]["success"], answer.text


async def get(http: httpx.AsyncClient, path: str, **query: Any) -> dict[str, Any]:
    answer = await http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def until(holds: Callable[[], Awaitable[bool]], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not await holds():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def parse(text: str) -> Samples:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def scrape(http: httpx.AsyncClient) -> Callable[..., float]:
    """The metrics as a function: ``value("queen_queue_depth", queue="a")``."""
    assert (await http.post("/api/v1/stats/refresh")).json() == {"success": True}
    samples = parse((await http.get("/metrics")).text)
    return lambda name, **labels: samples[name, frozenset(labels.items())]


# Health


async def test_health(http: httpx.AsyncClient, broker: Broker) -> None:
    healthy = {
        "status": "healthy", "database": "connected", "server": "queenstream", "version": broker.version,
    }  # fmt: skip
    assert await get(http, "/health") == healthy
    assert await get(http, "/health/ready") == healthy
    assert (await get(http, "/health/live"))["status"] == "healthy"
    head = await http.head("/health")
    assert (head.status_code, head.content) == (200, b"")


async def test_not_ready_while_it_drains(http: httpx.AsyncClient, broker: Broker) -> None:
    broker.ready = False
    answer = await http.get("/health/ready")
    assert (answer.status_code, answer.json()["status"]) == (503, "unhealthy")
    assert answer.json()["database"] == "connected"
    assert (await http.get("/health")).status_code == (await http.get("/health/live")).status_code == 200


async def unhealthy(http: httpx.AsyncClient) -> bool:
    started = time.monotonic()
    answer = await http.get("/health")
    assert time.monotonic() - started < 2.5
    if answer.status_code == 200:
        return False
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
    assert (answer.json()["status"], answer.json()["database"]) == ("unhealthy", "disconnected")
    return True


async def test_the_database_stops(caplog: pytest.LogCaptureFixture) -> None:
    """Everything that must answer without a database does, at once; probes write no log of their own."""
    with postgres.ephemeral() as server:
        broker = Broker(config.load({"port": 0, "drain_timeout": "1s"}, {}, None), server.url)
        await broker.start()
        async with httpx.AsyncClient(base_url=broker.address, timeout=20) as http:
            await push(http, "q", "a")
            assert (await scrape(http))("queen_queue_depth", queue="q") == 1
            await asyncio.to_thread(server.stop)
            assert await unhealthy(http)
            assert (await http.get("/health/ready")).status_code == 503
            assert (await http.get("/health/live")).status_code == 200

            broker.gauges._tried_at = -gauges.FRESH_SECONDS
            samples = parse((await http.get("/metrics")).text)  # what was read before is kept
            assert samples["queen_queue_depth", frozenset({("queue", "q")})] == 1
            failures = samples["queen_background_failures_total", frozenset({("task", "gauges")})]
            assert failures == 1
            refused = await http.post("/api/v1/stats/refresh")
            assert (refused.status_code, "retry-after" in refused.headers) == (503, True)
            assert (await http.get("/api/v1/system/maintenance")).status_code == 503

            # Nothing else may speak while the probes are listened to.
            await broker.supervisor.close()
            caplog.clear()
            with caplog.at_level(logging.DEBUG, "queenstream"):
                for _ in range(5):
                    assert await unhealthy(http)
            assert [r for r in caplog.records if r.name.startswith("queenstream")] == []
        await broker.stop()


async def test_the_database_is_dropped(start_broker: StartBroker, database_url: str) -> None:
    broker = await start_broker()
    name = urlsplit(database_url).path[1:]
    connection = await asyncpg.connect(database_url.replace(f"/{name}?", "/postgres?"))
    async with httpx.AsyncClient(base_url=broker.address, timeout=20) as http:
        assert (await http.get("/health")).status_code == 200
        await connection.execute(f"drop database {name} with (force)")
        assert await unhealthy(http)
        await connection.execute(f"create database {name} template queen strategy wal_log")
        await until(lambda: _is_healthy(http))
    await connection.close()


async def _is_healthy(http: httpx.AsyncClient) -> bool:
    return (await http.get("/health")).status_code == 200


async def test_a_database_that_hangs(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Probes neither wait for it nor pile up: one question is out, whatever the number of probes."""
    broker = await start_broker(pool=1)
    monkeypatch.setattr(gauges, "PROBE_SECONDS", 0.3)
    stuck = asyncio.create_task(broker.database.hot("select pg_sleep(1.5)"))
    async with httpx.AsyncClient(base_url=broker.address, timeout=20) as http:
        await until(lambda: _busy(broker))
        assert all(await asyncio.gather(*(unhealthy(http) for _ in range(5))))
        assert broker.probe._answers.running
        await stuck
        await until(lambda: _is_healthy(http))


async def _busy(broker: Broker) -> bool:
    return broker.database.usage[0] == 1


# Metrics


async def test_metrics_after_known_traffic(http: httpx.AsyncClient, clock: Clock) -> None:
    await http.post("/api/v1/configure", json={"queue": "a", "options": {"retryLimit": 3, "retryDelay": 0}})
    await push(http, "a", "one", "two", "three")
    await push(http, "a", "one")  # a duplicate
    await push(http, "a", "four", partition="p")
    clock.turn(100)
    messages = await pop(http, "a", batch=10, consumerGroup="g")
    assert len(messages) == 3
    await ack(http, messages[0], "completed", "g")
    await ack(http, messages[1], "dlq", "g")
    messages = await pop(http, "a", batch=10, consumerGroup="g")
    assert len(messages) == 1  # from p; the first is still leased
    value = await scrape(http)
    for name, count in {
        "pushed": 4,
        "duplicates": 1,
        "popped": 4,
        "acked": 1,
        "dead": 1,
        "failed": 0,
    }.items():
        assert value(f"queen_messages_{name}_total", queue="a") == count, name
    assert value("queen_queue_depth", queue="a") == value("queen_group_lag", queue="a", group="g") == 2
    assert value("queen_leases", queue="a") == 2
    assert value("queen_dead_letters", queue="a") == 1
    assert 100 <= value("queen_oldest_message_seconds", queue="a") < 110
    assert 100 <= value("queen_group_lag_seconds", queue="a", group="g") < 110
    assert value("queen_messages_per_second", kind="pushed") > 0
    assert value("queen_batch_rows_count", kind="push") == 3
    assert value("queen_batch_rows_sum", kind="push") == 5
    assert value("queen_batch_seconds_bucket", kind="pop", le="+Inf") == 2
    assert value("queen_requests_total", route="/api/v1/push", method="POST", status="201") == 3
    assert value("queen_request_seconds_count", route="/api/v1/push") == 3
    assert value("queen_pool_connections_max") == 8
    assert value("queen_pool_connections_busy") == 0
    assert value("process_resident_memory_bytes") > 1_000_000
    clock.turn(301)  # the leases have run out
    assert (await scrape(http))("queen_leases", queue="a") == 0


async def test_a_finished_queue_has_no_lag(http: httpx.AsyncClient) -> None:
    await push(http, "a", "one", "two")
    await pop(http, "a", batch=10, autoAck=True)
    value = await scrape(http)
    assert value("queen_queue_depth", queue="a") == 0
    assert value("queen_group_lag", queue="a", group="__QUEUE_MODE__") == 0
    assert value("queen_group_lag_seconds", queue="a", group="__QUEUE_MODE__") == 0
    with pytest.raises(KeyError):
        value("queen_oldest_message_seconds", queue="a")


async def test_names_that_need_quoting(http: httpx.AsyncClient) -> None:
    name = 'a "b"\\c\nd\u00e9\U0001f41d{x="y"} '
    await push(http, name, "one")
    assert (await scrape(http))("queen_messages_pushed_total", queue=name) == 1


async def test_metrics_as_text_and_as_json(http: httpx.AsyncClient) -> None:
    await push(http, "a", "one")
    await http.post("/api/v1/stats/refresh")
    for path, accept in (("/metrics", "*/*"), ("/metrics/prometheus", "application/json")):
        answer = await http.get(path, headers={"accept": accept})
        assert answer.headers["content-type"].startswith("text/plain; version=")
        assert parse(answer.text)
    answer = await http.get("/metrics", headers={"accept": "application/json"})
    assert answer.headers["content-type"] == "application/json"
    found = answer.json()
    assert found["messages"]["pushed"] == 1
    assert found["poolConnectionsMax"] == 8
    (queue,) = found["queues"]
    assert 0 <= queue.pop("oldestSeconds") < 10
    assert queue == {"queue": "a", "depth": 1, "leases": 0, "deadLetters": 0}
    assert found["groups"] == []


async def test_scrapes_read_the_database_together_and_not_often(
    http: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0
    admin = broker.database.admin

    async def count(name: str, *args: Any) -> list[asyncpg.Record]:
        nonlocal reads
        reads += name == "queue_gauges"
        return await admin(name, *args)

    monkeypatch.setattr(broker.database, "admin", count)
    await asyncio.gather(*(http.get("/metrics") for _ in range(10)))
    await http.get("/metrics")
    assert reads == 1
    broker.gauges._tried_at -= gauges.FRESH_SECONDS
    await asyncio.gather(*(http.get("/metrics") for _ in range(10)))
    assert reads == 2


def test_rates_are_over_the_last_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("queenstream.broker.ops.metrics.monotonic", lambda: now)
    metrics = Metrics()
    for second in range(200):
        now = 1000.0 + second
        metrics.popped("q", 100 if second < 100 else 0, auto_ack=False)
        metrics.rates()
    assert metrics.rates()["popped"] == 0
    assert len(metrics._samples) <= RATE_SECONDS + 2
    now += 60
    metrics.popped("q", 120, auto_ack=False)
    assert metrics.rates()["popped"] == 2.0


# Maintenance


async def test_maintenance_on_two_brokers(start_broker: StartBroker, clock: Clock) -> None:
    first, second = await start_broker(clock=clock), await start_broker(clock=clock)
    async with (
        httpx.AsyncClient(base_url=first.address, timeout=30) as here,
        httpx.AsyncClient(base_url=second.address, timeout=30) as there,
    ):
        path = "/api/v1/system/maintenance"
        assert (await get(there, path))["maintenanceMode"] is False
        for queue in ("old", "q"):
            body = {"queue": queue, "options": {"ttl": 3600}}
            assert (await here.post("/api/v1/configure", json=body)).status_code == 201
        await push(here, "old", "kept")
        answer = await here.post(path, json={"enabled": True})
        assert answer.status_code == 200
        on = answer.json()
        assert (on["enabled"], on["maintenanceMode"], on["popMaintenanceMode"]) == (True, True, False)
        await until(lambda: _paused(second))
        assert await get(there, path) == on

        await push(there, "q", "a")
        assert await pop(there, "q") == await pop(here, "q") == []
        polls = [
            asyncio.create_task(pop(http, "q", wait=True, timeout=20_000, consumerGroup=group))
            for http, group in ((here, "g1"), (there, "g2"))
        ]
        clock.turn(4000)  # past every ttl
        for broker in (first, second):
            await broker.background.expire()
            await broker.background.forget()
        assert await _messages(first) == 2
        clock.turn(-4000)
        await until(lambda: _waiting(first))
        assert not any(poll.done() for poll in polls)

        off = (await there.post(path, json={"enabled": False})).json()
        assert (off["enabled"], off["maintenanceMode"]) == (False, False)
        for poll in polls:
            (message,) = await asyncio.wait_for(poll, 10)
            assert message["data"] == {"n": "a"}
        clock.turn(4000)
        await first.background.expire()
        await until(lambda: _empty(first))


async def _paused(broker: Broker) -> bool:
    return broker.maintenance and broker.popper.paused


async def _waiting(broker: Broker) -> bool:
    return broker.popper.waiting == 1


async def _messages(broker: Broker) -> int:
    rows = await broker.database.hot("select count(*) as n from queen.messages")
    count: int = rows[0]["n"]
    return count


async def _empty(broker: Broker) -> bool:
    return await _messages(broker) == 0


async def test_pop_maintenance(http: httpx.AsyncClient, broker: Broker, clock: Clock) -> None:
    path = "/api/v1/system/maintenance/pop"
    assert (await get(http, path))["enabled"] is False
    on = (await http.post(path, json={"enabled": True})).json()
    assert (on["enabled"], on["maintenanceMode"], on["popMaintenanceMode"]) == (True, False, True)
    assert (await get(http, "/api/v1/system/maintenance"))["popMaintenanceMode"] is True
    await push(http, "q", "a")
    assert await pop(http, "q") == []
    assert not broker.maintenance  # upkeep goes on
    await http.post(path, json={"enabled": False})
    assert len(await pop(http, "q")) == 1
    bodies: tuple[Any, ...] = ({}, {"enabled": "yes"}, {"enabled": None}, [])
    for bad in bodies:
        assert (await http.post(path, json=bad)).status_code == 400


async def test_a_broker_starts_in_maintenance(start_broker: StartBroker) -> None:
    first = await start_broker()
    async with httpx.AsyncClient(base_url=first.address) as http:
        await http.post("/api/v1/system/maintenance", json={"enabled": True})
    second = await start_broker()
    assert await _paused(second)
