"""The promises of the broker, one test each, on a real PostgreSQL."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import msgspec
import pytest

from queenstream import config, postgres
from queenstream.broker.app import Broker
from queenstream.broker.schemas.messages import PushItem
from tests.conftest import Clock, StartBroker


def items(queue: str, *transactions: str, partition: str = "Default") -> list[dict[str, Any]]:
    return [
        {"queue": queue, "partition": partition, "transactionId": name, "payload": {"name": name}}
        for name in transactions
    ]


async def push(http: httpx.AsyncClient, *sent: dict[str, Any]) -> list[dict[str, Any]]:
    answer = await http.post("/api/v1/push", json={"items": sent})
    assert answer.status_code == 201, answer.text
    results: list[dict[str, Any]] = answer.json()
    return results


async def pop(http: httpx.AsyncClient, queue: str, partition: str = "", **query: Any) -> dict[str, Any]:
    """What a pop gave; ``messages`` is empty when there was nothing."""
    path = f"/api/v1/pop/queue/{queue}" + (f"/partition/{partition}" if partition else "")
    answer = await http.get(path, params=query)
    assert answer.status_code in (200, 204), answer.text
    popped: dict[str, Any] = {"messages": []} if answer.status_code == 204 else answer.json()
    return popped


def names(popped: dict[str, Any]) -> list[str]:
    return [message["transactionId"] for message in popped["messages"]]


def acks_of(popped: dict[str, Any], status: str = "completed") -> list[dict[str, Any]]:
    return [
        {
            "transactionId": message["transactionId"],
            "partitionId": message["partitionId"],
            "leaseId": message["leaseId"],
            "consumerGroup": message["consumerGroup"],
            "status": status,
        }
        for message in popped["messages"]
    ]


async def ack(http: httpx.AsyncClient, acks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    answer = await http.post("/api/v1/ack/batch", json={"acknowledgments": acks})
    assert answer.status_code == 200, answer.text
    results: list[dict[str, Any]] = answer.json()
    return results


async def complete(http: httpx.AsyncClient, popped: dict[str, Any]) -> None:
    assert all(result["success"] for result in await ack(http, acks_of(popped)))


async def subscribe(http: httpx.AsyncClient, queue: str) -> None:
    """The group comes into being, which does wait for open pushes; its pops from then on do not."""
    await pop(http, queue, "no such partition")


class OpenPush:
    """A push in a transaction of its own that is not committed yet."""

    def __init__(self, broker: Broker, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        self.broker = broker
        self.connection = connection
        self.transaction = connection.transaction()
        self.around = contextlib.AsyncExitStack()

    async def store(self, queue: str, name: str, partition: str = "Default") -> int:
        """Store one message; its id."""
        sent = [PushItem(queue, msgspec.Raw(b"{}"), partition, name)]
        rows = await self.broker.pusher.prepare(sent, None)
        await self.around.enter_async_context(self.broker.pusher.apart(rows))
        await self.transaction.start()
        results = await self.broker.pusher.store([rows], self.connection.fetch)
        return int(results[0][0].message_id)

    async def commit(self) -> None:
        await self.transaction.commit()
        await self.around.aclose()


@pytest.fixture
async def two_pushes(broker: Broker, database_url: str) -> AsyncIterator[tuple[OpenPush, OpenPush]]:
    connections = [await asyncpg.connect(database_url) for _ in range(2)]
    yield OpenPush(broker, connections[0]), OpenPush(broker, connections[1])
    for connection in connections:
        connection.terminate()


# Order


async def test_order_of_ids_is_order_of_commits(
    http: httpx.AsyncClient, two_pushes: tuple[OpenPush, OpenPush]
) -> None:
    """Who draws an id first commits first: the second push waits, and a pop meanwhile sees neither."""
    slow, fast = two_pushes
    await push(http, *items("q", "before"))
    await complete(http, await pop(http, "q"))
    first = await slow.store("q", "first")
    second = asyncio.create_task(fast.store("q", "second"))
    _, waiting = await asyncio.wait([second], timeout=0.3)
    assert waiting, "a push to the partition must wait for the one that is open"
    assert names(await pop(http, "q")) == []
    await slow.commit()
    assert await second > first
    assert names(await pop(http, "q", batch=10)) == ["first"]
    await fast.commit()
    later = await pop(http, "q", batch=10, consumerGroup="later")
    assert names(later) == ["before", "first", "second"]


async def test_other_partitions_do_not_wait_for_an_open_push(
    http: httpx.AsyncClient, two_pushes: tuple[OpenPush, OpenPush]
) -> None:
    slow, fast = two_pushes
    await push(http, *items("q", "x", partition="a"), *items("q", "y", partition="b"))
    await slow.store("q", "slow", "a")
    async with asyncio.timeout(1):
        await fast.store("q", "fast", "b")
        await fast.commit()
    await slow.commit()


async def test_pops_and_acks_never_wait_for_an_open_push(
    http: httpx.AsyncClient, two_pushes: tuple[OpenPush, OpenPush]
) -> None:
    """The drained race: all is popped and done while a push is open, and its message is not lost."""
    slow, _ = two_pushes
    await push(http, *items("q", "1", "2", partition="a"), *items("q", "1", partition="b"))
    await subscribe(http, "q")
    await slow.store("q", "3", "a")
    async with asyncio.timeout(1):
        for partition, expected in (("a", ["1", "2"]), ("b", ["1"])):
            popped = await pop(http, "q", partition, batch=10)
            assert names(popped) == expected
            await complete(http, popped)
        assert names(await pop(http, "q", batch=10)) == []
        assert names(await pop(http, "q", "a", batch=10)) == []
        assert names(await pop(http, "q", batch=10, partitions=5, autoAck=True)) == []
    await slow.commit()
    assert names(await pop(http, "q", batch=10, wait=True, timeout=2000)) == ["3"]


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_a_waiting_pop_gets_what_was_open_when_it_came(
    http: httpx.AsyncClient, two_pushes: tuple[OpenPush, OpenPush], auto_ack: bool
) -> None:
    """Nobody says a word when the push commits: the cursor itself must remember to look again."""
    slow, _ = two_pushes
    await push(http, *items("q", "1"))
    await subscribe(http, "q")
    await slow.store("q", "2")
    assert names(await pop(http, "q", batch=10, autoAck=True)) == ["1"]
    waiting = asyncio.create_task(pop(http, "q", batch=10, wait=True, timeout=5000, autoAck=auto_ack))
    await asyncio.sleep(0.1)
    assert not waiting.done()
    await slow.commit()
    async with asyncio.timeout(1):
        assert names(await waiting) == ["2"]


async def test_created_at_never_runs_backwards(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, *items("q", "1"))
    clock.turn(-600)
    await push(http, *items("q", "2", "3"))
    clock.turn(30)
    await push(http, *items("q", "4"), *items("q", "other", partition="p"))
    popped = await pop(http, "q", "Default", batch=10)
    times = [message["createdAt"] for message in popped["messages"]]
    assert names(popped) == ["1", "2", "3", "4"]
    assert times == sorted(times)
    other = await pop(http, "q", "p")
    assert other["messages"][0]["createdAt"] < times[0], "another partition has its own time"


async def test_a_group_that_wants_only_new_messages_gets_the_first_ever(
    broker: Broker, http: httpx.AsyncClient
) -> None:
    """On a database that has never stored anything."""
    await http.post("/api/v1/configure", json={"queue": "q"})
    assert names(await pop(http, "q", subscriptionMode="new")) == []
    await push(http, *items("q", "1"))
    assert names(await pop(http, "q", subscriptionMode="new")) == ["1"]


# Acks


async def cursor(url: str) -> list[tuple[Any, ...]]:
    """All that is known of places and leases, and of single messages."""
    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch("select * from queen.cursors order by partition_id, group_id")
        more = await connection.fetch(
            "select * from queen.deliveries order by partition_id, group_id, message_id"
        )
        letters = await connection.fetch("select * from queen.dead_letters order by id")
    finally:
        await connection.close()
    return [tuple(row) for row in (*rows, *more, *letters)]


async def test_an_ack_out_of_order_never_moves_a_cursor_back(
    http: httpx.AsyncClient, database_url: str
) -> None:
    await push(http, *items("q", *"12345"))
    popped = await pop(http, "q", batch=5)
    acks = acks_of(popped)
    await ack(http, acks[:3])
    connection = await asyncpg.connect(database_url)
    place = await connection.fetchval("select acked_id from queen.cursors")
    for again in (acks[0], acks[4], acks[1], acks[2]):
        assert (await ack(http, [again]))[0]["success"]
        now = await connection.fetchval("select acked_id from queen.cursors")
        assert now == place
    await ack(http, [acks[3]])
    assert await connection.fetchval("select acked_id from queen.cursors") > place
    await connection.close()
    assert names(await pop(http, "q", batch=5)) == []


async def test_a_stale_lease_changes_nothing(
    http: httpx.AsyncClient, clock: Clock, database_url: str
) -> None:
    await http.post("/api/v1/configure", json={"queue": "q", "options": {"leaseTime": 10, "ttl": 0}})
    await push(http, *items("q", *"123"))
    old = await pop(http, "q", batch=3)
    clock.turn(11)
    new = await pop(http, "q", batch=3)
    assert names(new) == ["1", "2", "3"]
    before = await cursor(database_url)
    for status in ("completed", "failed", "dlq", "retry"):
        for result in await ack(http, acks_of(old, status)):
            assert not result["success"]
            assert "pop again" in result["error"]
    extended = await http.post(f"/api/v1/lease/{old['leaseId']}/extend", json={"seconds": 1000})
    assert not extended.json()[0]["success"]
    assert await cursor(database_url) == before
    await complete(http, new)


async def test_the_same_ack_may_come_twice_in_one_request(http: httpx.AsyncClient, database_url: str) -> None:
    """A client that lost an answer and says it again: once counts."""
    options = {"retryLimit": 2, "retryDelay": 0, "ttl": 0}
    await http.post("/api/v1/configure", json={"queue": "q", "options": options})
    await push(http, *items("q", *"1234"))
    acks = acks_of(await pop(http, "q", batch=4))
    ahead = [acks[1], acks[1], {**acks[2], "status": "dlq"}, {**acks[2], "status": "dlq"}]
    for results in (await ack(http, ahead), await ack(http, ahead)):
        assert [(r["success"], r["dlq"]) for r in results] == [(True, False)] * 2 + [(True, True)] * 2
    contradicted = await ack(http, [{**acks[1], "status": "failed"}, {**acks[2], "status": "failed"}])
    assert [r["success"] for r in contradicted] == [False, False]
    failed = {**acks[0], "status": "failed"}
    assert [r["redelivered"] for r in await ack(http, [failed, failed, acks[0]])] == [True, True, True]
    popped = await pop(http, "q", batch=4)
    assert [(m["transactionId"], m["retryCount"]) for m in popped["messages"]] == [
        ("1", 1),
        ("2", 0),
        ("4", 0),
    ]
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("select count(*) from queen.dead_letters") == 1
    await connection.close()


async def test_two_pops_of_one_partition_at_once_are_both_served(http: httpx.AsyncClient) -> None:
    await push(http, *items("q", *"1234"))
    both = await asyncio.gather(*[pop(http, "q", "Default", batch=2, autoAck=True) for _ in range(2)])
    assert sorted(names(popped) for popped in both) == [["1", "2"], ["3", "4"]]


# What was answered stays


async def test_a_repeated_push_is_stored_once(http: httpx.AsyncClient) -> None:
    first = await push(http, *items("q", "1", "2"))
    again, *others = await asyncio.gather(*[push(http, *items("q", "1", "2", "3")) for _ in range(8)])
    assert [r["status"] for r in first] == ["queued", "queued"]
    assert [r["message_id"] for r in again[:2]] == [r["message_id"] for r in first]
    statuses = [answer[2]["status"] for answer in (again, *others)]
    assert sorted(statuses) == ["duplicate"] * 7 + ["queued"]
    assert len({answer[2]["message_id"] for answer in (again, *others)}) == 1
    assert names(await pop(http, "q", batch=10)) == ["1", "2", "3"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that the server's account can enter."""
    base = Path(tempfile.mkdtemp(prefix="queenstream-kill-"))
    base.chmod(0o711)
    yield base / "data"
    shutil.rmtree(base, ignore_errors=True)


