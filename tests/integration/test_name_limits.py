"""Names are limited, each with its remedy, and what nobody needs any more goes without a loss."""

from __future__ import annotations

from typing import Any

import httpx
import jwt
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.ops import tasks
from tests.acceptance.speaking import configure
from tests.conftest import Clock, StartBroker

SECRET = "s" * 32
DAY = 86_400.0


@pytest.fixture(autouse=True)
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker's own upkeep runs once, at its start; then only when a test says so."""
    for name in ("EXPIRE_SECONDS", "FORGET_SECONDS"):
        monkeypatch.setattr(tasks, name, 3600.0)


def client(broker: Broker, subject: str | None = None) -> httpx.AsyncClient:
    headers = {}
    if subject is not None:
        claims = {"sub": subject, "role": "read-write", "exp": 4_000_000_000}
        headers["Authorization"] = "Bearer " + jwt.encode(claims, SECRET, "HS256")
    return httpx.AsyncClient(base_url=broker.address, timeout=30, headers=headers)


async def push(http: httpx.AsyncClient, *partitions: str, queue: str = "q") -> httpx.Response:
    items = [{"queue": queue, "partition": name, "payload": name} for name in partitions]
    return await http.post("/api/v1/push", json={"items": items})


async def pop(http: httpx.AsyncClient, group: str, **query: Any) -> list[Any]:
    params = {"batch": 100, "partitions": 100, "autoAck": True, "consumerGroup": group, **query}
    answer = await http.get("/api/v1/pop/queue/q", params=params)
    assert answer.status_code in (200, 204), answer.text
    return [m["data"] for m in answer.json()["messages"]] if answer.status_code == 200 else []


async def partitions_of(http: httpx.AsyncClient) -> list[str]:
    answer = await http.get("/api/v1/resources/partitions", params={"queue": "q"})
    return [row["name"] for row in answer.json()["partitions"]]


def refused(answer: httpx.Response, status: int, setting: str) -> None:
    assert answer.status_code == status, answer.text
    assert f"({setting})" in answer.json()["error"]


async def test_a_queue_has_so_many_partitions(start_broker: StartBroker) -> None:
    broker = await start_broker(max_partitions=3)
    async with client(broker) as http:
        assert (await push(http, "a", "b")).status_code == 201
        refused(await push(http, "a", "c", "d"), 409, "max_partitions")
        assert await pop(http, "g") == ["a", "b"]  # none of the refused request
        assert (await push(http, "c")).status_code == 201
        refused(await push(http, "d"), 409, "max_partitions")
        assert (await push(http, "a", "b", "c")).status_code == 201
        assert (await push(http, "d", queue="other")).status_code == 201
        body = {"operations": [{"type": "push", "items": [{"queue": "q", "partition": "e", "payload": 1}]}]}
        refused(await http.post("/api/v1/transaction", json=body), 409, "max_partitions")


async def test_so_many_queues_and_groups(start_broker: StartBroker) -> None:
    broker = await start_broker(max_queues=2, max_groups=2)
    async with client(broker) as http:
        await configure(http, "q")
        assert (await push(http, "a", queue="other")).status_code == 201
        refused(await push(http, "a", queue="third"), 409, "max_queues")
        refused(await http.post("/api/v1/configure", json={"queue": "third"}), 409, "max_queues")
        await configure(http, "q", retryLimit=7)
        await push(http, "a")
        assert [await pop(http, group) for group in ("one", "two")] == [["a"], ["a"]]
        answer = await http.get("/api/v1/pop/queue/q", params={"consumerGroup": "three"})
        refused(answer, 409, "max_groups")
        await push(http, "a")
        assert await pop(http, "one") == ["a"]


async def test_one_caller_creates_so_many_names_in_a_minute(start_broker: StartBroker) -> None:
    broker = await start_broker(max_new_names=2, auth_secret=SECRET)
    async with client(broker, "ann") as ann, client(broker, "bob") as bob:
        assert (await push(ann, "a", "b", "c", "d", "e")).status_code == 201
        answer = await push(ann, "f")
        refused(answer, 429, "max_new_names")
        assert int(answer.headers["retry-after"]) >= 1
        refused(await ann.post("/api/v1/configure", json={"queue": "other"}), 429, "max_new_names")
        pop_or_seek = (
            ann.get("/api/v1/pop/queue/q", params={"consumerGroup": "g"}),
            ann.post("/api/v1/consumer-groups/g/queues/q/seek", json={"toEnd": True}),
        )
        for request in pop_or_seek:
            refused(await request, 429, "max_new_names")
        assert (await push(ann, "a", "e")).status_code == 201  # they exist
        assert (await push(bob, "f")).status_code == 201
        assert len(await pop(bob, "g")) == 8
        assert await pop(ann, "g") == []  # it exists
        await configure(ann, "q", retryLimit=7)


