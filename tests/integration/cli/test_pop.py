"""``queen pop``: messages are acknowledged once they are printed."""

from __future__ import annotations

import asyncio
import os
import time

from tests.integration.cli.running import Queen


async def test_each_message_comes_once(queen: Queen) -> None:
    pushed = await queen.rows("push", "orders", '{"n": 1}', '{"n": 2}', '{"n": 3}', "--partition", "ann")
    first = (await queen("pop", "orders")).row
    assert first["data"] == {"n": 1}
    assert first["transactionId"] == pushed[0]["transactionId"]
    assert (first["queue"], first["partition"], first["retryCount"]) == ("orders", "ann", 0)
    assert "leaseId" not in first
    rest = await queen.rows("pop", "orders", "--batch", "10")
    assert [row["data"]["n"] for row in rest] == [2, 3]
    assert await queen.rows("pop", "orders") == []


async def test_groups_and_partitions(queen: Queen) -> None:
    await queen("push", "orders", "1", "--partition", "a")
    await queen("push", "orders", "2", "--partition", "b")
    assert (await queen("pop", "orders", "--partition", "b")).row["data"] == 2
    both = await queen.rows("pop", "orders", "-n", "10", "--partitions", "2", "--group", "g")
    assert sorted(row["data"] for row in both) == [1, 2]
    assert {row["consumerGroup"] for row in both} == {"g"}


async def test_given_back_it_comes_again_and_counts_no_try(queen: Queen) -> None:
    await queen("push", "orders", "1", "2")
    for _ in range(5):  # more than the retry limit
        assert (await queen("pop", "orders", "--no-ack")).row["data"] == 1
    last = (await queen("pop", "orders")).row
    assert (last["data"], last["retryCount"]) == (1, 0)
    assert await queen.rows("dlq", "ls") == []


async def test_waiting(queen: Queen) -> None:
    process = await queen.start("pop", "orders", "--wait", "30s")
    began = time.monotonic()
    await asyncio.sleep(0.5)  # most likely it waits by now; if not, it comes to the same
    await queen("push", "orders", "1")
    out, _ = await asyncio.wait_for(process.communicate(), 30)
    assert b'"data":1' in out
    assert time.monotonic() - began < 20
    assert await queen.rows("pop", "orders", "--wait", "100ms") == []
    (await queen("pop", "orders", "--wait", "soon")).failed(2, "wait", "'soon' is not a duration")


async def test_on_a_terminal(queen: Queen) -> None:
    await queen("push", "orders", '{"text": "a\\u001b[31m"}', "--partition", "ann")
    async with queen.terminal("pop", "orders") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines[0].endswith('ann  {"text":"a\\u001b[31m"}')
    async with queen.terminal("pop", "orders") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines == ["queen: nothing to pop from orders"]


async def test_what_nobody_reads_comes_again(queen: Queen) -> None:
    """The reader is gone before the first message is written."""
    await queen("push", "orders", "1", "2")
    reading, writing = os.pipe()
    process = await queen.start("pop", "orders", "-n", "2", "--group", "g", stdout=writing)
    os.close(reading)
    os.close(writing)
    _, err = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, err) == (141, b"")
    again = await queen.rows("pop", "orders", "-n", "2", "--group", "g")
    assert [(row["data"], row["retryCount"]) for row in again] == [(1, 0), (2, 0)]
