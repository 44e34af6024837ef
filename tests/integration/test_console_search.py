"""The search for messages, and one message as the console shows it; on a real broker."""

from __future__ import annotations

import base64
from typing import Any

import httpx
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.ops import search as searching
from tests.conftest import Clock, StartBroker
from tests.integration.test_console_api import get, pop, post, push

pytestmark = pytest.mark.timeout(60)

PATH = "/api/v1/queues/orders/search"


async def search(http: httpx.AsyncClient, **query: Any) -> list[Any]:
    """The payloads that are found."""
    found = await get(http, PATH, **query)
    return [message["data"] for message in found["messages"]]


async def test_by_partition_time_and_page(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "orders", "ann", *range(5))
    clock.turn(60)
    middle = clock().isoformat()
    clock.turn(60)
    await push(http, "orders", "anton", *range(5, 8))
    await push(http, "orders", "bob", 8, 9)
    assert await search(http) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]
    assert await search(http, partition="ann") == [4, 3, 2, 1, 0]
    assert await search(http, prefix="an", limit=4) == [7, 6, 5, 4]
    assert await search(http, **{"from": middle}) == [9, 8, 7, 6, 5]
    assert await search(http, to=middle) == [4, 3, 2, 1, 0]
    pages, before = [], None
    while True:
        page = await get(http, PATH, limit=3, **({"before": before} if before else {}))
        pages.append([message["data"] for message in page["messages"]])
        before = page["next"]
        if before is None:
            break
    assert [each for page in pages for each in page] == list(range(9, -1, -1))
    assert (await http.get("/api/v1/queues/nothing/search")).status_code == 404


async def test_by_a_field_of_the_payload(http: httpx.AsyncClient) -> None:
    payloads: list[Any] = [
        {"user": {"id": 7}, "n": 0},
        {"user": {"id": "7"}, "n": 1},
        {"user": {"id": 7.0}, "n": 2},
        {"user": {"id": True}, "n": 3},
        {"user": {"id": 1}, "n": 4},
        {"user": {"id": None}, "n": 5},
        {"user": "ann \\u0000 \u0000", "n": 6},
        "text",
        {"tags": ["new", "Zoë"], "n": 8},
    ]
    await push(http, "orders", "p", *payloads)

    async def numbers(**query: Any) -> list[int]:
        return [found["n"] for found in await search(http, **query)]

    assert await numbers(path="data.user.id", value="7") == [2, 1, 0]
    assert await numbers(path="user.id", value='"7"') == [1]
    assert await numbers(path="payload.user.id", value="true") == [3]
    assert await numbers(path="user.id", value="1") == [4]
    assert await numbers(path="user.id") == [4, 3, 2, 1, 0]
    assert await numbers(path="tags.1", value="Zoë") == [8]
    assert await numbers(contains="Zo") == [8]
    assert await numbers(path="user.id", value="7", contains='"n":1') == [1]
    assert await search(http, path="data", value="text") == ["text"]
    assert (await http.get(PATH, params={"value": "7"})).status_code == 400
    assert (await http.get(PATH, params={"path": "a..b", "value": "7"})).status_code == 400


async def test_by_transaction(http: httpx.AsyncClient) -> None:
    for partition in ("a", "b"):
        items = [{"queue": "orders", "partition": partition, "payload": 1, "transactionId": "t-1"}]
        await post(http, "/api/v1/push", items=items)
    await push(http, "orders", "a", 2)
    found = await get(http, PATH, transactionId="t-1")
    assert [(m["partition"], m["transactionId"]) for m in found["messages"]] == [("b", "t-1"), ("a", "t-1")]
    assert len((await get(http, PATH, transactionId="t-1", partition="a"))["messages"]) == 1
    assert (await get(http, PATH, transactionId="t-2"))["messages"] == []
    assert (await http.get(PATH, params={"transactionId": "t", "path": "x"})).status_code == 400


async def test_it_says_that_it_stopped_early(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(http, "orders", "p", *({"n": n} for n in range(30)))
    monkeypatch.setattr(searching, "MOST_ROWS", 20)
    monkeypatch.setattr(searching, "STEP_ROWS", 8)
    found = await get(http, PATH, path="n", value="3")
    assert (found["messages"], found["scanned"], found["stopped"]) == ([], 20, "rows")
    rest = await get(http, PATH, path="n", value="3", before=found["next"])
    assert [m["data"] for m in rest["messages"]] == [{"n": 3}]
    assert (rest["stopped"], rest["next"]) == (None, None)

    monkeypatch.setattr(searching, "MOST_SECONDS", 0.0)
    none = await get(http, PATH, path="n", value="3")
    assert (none["messages"], none["stopped"], none["next"]) == ([], "time", None)


async def test_large_payloads_are_read_and_not_sent(
    http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(searching, "STEP_BYTES", 100_000)
    await push(http, "orders", "p", *({"n": n, "x": "y" * 90_000} for n in range(4)))
    found = await get(http, PATH, path="n", value="1")
    [message] = found["messages"]
    assert (message["data"], message["leftOut"]) == (None, True)
    assert message["size"] > 90_000
    assert found["scanned"] == 4


async def test_encrypted_payloads_are_searched_where_there_is_a_key(start_broker: StartBroker) -> None:
    key = "k:" + base64.b64encode(b"0" * 32).decode()
    broker, keyless = await start_broker(encryption_keys=key), await start_broker()
    async with httpx.AsyncClient(base_url=broker.address) as http:
        await post(http, "/api/v1/configure", queue="orders", options={"encryptionEnabled": True})
        await push(http, "orders", "p", {"n": 1}, {"n": 2})
        assert await search(http, path="n", value="2") == [{"n": 2}]
    async with httpx.AsyncClient(base_url=keyless.address) as http:
        assert await search(http, path="n", value="2") == []
        everything = await get(http, PATH)
        assert [(m["data"], m["encrypted"]) for m in everything["messages"]] == [(None, True)] * 2


async def test_searches_wait_for_their_turn(
    http: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await push(http, "orders", "p", 1)
    monkeypatch.setattr(searching, "MOST_SECONDS", 0.05)
    for _ in range(searching.MOST_SEARCHES):
        await broker.searches._turns.acquire()
    refused = await http.get(PATH)
    assert refused.status_code == 503
    assert "too many searches" in refused.json()["error"]
    broker.searches._turns.release()
    monkeypatch.undo()
    assert await search(http) == [1]


async def test_one_message_and_where_each_group_is(http: httpx.AsyncClient) -> None:
    stored = await push(http, "orders", "p", *range(5))
    await pop(http, "orders", "fast", batch=5, autoAck=True)
    await pop(http, "orders", "slow", batch=1, autoAck=True)
    third = stored[3]
    shown = await get(http, f"/api/v1/messages/{third['partition_id']}/{third['transaction_id']}")
    groups = {group["consumerGroup"]: (group["state"], group["ahead"]) for group in shown["groups"]}
    assert groups == {"fast": ("completed", None), "slow": ("pending", 2)}
