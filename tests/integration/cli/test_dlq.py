"""``queen dlq``."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.integration.cli.running import Queen


@pytest.fixture
async def letters(http: httpx.AsyncClient) -> None:
    """Five dead letters of two queues, each with an error of its own."""
    for queue, amounts in (("orders", [10, 20, 30, 40]), ("jobs", [99])):
        items = [{"queue": queue, "payload": {"amount": amount}} for amount in amounts]
        await http.post("/api/v1/push", json={"items": items})
        popped = await http.get(f"/api/v1/pop/queue/{queue}", params={"batch": 10, "consumerGroup": "g"})
        for message in popped.json()["messages"]:
            amount = message["data"]["amount"]
            ack = {
                "transactionId": message["transactionId"],
                "partitionId": message["partitionId"],
                "leaseId": message["leaseId"],
                "consumerGroup": "g",
                "status": "dlq",
                "error": "timeout" if amount % 20 else "bad amount",
            }
            assert (await http.post("/api/v1/ack", json=ack)).json()[0]["success"]


def amounts(rows: list[Any]) -> list[int]:
    return [row["data"]["amount"] for row in rows]


@pytest.mark.usefixtures("letters")
async def test_list_and_show(queen: Queen) -> None:
    assert amounts(await queen.rows("dlq", "ls", "--queue", "orders")) == [40, 30, 20, 10]
    assert amounts(await queen.rows("dlq", "ls")) == [99, 40, 30, 20, 10]
    assert amounts(await queen.rows("dlq", "ls", "-n", "2")) == [99, 40]
    assert await queen.rows("dlq", "ls", "--group", "other") == []
    assert len(await queen.rows("dlq", "ls", "--from", "1 hour ago")) == 5
    assert await queen.rows("dlq", "ls", "--from", "end") == []
    some = await queen.rows("dlq", "ls", "--matching", "errorMessage like '%time%' and data.amount < 50")
    assert amounts(some) == [30, 10]
    letter = (await queen("dlq", "show", some[0]["id"])).row
    assert (letter["data"], letter["cause"], letter["errorMessage"]) == (
        {"amount": 30},
        "rejected",
        "timeout",
    )
    (await queen("dlq", "show", "999999")).failed(5, "there is no dead letter 999999")
    async with queen.terminal("dlq", "ls", "--queue", "jobs") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines[0].split() == [
        "ID",
        "FAILED",
        "QUEUE",
        "PARTITION",
        "GROUP",
        "RETRIES",
        "ERROR",
        "DATA",
    ]
    assert terminal.lines[1].endswith('timeout  {"amount":99}')


@pytest.mark.usefixtures("letters")
async def test_retry_what_matches(queen: Queen) -> None:
    retry = ("dlq", "retry", "--queue", "orders", "--matching", "errorMessage = 'timeout'")
    assert amounts(await queen.rows(*retry, "--dry-run")) == [10, 30]
    assert len(await queen.rows("dlq", "ls")) == 5
    done = (await queen(*retry)).row
    assert (done["retried"], len(done["messages"])) == (2, 2)
    assert amounts(await queen.rows("dlq", "ls", "--queue", "orders")) == [40, 20]
    again = await queen.rows("pop", "orders", "-n", "10", "--group", "g")
    assert amounts(again) == [10, 30]
    assert (await queen(*retry)).row["retried"] == 0


@pytest.mark.usefixtures("letters")
async def test_retry_by_id_with_other_data(queen: Queen) -> None:
    first, second, *_ = await queen.rows("dlq", "ls", "--queue", "orders")
    edited = (await queen("dlq", "retry", first["id"], "--payload", '{"amount": 41}')).row
    assert edited["retried"] == 1
    assert amounts(await queen.rows("pop", "orders", "--group", "g")) == [41]
    (await queen("dlq", "retry", first["id"])).failed(5, "no dead letter")
    (await queen("dlq", "retry", second["id"], "--payload", "{oops")).failed(2, "--payload is not JSON")
    (await queen("dlq", "retry", "1", "2", "--payload", "1")).failed(2, "give one id")
    async with queen.terminal("dlq", "retry", "--queue", "orders", "--all") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines == ["replayed 3 dead letters"]


@pytest.mark.usefixtures("letters")
async def test_delete(queen: Queen) -> None:
    delete = ("dlq", "delete", "--queue", "orders")
    assert amounts(await queen.rows(*delete, "--matching", "data.amount > 20", "--dry-run")) == [30, 40]
    (await queen(*delete, "--all")).failed(2, "Delete 4 dead letters?", "--yes")
    assert (await queen(*delete, "--matching", "data.amount > 20", "--yes")).row == {"deleted": 2}
    [letter] = await queen.rows("dlq", "ls", "--queue", "jobs")
    assert (await queen("dlq", "delete", letter["id"], "--yes")).row == {"deleted": 1}
    assert amounts(await queen.rows("dlq", "ls")) == [20, 10]
    async with queen.terminal(*delete, "--all") as terminal:
        await terminal.until("Delete 2 dead letters? [y/N]: ")
        terminal.type("y\n")
        assert await terminal.ended() == 0
    assert await queen.rows("dlq", "ls") == []


async def test_what_is_meant_must_be_said(queen: Queen) -> None:
    for command in ("retry", "delete"):
        (await queen("dlq", command)).failed(2, "say which")
        (await queen("dlq", command, "--queue", "orders")).failed(2, "--matching EXPRESSION, or --all")
        (await queen("dlq", command, "--queue", "q", "--all", "--matching", "true")).failed(2, "--all")
        (await queen("dlq", command, "17", "--queue", "orders")).failed(2, "not both")
    refused = await queen("dlq", "ls", "--matching", "data.amount >")
    assert refused.code == 2
