"""The analytics routes against a real broker."""

from __future__ import annotations

from datetime import date, timedelta
from typing import Any

import asyncpg
import httpx
import pytest

from queenstream.broker.api import system
from queenstream.broker.app import Broker
from tests.conftest import Clock, StartBroker
from tests.integration.test_system import get, pop, push


async def test_brokers(start_broker: StartBroker) -> None:
    first, second = await start_broker(), await start_broker()
    async with (
        httpx.AsyncClient(base_url=first.address) as here,
        httpx.AsyncClient(base_url=second.address) as there,
    ):
        await push(here, "q", "a", "b")
        await push(there, "q", "c")
        await second.background.heartbeat()
        await first.background.heartbeat()
        found = await get(here, "/api/v1/analytics/system-metrics")
        by_id = {broker["id"]: broker for broker in found["brokers"]}
        assert set(by_id) == {str(first.id), str(second.id)}
        other = by_id[str(second.id)]
        assert other["address"] == second.address
        assert other["messages"]["pushed"] == 1
        assert other["memoryBytes"] > 0
        assert other["cpuSeconds"] > 0
        assert other["startedAt"] <= other["seenAt"]
        assert found["totals"]["brokers"] == 2
        assert found["totals"]["messages"]["pushed"] == 3
        assert found["totals"]["poolConnectionsMax"] == 16

        # One that stopped without a word is gone from the list; one that counts otherwise is shown.
        await first.database.hot(
            "update queen.brokers set seen_at = seen_at - interval '16 s' where id = $1", first.id
        )
        await first.database.hot(
            """update queen.brokers set stats = '{"requests": "?"}' where id = $1""", second.id
        )
        (worker,) = (await get(here, "/api/v1/analytics/worker-metrics"))["workers"]
        assert (worker["id"], worker["requests"], worker["pid"]) == (str(second.id), 0, other["pid"])


async def test_queue_lag(http: httpx.AsyncClient, clock: Clock) -> None:
    path = "/api/v1/analytics/queue-lag"
    await push(http, "a", "one", "two")
    await push(http, "b", "one")
    await pop(http, "a", consumerGroup="late")
    await pop(http, "b", consumerGroup="done", autoAck=True)
    clock.turn(50)
    found = (await get(http, path))["queues"]
    assert [(q["queue"], q["group"], q["lag"]) for q in found] == [("a", "late", 2), ("b", "done", 0)]
    assert 50 <= found[0]["lagSeconds"] < 60
    assert found[1]["lagSeconds"] == 0
    assert [q["queue"] for q in (await get(http, path, queue="b"))["queues"]] == ["b"]
    assert (await get(http, path, queue="none"))["queues"] == []


async def test_queue_ops(http: httpx.AsyncClient, broker: Broker) -> None:
    path = "/api/v1/analytics/queue-ops"
    await push(http, "a", "one", "two", "two")
    await push(http, "b", "one")
    await pop(http, "a", autoAck=True)
    await http.post("/api/v1/stats/refresh")
    found = await get(http, path)
    assert found["interval"] == "minute"
    assert 60 <= len(found["series"]) <= 62

    def total(found: dict[str, Any], name: str) -> int:
        return sum(bucket[name] for bucket in found["series"])

    assert [total(found, n) for n in ("pushed", "duplicates", "popped", "acked", "dead")] == [3, 1, 1, 1, 0]
    assert [total(await get(http, path, queue=q), "pushed") for q in ("a", "b", "none")] == [2, 1, 0]
    await broker.database.hot(
        "insert into queen.queue_stats (queue_id, minute, pushed, expired) select id, m, 1, 2 "
        "from queen.queues, "
        "generate_series('2020-01-01T22:00Z'::timestamptz, '2020-01-02T01:59Z', '1 min') m where name = 'a'"
    )
    span = {"from": "2020-01-01T22:30:00Z", "to": "2020-01-02T01:29:59Z"}
    hours = await get(http, path, interval="hour", **span)
    assert [(b["time"], b["pushed"], b["expired"]) for b in hours["series"]] == [
        ("2020-01-01T22:00:00Z", 30, 60),
        ("2020-01-01T23:00:00Z", 60, 120),
        ("2020-01-02T00:00:00Z", 60, 120),
        ("2020-01-02T01:00:00Z", 30, 60),
    ]
    days = await get(http, path, interval="day", **span)
    assert [b["pushed"] for b in days["series"]] == [90, 90]