@pytest.mark.slow
async def test_answered_pushes_survive_kill_9_of_postgresql(folder: Path) -> None:
    """And the broker finds the database again by itself; meanwhile it says 503 and when to come back."""
    server = await asyncio.to_thread(postgres.start, folder)
    broker = Broker(config.load({"port": 0, "drain_timeout": "1s"}, {}, None), server.url)
    await broker.start()
    answered: dict[str, list[str]] = defaultdict(list)
    killed = asyncio.Event()

    async def keep_pushing(http: httpx.AsyncClient, partition: str) -> None:
        for number in range(100_000):
            sent = items("q", f"{number}", partition=partition)
            answer = await http.post("/api/v1/push", json={"items": sent})
            if answer.status_code != 201:
                assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), answer.text
                assert killed.is_set()
                return
            answered[partition].append(f"{number}")

    try:
        async with httpx.AsyncClient(base_url=broker.address, timeout=60) as http:
            async with asyncio.TaskGroup() as tasks:
                for partition in "abcd":
                    tasks.create_task(keep_pushing(http, partition))
                await asyncio.sleep(0.7)
                killed.set()
                os.kill(server.pid, signal.SIGKILL)
            for path in ("/api/v1/pop/queue/q", "/api/v1/pop/queue/q?wait=true&timeout=20000"):
                away = await http.get(path)
                assert (away.status_code, away.headers["retry-after"]) == (503, "1"), away.text
            assert sum(map(len, answered.values())) > 20
            server = await asyncio.to_thread(postgres.start, folder)
            await until_served(http)
            for partition, expected in answered.items():
                popped = names(await pop(http, "q", partition, batch=10_000))
                assert popped[: len(expected)] == expected
                assert len(popped) <= len(expected) + 1, "only the one without an answer may be more"
    finally:
        await broker.stop()
        await asyncio.to_thread(server.stop)


