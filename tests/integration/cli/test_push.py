"""``queen push``: arguments and files, and files again."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.integration.cli.running import Queen


async def stored(http: httpx.AsyncClient, queue: str) -> list[Any]:
    """The payloads in a queue, in order of arrival."""
    params: dict[str, Any] = {
        "batch": 10_000,
        "partitions": 1000,
        "autoAck": True,
        "consumerGroup": "looking",
    }
    found: list[Any] = []
    while (answer := await http.get(f"/api/v1/pop/queue/{queue}", params=params)).status_code == 200:
        found += answer.json()["messages"]
    return found


async def total(http: httpx.AsyncClient, queue: str) -> int:
    answer = await http.get(f"/api/v1/resources/queues/{queue}")
    return answer.json()["messages"]["total"] if answer.status_code == 200 else 0


async def first_stored(http: httpx.AsyncClient, queue: str) -> None:
    """Wait for the first message of a queue."""
    params: dict[str, Any] = {"wait": True, "consumerGroup": "waiting", "autoAck": True}
    assert (await http.get(f"/api/v1/pop/queue/{queue}", params=params)).status_code == 200


def lines(count: int, first: int = 1) -> str:
    return "".join(f'{{"n": {n}, "user": "u{n % 7}"}}\n' for n in range(first, first + count))


async def test_arguments(queen: Queen, http: httpx.AsyncClient) -> None:
    pushed = await queen.rows("push", "orders", '{"n": 1}', '"text"', "[1,2]", "null", "--partition", "ann")
    assert {(row["status"], row["partition"], row["queue"]) for row in pushed} == {
        ("queued", "ann", "orders")
    }
    found = await stored(http, "orders")
    assert [message["data"] for message in found] == [{"n": 1}, "text", [1, 2], None]
    assert [message["id"] for message in found] == [row["messageId"] for row in pushed]


async def test_the_same_argument_twice_is_two_messages(queen: Queen, http: httpx.AsyncClient) -> None:
    for _ in range(2):
        assert (await queen("push", "orders", "7")).row["status"] == "queued"
    assert await total(http, "orders") == 2


async def test_keys_of_arguments(queen: Queen, http: httpx.AsyncClient) -> None:
    flags = ("--partition-key", "user.id", "--transaction-id-key", "data.order")
    payload = '{"user": {"id": 7}, "order": "o-1"}'
    assert (await queen("push", "orders", payload, *flags)).row["transactionId"] == "o-1"
    again = (await queen("push", "orders", payload, *flags)).row
    assert (again["status"], again["partition"]) == ("duplicate", "7")
    assert await total(http, "orders") == 1


async def test_a_file_can_be_pushed_again_and_may_grow(queen: Queen, http: httpx.AsyncClient) -> None:
    first = (await queen("push", "orders", stdin=lines(2500))).row
    seconds = first.pop("seconds")
    assert first == {
        "queue": "orders",
        "lines": 2500,
        "new": 2500,
        "duplicates": 0,
        "bad": 0,
        "ended": "done",
    }
    assert 0 < seconds < 30
    again = (await queen("push", "orders", stdin=lines(3000))).row
    assert (again["new"], again["duplicates"]) == (500, 2500)
    found = await stored(http, "orders")
    assert [message["data"]["n"] for message in found] == list(range(1, 3001))


async def test_the_same_content_on_two_lines_is_two_messages(queen: Queen, http: httpx.AsyncClient) -> None:
    assert (await queen("push", "orders", stdin="1\n1\n\n  1  \n")).row["new"] == 3
    assert (await queen("push", "orders", stdin="1\n1\n\n  1  \n")).row["duplicates"] == 3
    assert (await queen("push", "orders", "--again", stdin="1\n1\n\n  1  \n")).row["new"] == 3
    assert await total(http, "orders") == 6


async def test_payloads_are_stored_as_they_are_written(queen: Queen, http: httpx.AsyncClient) -> None:
    written = '{"big":123456789012345678901234567890,"exact":1.10,"ü":"\\u00fc"}'
    await queen("push", "orders", stdin=written + "\n")
    answer = await http.get("/api/v1/pop/queue/orders")
    assert written in answer.text


async def test_lines_go_to_the_partition_they_name_in_order(queen: Queen, http: httpx.AsyncClient) -> None:
    done = (await queen("push", "orders", "--partition-key", "user", stdin=lines(2100))).row
    assert done["new"] == 2100
    by_partition: dict[str, list[int]] = {}
    for message in await stored(http, "orders"):
        assert message["partition"] == message["data"]["user"]
        by_partition.setdefault(message["partition"], []).append(message["data"]["n"])
    assert by_partition == {f"u{k}": [n for n in range(1, 2101) if n % 7 == k] for k in range(7)}


async def test_a_bad_line_stops_it_after_what_came_before(queen: Queen, http: httpx.AsyncClient) -> None:
    text = lines(3) + "{oops\n" + lines(2, 5)
    done = await queen("push", "orders", stdin=text)
    assert done.code == 1
    assert done.err.startswith("queen: line 4: not JSON: ")
    assert "--on-bad skip" in done.err
    summary = json.loads(done.out)
    assert (summary["new"], summary["bad"], summary["ended"]) == (3, 1, "failed")
    assert await total(http, "orders") == 3
    mended = (await queen("push", "orders", stdin=text.replace("{oops", '{"n": 4}'))).row
    assert (mended["new"], mended["duplicates"]) == (3, 3)
    assert [m["data"]["n"] for m in await stored(http, "orders")] == [1, 2, 3, 4, 5, 6]


async def test_bad_lines_can_be_skipped(queen: Queen, http: httpx.AsyncClient) -> None:
    text = b'{"user": "a"}\n{oops\n\xff\n{"user": ""}\n{"user": true}\n{}\n{"user": 5}\n'
    done = await queen("push", "orders", "--on-bad", "skip", "--partition-key", "user", stdin=text)
    assert done.code == 0
    assert [line.split(":")[1] for line in done.err.splitlines()] == [f" line {n}" for n in (2, 3, 4, 5, 6)]
    assert "no text or whole number at user" in done.err
    assert "1 to 255 characters" in done.err
    summary = json.loads(done.out)
    assert (summary["new"], summary["bad"]) == (2, 5)
    assert {message["partition"] for message in await stored(http, "orders")} == {"a", "5"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
async def test_interrupted_and_repeated_stores_everything_once(
    queen: Queen, http: httpx.AsyncClient, number: signal.Signals
) -> None:
    process = await queen.start("push", "orders")
    assert process.stdin is not None
    process.stdin.write(lines(1500).encode())
    await process.stdin.drain()
    await first_stored(http, "orders")
    process.send_signal(number)
    out, err = await asyncio.wait_for(process.communicate(), 30)
    if number is signal.SIGINT:
        assert (process.returncode, err) == (130, b"")
        assert json.loads(out)["ended"] == "interrupted"
    before = await total(http, "orders")
    assert 0 < before < 2500
    done = (await queen("push", "orders", stdin=lines(2500))).row
    assert (done["new"], done["duplicates"]) == (2500 - before, before)
    assert [m["data"]["n"] for m in await stored(http, "orders")] == list(range(1, 2501))


async def test_what_the_broker_refuses_ends_it_and_what_is_stored_is_said(
    queen: Queen, http: httpx.AsyncClient
) -> None:
    process = await queen.start("push", "orders")
    assert process.stdin is not None
    process.stdin.write(lines(1000).encode())
    await process.stdin.drain()
    await first_stored(http, "orders")
    await http.post("/api/v1/configure", json={"queue": "orders", "options": {"maxSize": 5}})
    out, err = await asyncio.wait_for(process.communicate(lines(1000, 1001).encode()), 60)
    assert process.returncode == 1
    summary = json.loads(out)
    assert (summary["new"], summary["ended"]) == (1000, "failed")
    assert err.decode().startswith("queen: ")
    assert err.decode().count("\n") == 1
    await http.post("/api/v1/configure", json={"queue": "orders"})
    assert (await queen("push", "orders", stdin=lines(2000))).row["new"] == 1000


async def test_progress_on_a_terminal(queen: Queen, tmp_path: Path) -> None:
    file = tmp_path / "events.ndjson"
    file.write_text(lines(5000))
    with file.open("rb") as given:
        async with queen.terminal("push", "orders", stdin=given) as terminal:
            assert await terminal.ended() == 0
    assert "new, 0 there already, " in terminal.text
    assert "━" in terminal.text
    assert terminal.lines[-1].startswith("5,000 new, 0 there already (")
    with file.open("rb") as given:
        async with queen.terminal("push", "orders", stdin=given) as terminal:
            assert await terminal.ended() == 0
    assert terminal.lines[-1].startswith("0 new, 5,000 there already (")


async def test_wrong_usage(queen: Queen, http: httpx.AsyncClient) -> None:
    (await queen("push", "orders", "{oops")).failed(2, "argument 1: not JSON", "quote it")
    (await queen("push", "orders", "1", "hello")).failed(2, "argument 2")
    (await queen("push", "q", "1", "--partition", "a", "--partition-key", "b")).failed(2, "give one of them")
    (await queen("push", "q", "--again", "--transaction-id-key", "b")).failed(2, "give one of them")
    assert await total(http, "orders") == 0
    assert (await queen("push", "orders", stdin="")).row["lines"] == 0
    async with queen.terminal("push", "orders") as terminal:
        assert await terminal.ended() == 2
    assert "queen push orders < events.ndjson" in terminal.text
