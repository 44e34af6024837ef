"""``queen stream``, and ``queen trace``."""

from __future__ import annotations

import asyncio

import httpx

from tests.integration.cli.running import Queen


async def test_define_list_show_delete(queen: Queen) -> None:
    await queen("push", "orders", "1")
    await queen("push", "views", "1")
    define = ("stream", "define", "sales", "--source", "orders", "--source", "views", "--namespace", "shop")
    more = (
        "--sliding", "10m", "--slide", "1m", "--partitioned", "--grace", "5s", "--lease", "30s",
        "--event-time", "data.ts", "--idle-timeout", "2m", "--retry-limit", "3", "--max-in-flight", "2",
        "--emit-empty",
    )  # fmt: skip
    assert (await queen(*define, *more)).row["name"] == "sales"
    listed = (await queen("stream", "ls")).row
    assert listed["namespace"] == "shop"
    shown = (await queen("stream", "show", "sales")).row
    expected = {
        "window_type": "sliding",
        "window_duration_ms": 600_000,
        "window_slide_ms": 60_000,
        "partitioned": True,
        "window_grace_period_ms": 5000,
        "window_lease_timeout_ms": 30_000,
        "event_time_path": "data.ts",
        "idle_timeout_ms": 120_000,
        "retry_limit": 3,
        "max_in_flight": 2,
        "emit_empty": True,
    }
    assert {key: shown[key] for key in expected} == expected
    assert [source["queue"] for source in shown["sources"]] == ["orders", "views"]
    async with queen.terminal("stream", "ls") as terminal:
        assert await terminal.ended() == 0
    assert "sliding 10m every 1m" in terminal.lines[1]
    async with queen.terminal("stream", "show", "sales") as terminal:
        assert await terminal.ended() == 0
    assert "event time      data.ts" in terminal.lines
    (await queen("stream", "delete", "sales")).failed(2, "--yes")
    assert (await queen("stream", "delete", "sales", "--yes")).row["existed"] is True
    (await queen("stream", "show", "sales")).failed(5, "there is no stream 'sales'")


async def test_windows_that_cannot_be(queen: Queen) -> None:
    await queen("push", "orders", "1")
    define = ("stream", "define", "s", "--source", "orders")
    (await queen(*define)).failed(2, "one of --tumbling, --sliding, --session and --count")
    (await queen(*define, "--tumbling", "1m", "--count", "3")).failed(2, "one of")
    (await queen(*define, "--sliding", "1m")).failed(2, "--slide")
    (await queen(*define, "--session", "1m", "--slide", "1m")).failed(2, "--slide")
    (await queen(*define, "--count", "3", "--slide", "1m")).failed(2, "number of messages")
    (await queen(*define, "--tumbling", "soon")).failed(2, "'soon' is not a duration")
    (await queen("stream", "define", "s", "--source", "none", "--count", "3")).failed(2, "none")
    assert await queen.rows("stream", "ls") == []


async def test_consume_seek_and_consume_again(queen: Queen) -> None:
    await queen("push", "orders", *map(str, range(1, 8)))
    await queen("stream", "define", "threes", "--source", "orders", "--count", "3")
    consume = ("stream", "consume", "threes", "--group", "g")
    first = (await queen(*consume, "-n", "1")).row
    assert [message["data"] for message in first["messages"]] == [1, 2, 3]
    assert (first["key"], first["attempt"], first["complete"]) == ("__GLOBAL__", 1, True)
    second = (await queen(*consume, "--idle-timeout", "500ms")).row
    assert [message["data"] for message in second["messages"]] == [4, 5, 6]
    states = await queen.rows("stream", "windows", "threes", "--group", "g")
    assert [row["state"] for row in states] == ["open", "done", "done"]
    assert len(await queen.rows("stream", "windows", "threes", "--state", "closed", "-n", "1")) == 1

    seek = ("stream", "seek", "threes", "--group", "g", "--to", "1 hour ago")
    assert (await queen(*seek, "--dry-run")).row["dryRun"] is True
    (await queen(*seek)).failed(2, "--yes")
    assert await queen.rows(*consume, "--idle-timeout", "300ms") == []
    await queen(*seek, "--yes")
    replayed = await queen.rows(*consume, "-n", "2")
    assert [row["id"] for row in replayed] == [first["id"], second["id"]]
    (await queen("stream", "consume", "none", "--group", "g")).failed(5, "there is no stream 'none'")


async def test_consuming_on_a_terminal_until_ctrl_c(queen: Queen) -> None:
    await queen("push", "orders", "1", "2", "3", "4")
    await queen("stream", "define", "pairs", "--source", "orders", "--count", "2")
    async with queen.terminal("stream", "consume", "pairs", "--group", "g") as terminal:
        await terminal.until("__GLOBAL__", times=2)
        terminal.type("\x03")
        assert await terminal.ended() == 130
    assert "Traceback" not in terminal.text


async def test_explain_and_late(queen: Queen) -> None:
    await queen("push", "clicks", '{"ts": "2026-01-31T12:00:00Z"}', '{"ts": "2026-01-31T13:00:00Z"}')
    await queen("stream", "define", "v", "--source", "clicks", "--tumbling", "1m", "--grace", "0s",
                "--event-time", "data.ts")  # fmt: skip
    assert len(await queen.rows("stream", "consume", "v", "--group", "g", "-n", "1")) == 1
    await queen("push", "clicks", '{"ts": "2026-01-31T12:00:30Z"}', '{"ts": "2026-01-31T13:00:01Z"}')
    async with asyncio.timeout(30):
        while not (late := await queen.rows("stream", "late", "v")):
            pass
    assert late[0]["latenessMs"] > 0
    assert late[0]["window"]["start"] == "2026-01-31T12:00:00Z"
    explained = (await queen("stream", "explain", "v", "--group", "g")).row
    assert explained["consumerGroup"] == "g"
    assert explained["reasons"]
    assert all(reason["message"] for reason in explained["reasons"])
    async with queen.terminal("stream", "explain", "v", "--group", "never") as terminal:
        assert await terminal.ended() == 0
    assert "Group 'never' has never polled this stream." in terminal.lines
    assert any(line.startswith("  do: ") for line in terminal.lines)


async def test_traces(queen: Queen, http: httpx.AsyncClient) -> None:
    assert await queen.rows("trace", "ls") == []
    pushed = (await queen("push", "orders", "1")).row
    for step in ("charged", "shipped"):
        trace = {
            "transactionId": pushed["transactionId"],
            "partitionId": pushed["partitionId"],
            "traceNames": ["order-7"],
            "data": {"step": step},
        }
        assert (await http.post("/api/v1/traces", json=trace)).status_code == 201
    name = (await queen("trace", "ls")).row
    assert (name["name"], name["traces"], name["messages"]) == ("order-7", 2, 1)
    assert await queen.rows("trace", "ls", "--search", "other") == []
    by_name = await queen.rows("trace", "show", "order-7")
    assert [row["data"]["step"] for row in by_name] == ["shipped", "charged"]
    assert len(await queen.rows("trace", "show", "order-7", "-n", "1", "--from", "1h ago")) == 1
    of_message = await queen.rows("trace", "message", pushed["partitionId"], pushed["transactionId"])
    assert [row["data"]["step"] for row in of_message] == ["charged", "shipped"]
    async with queen.terminal("trace", "show", "order-7") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines[1].endswith('{"step":"shipped"}')