async def until_served(http: httpx.AsyncClient) -> None:
    async with asyncio.timeout(15):
        while True:
            answer = await http.post("/api/v1/push", json={"items": items("other", "1")})
            if answer.status_code == 201:
                return
            assert answer.status_code == 503
            await asyncio.sleep(0.05)


# Many at once


class Consumers:
    """Consumers of one group that fail now and then; what each partition completed, in its order."""

    def __init__(self, http: httpx.AsyncClient, group: str, seed: int) -> None:
        self.http = http
        self.group = group
        self.random = random.Random(seed)
        self.completed: dict[str, list[str]] = defaultdict(list)
        self.held: set[str] = set()

    @property
    def count(self) -> int:
        return sum(map(len, self.completed.values()))

    async def consume(self, total: int) -> None:
        while self.count < total:
            batch, partitions = self.random.randint(1, 20), self.random.randint(1, 3)
            popped = await pop(
                self.http, "busy", batch=batch, partitions=partitions, wait=True, timeout=300,
                consumerGroup=self.group,
            )  # fmt: skip
            lanes = {message["partition"] for message in popped["messages"]}
            assert not lanes & self.held, "a partition is leased to one consumer at a time"
            self.held |= lanes
            acks = acks_of(popped)
            for each in acks:
                if self.random.random() < 0.05:
                    each["status"] = self.random.choice(["failed", "retry"])
            self.random.shuffle(acks)
            self.note(popped, acks)
            self.held -= lanes  # before the answer: who is freed may be taken before we read it
            if acks:
                assert all(result["success"] for result in await ack(self.http, acks))

    def note(self, popped: dict[str, Any], acks: list[dict[str, Any]]) -> None:
        """What these acks complete: each partition up to its first message that did not go well."""
        status = {(a["partitionId"], a["transactionId"]): a["status"] for a in acks}
        stopped: set[str] = set()
        for message in popped["messages"]:
            if status[message["partitionId"], message["transactionId"]] != "completed":
                stopped.add(message["partition"])
            if message["partition"] not in stopped:
                self.completed[message["partition"]].append(message["transactionId"])


