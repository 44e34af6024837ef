"""Encrypted payloads belong to their messages: one that was moved in the database is an error, never read."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest

from queenstream.broker.app import Broker
from tests.acceptance.speaking import configure, push
from tests.conftest import Clock, StartBroker
from tests.integration.streams.streaming import MINUTE, Streams, data

KEY = "k1:" + base64.b64encode(bytes(range(32))).decode()


@pytest.fixture
async def broker(start_broker: StartBroker, clock: Clock) -> Broker:
    """A broker with a key, whose clock the test may turn."""
    return await start_broker(clock=clock, encryption_keys=KEY)


@pytest.fixture
async def db(database_url: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(database_url)
    yield connection
    await connection.close(timeout=5)


async def swap(db: Any, one: str, other: str) -> None:
    """Exchange the payloads of two messages, as somebody with access to the database may."""
    await db.execute(
        "update queen.messages m set payload = x.payload, key_id = x.key_id from queen.messages x "
        "where (m.transaction_id, x.transaction_id) in (($1, $2), ($2, $1))",
        one, other,
    )  # fmt: skip


async def pop(http: httpx.AsyncClient, **query: Any) -> list[Any]:
    answer = await http.get("/api/v1/pop/queue/q", params={"batch": 10, **query})
    assert answer.status_code in (200, 204), answer.text
    return answer.json()["messages"] if answer.status_code == 200 else []


async def letters(http: httpx.AsyncClient, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            answer = await http.get("/api/v1/dlq", params={"queue": "q"})
            assert answer.status_code == 200
            found = answer.json()["messages"]
    return found


@pytest.mark.parametrize("auto_ack", [False, True])
async def test_swapped_payloads_are_given_up_and_the_others_delivered(
    http: httpx.AsyncClient, db: Any, auto_ack: bool
) -> None:
    await configure(http, "q", encryptionEnabled=True, retryLimit=0)
    await push(http, "q", "salary of ann", "salary of bob", "fine", ids=["a", "b", "c"])
    await swap(db, "a", "b")
    shown = (await http.get("/api/v1/messages", params={"queue": "q"})).json()["messages"]
    assert {m["transactionId"]: m["data"] for m in shown} == {"a": None, "b": None, "c": "fine"}
    assert {m["transactionId"] for m in shown if m.get("encrypted")} == {"a", "b"}
    found = await http.get("/api/v1/queues/q/search", params={"contains": "salary"})
    assert found.json()["messages"] == []

    popped = await pop(http, autoAck=auto_ack)
    assert [(m["transactionId"], m["data"]) for m in popped] == [("c", "fine")]
    dead = await letters(http, 2)
    assert {letter["transactionId"]: letter["data"] for letter in dead} == {"a": None, "b": None}
    assert all("is another message's" in letter["errorMessage"] for letter in dead)
    if not auto_ack:
        body = {
            "transactionId": "c",
            "partitionId": popped[0]["partitionId"],
            "leaseId": popped[0]["leaseId"],
        }
        assert (await http.post("/api/v1/ack", json=body)).json()[0]["success"]
    await push(http, "q", "next", ids=["d"])
    assert [m["data"] for m in await pop(http)] == ["next"]

    await db.execute(  # somebody has restored them: a replay delivers
        "update queen.dead_letters d set payload = x.payload from queen.dead_letters x "
        "where (d.transaction_id, x.transaction_id) in (('a', 'b'), ('b', 'a'))"
    )
    answer = await http.post("/api/v1/dlq/retry", json={"queue": "q"})
    assert answer.status_code == 200, answer.text
    await http.post("/api/v1/consumer-groups/__QUEUE_MODE__/queues/q/seek", json={"toEnd": False})
    readable = (await http.get("/api/v1/messages", params={"queue": "q"})).json()["messages"]
    assert {"salary of ann", "salary of bob"} <= {m["data"] for m in readable}


async def test_a_payload_under_a_key_that_was_exchanged_waits_for_the_right_one(
    http: httpx.AsyncClient, start_broker: StartBroker
) -> None:
    """A mistake in the settings must not give up a whole queue."""
    await configure(http, "q", encryptionEnabled=True)
    await push(http, "q", 1, 2)
    wrong = await start_broker(encryption_keys="k1:" + base64.b64encode(bytes(32)).decode())
    async with httpx.AsyncClient(base_url=wrong.address) as other:
        answer = await other.get("/api/v1/pop/queue/q")
        assert answer.status_code == 503
        assert "another key" in answer.json()["error"]
        assert (await other.get("/api/v1/dlq")).json()["messages"] == []
    async with asyncio.timeout(10):
        while not (popped := await pop(http)):  # the lease is being given back
            pass
    assert [m["data"] for m in popped] == [1, 2]


async def test_a_window_with_a_swapped_payload_goes_to_the_dead_letters(streams: Streams, db: Any) -> None:
    await configure(streams.http, "q", encryptionEnabled=True)
    await streams.define()
    streams.align()
    await push(streams.http, "q", "x", "y", ids=["a", "b"])
    await swap(db, "a", "b")
    streams.clock.turn(2 * MINUTE)
    await push(streams.http, "q", "z", ids=["c"])
    streams.clock.turn(2 * MINUTE)
    poll = {"streamName": "s", "consumerGroup": "g", "timeout": 10_000}
    answer = await streams.http.post("/api/v1/stream/poll", json=poll)
    assert answer.status_code == 503
    assert "is another message's" in answer.json()["error"]
    window = await streams.take()
    assert data(window) == ["z"]


async def test_what_runs_tell_of_themselves_is_sealed(
    http: httpx.AsyncClient, start_broker: StartBroker, db: Any
) -> None:
    """Samples and errors may quote records of an encrypted queue."""
    report = {"engine": "local", "instance": "i", "state": "running", "stats": {}}
    path = "/api/v1/pipelines/p"
    assert (await http.post(f"{path}/report", json=report)).status_code == 200
    await http.get(f"{path}/inside")
    told = {"inside": {"samples": {"parse": ['{"card":4711}']}}, "error": "step parse failed on 4711"}
    assert (await http.post(f"{path}/report", json=report | told | {"state": "failed"})).status_code == 200
    inside = (await http.get(f"{path}/inside")).json()["inside"]
    assert inside["samples"] == {"parse": ['{"card":4711}']}
    assert (await http.get(path)).json()["error"] == "step parse failed on 4711"
    assert (await http.get("/api/v1/pipelines")).json()["pipelines"][0][
        "error"
    ] == "step parse failed on 4711"
    for stored in (
        await db.fetchval("select inside from queen.pipeline_inside"),
        (await db.fetchval("select error from queen.pipeline_runs")).encode(),
    ):
        assert b"4711" not in stored
    keyless = await start_broker()
    async with httpx.AsyncClient(base_url=keyless.address) as other:
        inside = (await other.get(f"{path}/inside")).json()["inside"]
        assert inside["samples"] == {}
        assert "QUEEN_ENCRYPTION_KEYS" in inside["error"]
        assert "QUEEN_ENCRYPTION_KEYS" in (await other.get(path)).json()["error"]
