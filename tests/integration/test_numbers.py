"""Messages of a partition are numbered 1, 2, 3 … whoever stores them: depth and lag are subtractions."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import asyncpg
import httpx
import pytest

from queenstream.broker.app import Broker
from tests.conftest import StartBroker

WRONG = """
    select p.name, count(*), count(distinct m.seq), min(m.seq), max(m.seq)
    from queen.messages m join queen.partitions p on p.id = m.partition_id
    group by p.name having count(*) <> count(distinct m.seq) or min(m.seq) <> 1 or max(m.seq) <> count(*)
"""
LATE = """
    select m.partition_id from (
        select partition_id, created_at,
            lag(created_at) over (partition by partition_id order by id) as before,
            seq, lag(seq) over (partition by partition_id order by id) as seq_before
        from queen.messages) m
    where m.created_at < m.before or m.seq < m.seq_before
"""


class Work:
    """What clients do at one broker, all at once."""

    def __init__(self, broker: Broker, http: httpx.AsyncClient, seed: int) -> None:
        self.broker = broker
        self.http = http
        self.random = random.Random(seed)
        self.stored = 0

    def item(self) -> dict[str, Any]:
        return {"queue": "q", "partition": f"p{self.random.randrange(6)}", "payload": 1}

    async def post(self, path: str, body: Any) -> Any:
        answer = await self.http.post(path, json=body)
        assert answer.status_code in (200, 201), answer.text
        return answer.json()

    async def push(self) -> None:
        items = [self.item() for _ in range(self.random.randrange(1, 4))]
        await self.post("/api/v1/push", {"items": items})
        self.stored += len(items)

    async def transaction(self) -> None:
        items = [self.item() for _ in range(2)]
        done = await self.post("/api/v1/transaction", {"operations": [{"type": "push", "items": items}]})
        assert done["success"], done
        self.stored += 2

    async def repeat(self) -> None:
        """A transaction id that is there already: nothing new is stored."""
        item = {**self.item(), "partition": "p0", "transactionId": "same"}
        results = await self.post("/api/v1/push", {"items": [item, self.item()]})
        self.stored += sum(result["status"] == "queued" for result in results)

    async def run(self, rounds: int) -> None:
        for _ in range(rounds):
            kind = self.random.choice([self.push] * 6 + [self.transaction, self.repeat])
            await kind()
            if self.random.random() < 0.02:
                self.broker.pusher._tails.forget()


@pytest.mark.parametrize("believing", [False, True])
async def test_numbers_have_no_gaps(start_broker: StartBroker, database_url: str, believing: bool) -> None:
    """Two brokers push into the same partitions; also when each believes that it is alone."""
    brokers = [await start_broker() for _ in range(2)]
    clients = [httpx.AsyncClient(base_url=broker.address, timeout=30) for broker in brokers]
    work = [Work(brokers[n % 2], clients[n % 2], n) for n in range(8)]

    async def believe() -> None:
        while True:
            for broker in brokers:
                broker.notices.alone = believing
            await asyncio.sleep(0.002)

    believer = asyncio.create_task(believe())
    await asyncio.gather(*(w.run(40) for w in work))
    believer.cancel()
    for client in clients:
        await client.aclose()
    connection = await asyncpg.connect(database_url)
    assert [tuple(row) for row in await connection.fetch(WRONG)] == []
    assert await connection.fetch(LATE) == []
    assert await connection.fetchval("select count(*) from queen.messages") == sum(w.stored for w in work)
    await connection.close()


async def test_numbers_go_on_after_others_stored_and_deleted(
    broker: Broker, http: httpx.AsyncClient, database_url: str
) -> None:
    """What a broker remembers does not outlive a replayed dead letter or a deleted message."""
    work = Work(broker, http, 1)
    broker.notices.alone = True
    body = {"queue": "q", "options": {"retryLimit": 0}}
    await work.post("/api/v1/configure", body)
    for number in range(3):
        item = {"queue": "q", "transactionId": f"t{number}", "payload": number}
        await work.post("/api/v1/push", {"items": [item]})
    popped = (await http.get("/api/v1/pop/queue/q")).json()["messages"][0]
    ack = {"transactionId": "t0", "partitionId": popped["partitionId"], "leaseId": popped["leaseId"]}
    await work.post("/api/v1/ack", {**ack, "status": "failed", "error": "no"})
    await work.post("/api/v1/push", {"items": [{"queue": "q", "payload": 3}]})
    path = f"/api/v1/messages/{popped['partitionId']}/t0/retry"
    assert (await http.post(path)).status_code == 200
    await work.post("/api/v1/push", {"items": [{"queue": "q", "transactionId": "last", "payload": 4}]})
    connection = await asyncpg.connect(database_url)
    seqs = "select array_agg(seq order by id) from queen.messages"
    assert await connection.fetchval(seqs) == [1, 2, 3, 4, 5, 6]
    assert (await http.delete(f"/api/v1/messages/{popped['partitionId']}/last")).status_code == 200
    await work.post("/api/v1/push", {"items": [{"queue": "q", "payload": 5}]})
    assert await connection.fetchval(seqs) == [1, 2, 3, 4, 5, 6]
    await connection.close()


async def test_the_last_numbers_are_not_read_again(
    broker: Broker, http: httpx.AsyncClient, database_url: str
) -> None:
    """What is remembered is used: the point of it."""
    broker.notices.alone = True
    connection = await asyncpg.connect(database_url)
    for number in range(3):
        await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": number}]})
    partition = await connection.fetchval("select partition_id from queen.messages limit 1")
    known, _ = broker.pusher._tails.take([partition])
    assert known == [3]
    assert await connection.fetchval("select pusher from queen.queues") == broker.pusher._tails.pusher
    await connection.close()