@pytest.mark.parametrize(
    "query",
    [
        {"from": "2020-01-02", "to": "2020-01-01"},
        {"from": "0001-01-01", "to": "9999-12-31"},
        {"to": "0001-01-01"},
        {"from": "0001-01-01", "to": "0001-01-01"},
        {"from": "9999-12-31", "to": "9999-12-31T23:59:59.999999"},
        {"from": "1970-01-01"},
        {"from": "yesterday"},
        {"interval": "second"},
        {"from": "2020-01-01\0"},
    ],
)
async def test_queue_ops_refuses(http: httpx.AsyncClient, query: dict[str, str]) -> None:
    answer = await http.get("/api/v1/analytics/queue-ops", params=query)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]


async def test_queue_ops_has_a_longest_series(http: httpx.AsyncClient) -> None:
    start = date(2000, 1, 1)
    for days, status in ((system.MOST_BUCKETS - 1, 200), (system.MOST_BUCKETS, 400)):
        span = {
            "from": start.isoformat(),
            "to": (start + timedelta(days=days)).isoformat(),
            "interval": "day",
        }
        answer = await http.get("/api/v1/analytics/queue-ops", params=span)
        assert answer.status_code == status
        assert status == 400 or len(answer.json()["series"]) == system.MOST_BUCKETS


async def test_retention(http: httpx.AsyncClient, broker: Broker, clock: Clock) -> None:
    options = {"ttl": 100, "retentionEnabled": True, "retentionSeconds": 50, "completedRetentionSeconds": 20}
    await http.post("/api/v1/configure", json={"queue": "a", "options": options})
    await push(http, "a", "one", "two")
    clock.turn(51)
    await broker.background.expire()
    await push(http, "b", "three")
    clock.turn(7)
    await http.post("/api/v1/stats/refresh")
    first, second = (await get(http, "/api/v1/analytics/retention"))["queues"]
    assert first == {"queue": "a", **options, "expiredLast24h": 2,
                     "oldestMessageAt": None, "oldestMessageSeconds": None}  # fmt: skip
    assert (second["queue"], second["ttl"], second["expiredLast24h"]) == ("b", 0, 0)
    assert 7 <= second["oldestMessageSeconds"] < 17
    assert (await get(http, "/api/v1/analytics/retention", queue="b"))["queues"][0]["queue"] == "b"


async def test_postgres_stats(http: httpx.AsyncClient, database_url: str) -> None:
    await push(http, "a", "one")
    holder = await asyncpg.connect(database_url, server_settings={"application_name": "holder"})
    async with holder.transaction(isolation="repeatable_read"):
        await holder.fetch("select count(*) from queen.messages")
        found = await get(http, "/api/v1/analytics/postgres-stats")
    await holder.close()
    assert found["databaseBytes"] > 1_000_000
    tables = {table["table"]: table for table in found["tables"]}
    assert {"messages", "cursors", "queues", "dead_letters"} <= set(tables)
    assert tables["messages"]["totalBytes"] >= tables["messages"]["indexBytes"] > 0
    assert found["connections"]["idle in transaction"] == 1
    assert found["oldestTransactionSeconds"] > 0
    assert "holder" in {one["application"] for one in found["xminHolders"]}
    assert 0 <= found["cacheHitRatio"] <= 1
    assert found["settings"]["synchronous_commit"] == "on"
    assert set(found["settings"]) >= {"fsync", "max_connections"}
    assert found["serverVersion"]
    assert "select" not in str(found).lower()  # no query texts
