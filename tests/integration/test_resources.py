"""What there is and how it does: /resources, /status and clear, over plain HTTP."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import httpx

from queenstream.broker.app import Broker
from tests.conftest import Clock

NONE = {"total": 0, "pending": 0, "processing": 0, "completed": 0, "deadLetter": 0}


async def push(http: httpx.AsyncClient, queue: str, count: int = 1, partition: str = "Default") -> None:
    items = [{"queue": queue, "partition": partition, "payload": {"n": n}} for n in range(count)]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201


async def pop(http: httpx.AsyncClient, queue: str, /, **query: Any) -> Any:
    answer = await http.get(f"/api/v1/pop/queue/{queue}", params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def ack(http: httpx.AsyncClient, popped: Any, status: str = "completed", **more: Any) -> None:
    acks = [
        {
            "transactionId": m["transactionId"],
            "partitionId": m["partitionId"],
            "leaseId": m["leaseId"],
            "status": status,
            **more,
        }
        for m in popped["messages"]
    ]
    body = {"consumerGroup": popped["consumerGroup"], "acknowledgments": acks}
    answer = await http.post("/api/v1/ack/batch", json=body)
    assert all(result["success"] for result in answer.json())


async def get(http: httpx.AsyncClient, path: str, /, **query: Any) -> Any:
    answer = await http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def refused(http: httpx.AsyncClient, path: str, status: int, /, **query: Any) -> None:
    answer = await http.get(path, params=query)
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]


async def some_queues(http: httpx.AsyncClient) -> None:
    """orders: 10 messages in two partitions; 3 done, 2 out, 1 dead for the group g. bills: none."""
    body = {"queue": "orders", "namespace": "shop", "task": "sell", "options": {"priority": 7}}
    assert (await http.post("/api/v1/configure", json=body)).status_code == 201
    await http.post("/api/v1/configure", json={"queue": "bills", "namespace": "shop"})
    await push(http, "orders", 6, "a")
    await push(http, "orders", 4, "b")
    group = {"consumerGroup": "g"}
    await ack(http, await pop(http, "orders/partition/a", batch=3, **group))
    await pop(http, "orders/partition/a", batch=2, **group)
    await ack(http, await pop(http, "orders/partition/b", **group), "dlq", error="bad")


COUNTS = {"total": 10, "pending": 4, "processing": 2, "completed": 4, "deadLetter": 1}


async def test_list_queues(http: httpx.AsyncClient) -> None:
    assert await get(http, "/api/v1/resources/queues") == {
        "queues": [],
        "pagination": {"limit": 100, "offset": 0, "total": 0},
    }
    await some_queues(http)
    found = await get(http, "/api/v1/resources/queues")
    assert found["pagination"] == {"limit": 100, "offset": 0, "total": 2}
    bills, orders = found["queues"]
    assert (bills["name"], bills["messages"], bills["partitions"]) == ("bills", NONE, 1)
    datetime.fromisoformat(orders.pop("createdAt"))
    options = orders.pop("options")
    assert options["priority"] == 7
    assert options["leaseTime"] == 300
    assert int(orders.pop("id")) > 0
    assert orders == {
        "name": "orders",
        "namespace": "shop",
        "task": "sell",
        "partitions": 3,
        "priority": 7,
        "consumerGroups": 1,
        "messages": COUNTS,
    }


async def test_filter_queues(http: httpx.AsyncClient) -> None:
    await some_queues(http)
    cases: list[tuple[dict[str, Any], list[str], int]] = [
        ({"search": "ORD"}, ["orders"], 1),
        ({"namespace": "shop", "task": "sell"}, ["orders"], 1),
        ({"namespace": "none"}, [], 0),
        ({"namespace": "", "limit": 1}, ["bills"], 2),
        ({"limit": 1, "offset": 1}, ["orders"], 2),
        ({"offset": 5}, [], 2),
    ]
    for path in ("/api/v1/resources/queues", "/api/v1/status/queues"):
        for query, names, total in cases:
            found = await get(http, path, **query)
            assert [queue["name"] for queue in found["queues"]] == names, query
            assert found["pagination"]["total"] == total, query


async def test_show_queue(http: httpx.AsyncClient) -> None:
    await some_queues(http)
    found = await get(http, "/api/v1/resources/queues/orders")
    assert found["messages"] == COUNTS
    assert found["partitionCount"] == 3
    assert found["options"]["priority"] == 7
    partitions = {p["name"]: p for p in found["partitions"]}
    assert list(partitions) == ["Default", "a", "b"]
    a = partitions["a"]
    assert {name: a[name] for name in ("queue", "total", "depth", "processing")} == {
        "queue": "orders",
        "total": 6,
        "depth": 3,
        "processing": 2,
    }
    assert a["oldest"] is not None
    assert partitions["Default"]["oldest"] is None
    (group,) = found["groups"]
    assert (group["name"], group["lag"], group["members"], group["partitions"]) == ("g", 6, 1, 3)
    assert group["subscriptionMode"] == "all"
    await refused(http, "/api/v1/resources/queues/nothing", 404)


async def test_processing_is_counted_once(http: httpx.AsyncClient) -> None:
    """Two groups with the same messages out: each message counts once."""
    await push(http, "q", 5)
    await pop(http, "q", batch=2, consumerGroup="one")
    await pop(http, "q", batch=3, consumerGroup="two")
    found = await get(http, "/api/v1/resources/queues/q")
    assert found["messages"] == {**NONE, "total": 5, "pending": 2, "processing": 3}


async def test_an_expired_lease_is_not_processing(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 2)
    await pop(http, "q", batch=2)
    clock.turn(301)
    found = await get(http, "/api/v1/resources/overview")
    assert found["messages"] == {**NONE, "total": 2, "pending": 2}
    assert found["leases"] == 0


async def test_namespaces_and_tasks(http: httpx.AsyncClient) -> None:
    await some_queues(http)
    await push(http, "plain", 1)
    assert await get(http, "/api/v1/resources/namespaces") == {
        "namespaces": [
            {"namespace": "", "queues": 1, "partitions": 1, "messages": {**NONE, "total": 1, "pending": 1}},
            {"namespace": "shop", "queues": 2, "partitions": 4, "messages": COUNTS},
        ]
    }
    tasks = (await get(http, "/api/v1/resources/tasks"))["tasks"]
    assert [(t["task"], t["queues"], t["messages"]["total"]) for t in tasks] == [("", 2, 1), ("sell", 1, 10)]


async def test_overview(http: httpx.AsyncClient, broker: Broker) -> None:
    await some_queues(http)
    await broker.background.flush()
    found = await get(http, "/api/v1/resources/overview")
    datetime.fromisoformat(found.pop("timestamp"))
    flow = found.pop("throughput")
    assert set(flow) == {"pushed", "popped", "acked", "failed", "dead"}
    assert found == {
        "queues": 2,
        "partitions": 4,
        "consumerGroups": 1,
        "namespaces": 1,
        "tasks": 1,
        "messages": COUNTS,
        "leases": 1,
    }


async def test_partitions(http: httpx.AsyncClient) -> None:
    await some_queues(http)
    found = await get(http, "/api/v1/resources/partitions", queue="orders", limit=2, offset=1)
    assert found["pagination"] == {"limit": 2, "offset": 1, "total": 3}
    assert [(p["name"], p["depth"], p["total"]) for p in found["partitions"]] == [("a", 3, 6), ("b", 3, 4)]
    assert set(found["partitions"][0]) == {
        "id", "queue", "name", "createdAt", "total", "depth", "processing", "oldest", "newest",
    }  # fmt: skip
    everywhere = await get(http, "/api/v1/resources/partitions")
    assert everywhere["pagination"]["total"] == 4
    nothing = await get(http, "/api/v1/resources/partitions", queue="nothing")
    assert nothing == {"partitions": [], "pagination": {"limit": 100, "offset": 0, "total": 0}}


async def test_bad_queries(http: httpx.AsyncClient) -> None:
    for path in ("resources/queues", "resources/partitions", "status/queues", "messages", "dlq"):
        for page in ({"limit": 1001}, {"limit": 0}, {"offset": -1}, {"limit": "many"}):
            await refused(http, f"/api/v1/{path}", 400, **page)
    for query in (
        {"interval": "second"},
        {"from": "yesterday"},
        {"from": "2026-01-02T00:00:00Z", "to": "2026-01-01T00:00:00Z"},
        {"from": "2020-01-01T00:00:00Z"},
        {"to": "0001-01-01T00:00:00Z"},
        {"to": "9999-12-31T23:59:59.999999Z", "interval": "day"},
    ):
        await refused(http, "/api/v1/status/analytics", 400, **query)


async def test_status(http: httpx.AsyncClient, broker: Broker) -> None:
    await some_queues(http)
    await broker.background.flush()
    found = await get(http, "/api/v1/status")
    assert (found["queues"], found["partitions"], found["messages"]) == (2, 4, COUNTS)
    assert len(found["throughput"]) == 60
    assert sum(point["pushed"] for point in found["throughput"]) == 10
    assert sum(point["popped"] for point in found["throughput"]) == 6
    assert found["errors"] == {"failed": 0, "dead": 1, "expired": 0}
    assert found["leases"] == {"active": 1, "partitions": 1}
    assert found["deadLetters"] == {"total": 1, "lastHour": 1}


async def test_status_of_queues(http: httpx.AsyncClient) -> None:
    await some_queues(http)
    found = await get(http, "/api/v1/status/queues", search="orders")
    (orders,) = found["queues"]
    assert set(orders) == {
        "id", "name", "namespace", "task", "partitions", "consumerGroups", "messages", "throughput",
        "oldest", "newest",
    }  # fmt: skip
    assert orders["messages"] == COUNTS


async def test_status_of_a_queue(http: httpx.AsyncClient, clock: Clock) -> None:
    await some_queues(http)
    clock.turn(100)
    found = await get(http, "/api/v1/status/queues/orders", limit=2, offset=1)
    assert found["queue"]["name"] == "orders"
    assert found["pagination"] == {"limit": 2, "offset": 1, "total": 3}
    a, b = found["partitions"]
    (group,) = a["groups"]
    assert (group["consumerGroup"], group["lag"]) == ("g", 3)
    assert 100 <= group["lagSeconds"] < 160
    assert group["leasedUntil"] is not None
    assert group["lastConsumedAt"] is not None
    assert b["groups"][0]["leasedUntil"] is None
    assert "leaseId" not in str(found)
    await refused(http, "/api/v1/status/queues/nothing", 404)


async def test_analytics(http: httpx.AsyncClient, broker: Broker, clock: Clock) -> None:
    await some_queues(http)
    await push(http, "other", 1)
    await broker.background.flush()
    found = await get(http, "/api/v1/status/analytics")
    assert found["interval"] == "minute"
    assert 60 <= len(found["series"]) <= 61
    assert found["totals"] == {"pushed": 11, "popped": 6, "acked": 3, "failed": 0, "dead": 1}
    only = await get(http, "/api/v1/status/analytics", queue="other", interval="hour")
    assert only["totals"]["pushed"] == 1
    assert 24 <= len(only["series"]) <= 25
    assert set(only["series"][0]) == {
        "timestamp", "pushed", "popped", "acked", "failed", "dead", "expired",
    }  # fmt: skip
    before = {
        "from": (clock() - timedelta(days=3)).isoformat(),
        "to": (clock() - timedelta(days=2)).isoformat(),
    }
    past = await get(http, "/api/v1/status/analytics", interval="day", **before)
    assert len(past["series"]) == 2
    assert past["totals"]["pushed"] == 0
    assert (await get(http, "/api/v1/status/analytics", namespace="shop"))["totals"]["pushed"] == 10


async def test_clear(http: httpx.AsyncClient) -> None:
    await some_queues(http)
    answer = await http.delete("/api/v1/queues/orders/clear")
    assert answer.json() == {"success": True, "queue": "orders", "deleted": 10}
    found = await get(http, "/api/v1/resources/queues/orders")
    assert found["messages"] == {**NONE, "deadLetter": 1}
    assert found["groups"][0]["lag"] == 0
    await push(http, "orders", 1, "a")
    assert len((await pop(http, "orders", batch=10, consumerGroup="g"))["messages"]) == 1
    assert (await http.delete("/api/v1/queues/nothing/clear")).status_code == 404


async def test_clear_one_partition(http: httpx.AsyncClient) -> None:
    await push(http, "q", 3, "a")
    await push(http, "q", 2, "b")
    await pop(http, "q/partition/a", consumerGroup="g")
    answer = await http.delete("/api/v1/queues/q/clear", params={"partition": "a"})
    assert answer.json() == {"success": True, "queue": "q", "deleted": 3}
    assert (await get(http, "/api/v1/resources/queues/q"))["messages"] == {**NONE, "total": 2, "pending": 2}
    await push(http, "q", 1, "a")
    assert (await get(http, "/api/v1/consumer-groups/g"))["totalLag"] == 3
    answer = await http.delete("/api/v1/queues/q/clear", params={"partition": "c"})
    assert answer.status_code == 404