async def test_streams_and_their_groups_count_as_groups(start_broker: StartBroker) -> None:
    broker = await start_broker(max_groups=2)
    async with client(broker) as http:
        await configure(http, "q")

        async def define(name: str) -> httpx.Response:
            body = {"name": name, "source_queue_names": ["q"], "window_type": "count", "window_size_count": 1}
            return await http.post("/api/v1/stream/define", json=body)

        async def seek(group: str) -> httpx.Response:
            body = {"streamName": "one", "consumerGroup": group, "timestamp": "now"}
            return await http.post("/api/v1/stream/seek", json=body)

        assert (await define("one")).status_code == 201
        assert await pop(http, "g") == []
        refused(await define("two"), 409, "max_groups")
        assert (await define("one")).status_code == 201
        answer = await http.get("/api/v1/pop/queue/q", params={"consumerGroup": "other"})
        refused(answer, 409, "max_groups")
        assert [(await seek(group)).status_code for group in ("a", "b", "a")] == [200, 200, 200]
        refused(await seek("c"), 409, "max_groups")
        body = {"streamName": "one", "consumerGroup": "c", "timeout": 0}
        refused(await http.post("/api/v1/stream/poll", json=body), 409, "max_groups")


async def test_empty_partitions_go_and_come_back_without_a_loss(
    start_broker: StartBroker, clock: Clock
) -> None:
    broker, other = await start_broker(clock=clock), await start_broker(clock=clock)
    async with client(broker) as http, client(other) as there:
        await configure(http, "q", retentionEnabled=True, completedRetentionSeconds=60)
        assert (await push(http, "done", "dead", "waiting", "leased")).status_code == 201
        assert (await push(there, "done")).status_code == 201  # the other broker knows it, too
        for name in ("dead", "done"):
            path = f"/api/v1/pop/queue/q/partition/{name}"
            answer = await http.get(path, params={"batch": 10, "consumerGroup": "g"})
            for message in answer.json()["messages"]:
                ack = {
                    name: message[name]
                    for name in ("transactionId", "partitionId", "leaseId", "consumerGroup")
                }
                ack["status"] = "dlq" if message["data"] == "dead" else "completed"
                assert (await http.post("/api/v1/ack", json=ack)).json()[0]["success"]
        clock.turn(20 * DAY)
        await broker.background.expire()
        await broker.background.forget()
        assert {"done", "dead", "waiting", "leased"} <= set(await partitions_of(http))
        clock.turn(11 * DAY)
        leased = await http.get("/api/v1/pop/queue/q/partition/leased", params={"consumerGroup": "g"})
        assert leased.status_code == 200
        await broker.background.forget()
        left = set(await partitions_of(http))
        assert "done" not in left
        assert {"Default", "waiting", "leased"} <= left

        assert (await push(there, "done")).status_code == 201  # a broker that knew the old one
        assert (await push(http, "done")).status_code == 201
        assert sorted(await pop(http, "g")) == ["done", "done", "waiting"]
        assert sorted(await pop(there, "new")).count("done") == 2


async def test_a_group_that_takes_nothing_is_forgotten_only_if_the_settings_say_so(
    start_broker: StartBroker, clock: Clock
) -> None:
    keeping = await start_broker(clock=clock)
    forgetting = await start_broker(clock=clock, group_retention="7d")
    async with client(keeping) as http:
        await push(http, "a")
        for group in ("idle", "busy", "quiet"):
            assert await pop(http, group) == ["a"]
        await push(http, "b")
        clock.turn(8 * DAY)
        assert await pop(http, "busy") == ["b"]
        assert await pop(http, "quiet") == ["b"]
        await keeping.background.forget()
        assert await pop(http, "idle", autoAck=False) == ["b"]  # it goes on where it was
        clock.turn(DAY)
        await push(http, "c")
        clock.turn(8 * DAY)
        assert await pop(http, "busy") == ["c"]
        await forgetting.background.forget()
        assert await pop(http, "busy") == []
        assert sorted(await pop(http, "idle")) == ["a", "b", "c"]  # all that is stored, again
