"""``queen tail``: looking without taking."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from typing import Any

import httpx

from tests.integration.cli.running import Queen


async def push(http: httpx.AsyncClient, queue: str, payloads: list[Any], partition: str = "Default") -> None:
    items = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201


async def next_line(process: asyncio.subprocess.Process) -> Any:
    assert process.stdout is not None
    return json.loads(await asyncio.wait_for(process.stdout.readline(), 30))


async def test_the_last_ones_in_order(queen: Queen, http: httpx.AsyncClient) -> None:
    for n in range(1, 31):
        await push(http, "orders", [n], f"p{n % 3}")
    assert [row["data"] for row in await queen.rows("tail", "orders")] == list(range(21, 31))
    assert [row["data"] for row in await queen.rows("tail", "orders", "-n", "25")] == list(range(6, 31))
    assert await queen.rows("tail", "orders", "-n", "0") == []
    some = await queen.rows("tail", "orders", "--partition", "p1", "-n", "3")
    assert [row["data"] for row in some] == [22, 25, 28]
    row = some[0]
    assert (row["queue"], row["partition"], row["status"]) == ("orders", "p1", "pending")


async def test_nobody_is_disturbed(queen: Queen, http: httpx.AsyncClient) -> None:
    await push(http, "orders", [1, 2, 3])
    for _ in range(2):
        assert [row["data"] for row in await queen.rows("tail", "orders")] == [1, 2, 3]
    assert (await http.get("/api/v1/consumer-groups")).json() == []
    assert [row["data"] for row in await queen.rows("pop", "orders", "-n", "5")] == [1, 2, 3]
    assert {row["status"] for row in await queen.rows("tail", "orders")} == {"completed"}


async def test_where(queen: Queen, http: httpx.AsyncClient) -> None:
    payloads: list[Any] = [{"amount": n, "vip": n % 2 == 0} for n in range(1, 201)]
    await push(http, "orders", [*payloads, {"other": 1}, "text", None])
    found = await queen.rows("tail", "orders", "--where", "data.amount > 195 and not data.vip")
    assert [row["data"]["amount"] for row in found] == [197, 199]
    assert len(await queen.rows("tail", "orders", "-n", "7", "--where", "data.vip")) == 7
    by_name = await queen.rows("tail", "orders", "--where", "partition = 'Default' and data.other = 1")
    assert [row["data"] for row in by_name] == [{"other": 1}]
    refused = await queen("tail", "orders", "--where", "data.amount >")
    assert refused.code == 2
    assert "data.amount >" in refused.err


async def test_since_a_moment(queen: Queen, http: httpx.AsyncClient) -> None:
    for first in range(0, 6000, 1500):
        await push(http, "orders", list(range(first, first + 1500)))
    everything = await queen.rows("tail", "orders", "--from", "beginning")
    assert [row["data"] for row in everything] == list(range(6000))
    assert len(await queen.rows("tail", "orders", "--from", "1 hour ago")) == 6000
    middle = everything[3000]["createdAt"]
    later = await queen.rows("tail", "orders", "--from", middle)
    assert [row["data"] for row in later] == list(range(3000, 6000))
    assert await queen.rows("tail", "orders", "--from", "end") == []
    assert await queen.rows("tail", "orders", "--from", "now") == []
    (await queen("tail", "orders", "--from", "soon")).failed(2, "'soon' is no moment")
    (await queen("tail", "orders", "--from", "now", "-n", "3")).failed(2, "give one of them")


async def test_following(queen: Queen, http: httpx.AsyncClient) -> None:
    await push(http, "orders", [{"n": n} for n in range(20)])
    process = await queen.start("tail", "orders", "-f", "-n", "3", "--where", "data.n != 22")
    assert [(await next_line(process))["data"]["n"] for _ in range(3)] == [17, 18, 19]
    await push(http, "orders", [{"n": 20}], "a")
    assert (await next_line(process))["data"] == {"n": 20}
    for n in range(21, 60):
        await push(http, "orders", [{"n": n}], f"p{n % 4}")
    seen = [(await next_line(process))["data"]["n"] for _ in range(38)]
    assert seen == [21, *range(23, 60)]
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, out, err) == (130, b"", b"")
    assert (await http.get("/api/v1/consumer-groups")).json() == []


async def test_following_misses_nothing_and_repeats_nothing(queen: Queen, http: httpx.AsyncClient) -> None:
    """Several pushers at once, more than a page between two looks."""
    await push(http, "orders", [-1])
    process = await queen.start("tail", "orders", "-f")
    assert (await next_line(process))["data"] == -1

    async def pusher(first: int) -> None:
        for batch in range(10):
            await push(http, "orders", [first + batch * 50 + n for n in range(50)], f"p{first}")

    await asyncio.gather(*(pusher(k * 500) for k in range(8)))
    seen = [(await next_line(process)) for _ in range(4000)]
    assert sorted(row["data"] for row in seen) == list(range(4000))
    for k in range(8):
        mine = [row["data"] for row in seen if row["partition"] == f"p{k * 500}"]
        assert mine == sorted(mine)
    process.send_signal(signal.SIGINT)
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert out == b""


async def test_on_a_terminal_until_ctrl_c(queen: Queen, http: httpx.AsyncClient) -> None:
    await push(http, "orders", [{"n": 1}], "ann")
    async with queen.terminal("tail", "orders", "-f") as terminal:
        await terminal.until('ann  {"n":1}')
        await push(http, "orders", [{"n": 2}], "bob")
        await terminal.until('bob  {"n":2}')
        terminal.type("\x03")
        assert await terminal.ended() == 130
    assert "Traceback" not in terminal.text


async def test_a_reader_that_leaves_ends_it_silently(queen: Queen, http: httpx.AsyncClient) -> None:
    await push(http, "orders", ["x" * 100] * 5000)
    reading, writing = os.pipe()
    process = await queen.start("tail", "orders", "--from", "beginning", stdout=writing)
    os.close(writing)
    assert await asyncio.to_thread(os.read, reading, 10)
    os.close(reading)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, err) == (141, b"")


async def test_no_such_queue(queen: Queen) -> None:
    (await queen("tail", "none", "-f")).failed(5, "there is no queue none")