@pytest.mark.slow
async def test_many_pushers_and_consumers_at_once(http: httpx.AsyncClient) -> None:
    """20 pushers, 5 partitions, 2 groups of 4 consumers: nothing lost, nothing out of order."""
    options = {"retryLimit": 1000, "retryDelay": 5, "ttl": 0}
    await http.post("/api/v1/configure", json={"queue": "busy", "options": options})
    pushed: dict[str, list[tuple[int, str]]] = defaultdict(list)
    rounds, lanes = 15, [f"lane{n}" for n in range(5)]

    async def keep_pushing(pusher: int) -> None:
        rng = random.Random(pusher)
        for number in range(rounds):
            sent = [
                item
                for lane in rng.sample(lanes, 2)
                for item in items("busy", f"{pusher}-{number}-x", f"{pusher}-{number}-y", partition=lane)
            ]
            for item, result in zip(sent, await push(http, *sent), strict=True):
                assert result["status"] == "queued"
                pushed[item["partition"]].append((int(result["message_id"]), item["transactionId"]))

    total = 20 * rounds * 4
    groups = [Consumers(http, "first", 1), Consumers(http, "second", 2)]
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        for pusher in range(20):
            tasks.create_task(keep_pushing(pusher))
        for group in groups:
            for _ in range(4):
                tasks.create_task(group.consume(total))
    for group in groups:
        assert set(group.completed) == set(lanes)
        for lane, stored in pushed.items():
            assert group.completed[lane] == [name for _, name in sorted(stored)]


async def test_acks_of_many_partitions_in_opposite_orders(http: httpx.AsyncClient) -> None:
    """Deadlocks are the broker's own business: no client hears of one."""
    lanes = [f"p{n}" for n in range(30)]
    await push(http, *[item for lane in lanes for item in items("q", "1", "2", partition=lane)])
    acks: list[list[dict[str, Any]]] = []
    for group in ("g1", "g2", "g3"):
        popped = await pop(http, "q", batch=60, partitions=30, consumerGroup=group)
        assert len(popped["messages"]) == 60
        acks.append(acks_of(popped))
    requests = []
    for each in acks:
        requests += [ack(http, each[::2]), ack(http, each[::-2]), ack(http, each[1::4])]
    for results in await asyncio.gather(*requests):
        assert all(result["success"] for result in results)
    for group in ("g1", "g2", "g3"):
        assert names(await pop(http, "q", consumerGroup=group)) == []


async def test_transactions_in_opposite_orders(start_broker: StartBroker, clock: Clock) -> None:
    """Each pushes to the partition that the other acknowledges, on two brokers."""
    brokers = [await start_broker(clock=clock) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        https = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=b.address, timeout=60))
            for b in brokers
        ]
        pairs = [(f"a{n}", f"b{n}") for n in range(4)]
        for a, b in pairs:
            await push(https[0], *items("q", "1", partition=a), *items("q", "1", partition=b))
        leased = {lane: await pop(https[0], "q", lane) for pair in pairs for lane in pair}

        async def transact(http: httpx.AsyncClient, to: str, done: str) -> None:
            operations = [
                {"type": "push", "items": items("q", f"from {done}", partition=to)},
                {"type": "ack", **acks_of(leased[done])[0]},
            ]
            answer = await http.post("/api/v1/transaction", json={"operations": operations})
            assert answer.status_code == 200, answer.text
            assert answer.json()["success"], answer.text

        started = time.monotonic()
        await asyncio.gather(
            *[transact(https[0], a, b) for a, b in pairs], *[transact(https[1], b, a) for a, b in pairs]
        )
        assert time.monotonic() - started < 10
        for a, b in pairs:
            assert names(await pop(https[1], "q", a)) == [f"from {b}"]
            assert names(await pop(https[1], "q", b)) == [f"from {a}"]


async def test_a_deadlock_is_tried_again(broker: Broker, http: httpx.AsyncClient, database_url: str) -> None:
    """One made for sure: somebody holds the second partition and wants the first."""
    await push(http, *items("q", "1", partition="a"), *items("q", "1", partition="b"))
    popped = await pop(http, "q", batch=2, partitions=2)
    first, second = sorted(int(m["partitionId"]) for m in popped["messages"])
    connection = await asyncpg.connect(database_url)
    lock = "select 1 from queen.cursors where partition_id = $1 for update"
    try:
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute("set local deadlock_timeout = '10s'")  # the broker's side is the victim
        await connection.fetch(lock, second)
        acking = asyncio.create_task(ack(http, acks_of(popped)))
        await asyncio.sleep(0.2)
        await connection.fetch(lock, first)
        await transaction.commit()
        assert all(result["success"] for result in await acking)
    finally:
        connection.terminate()
    assert names(await pop(http, "q")) == []
