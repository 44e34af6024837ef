"""What is shown of a stream, and why nothing comes."""

from __future__ import annotations

import json

from tests.acceptance.speaking import configure, moment
from tests.integration.streams.streaming import (
    MINUTE,
    Streams,
    at,
    data,
    eventually,
    three_windows,
    us,
)

# What is shown


async def test_the_list_of_streams(streams: Streams) -> None:
    assert await streams.resource() == {"streams": []}
    number = await three_windows(streams) and (await streams.define(partitioned=True))["stream_id"]
    await streams.push("open", key="k")
    await streams.take()
    [shown] = (await streams.resource())["streams"]
    assert shown.items() >= {
        "name": "s", "namespace": "tests", "id": number, "partitioned": True, "window_type": "tumbling",
        "late": 0,
    }.items()  # fmt: skip
    assert "q" in json.dumps(shown["sources"])
    assert moment(shown["createdAt"])

    async def counted() -> bool:
        windows = (await streams.resource("/s"))["windows"]
        return bool(windows["open"] == 1 and windows["closed"] == 3)

    await eventually(counted)
    stats = await streams.resource("/stats")
    assert stats["streams"] == 1
    assert (stats["windows"]["open"], stats["windows"]["closed"], stats["windows"]["leased"]) == (1, 3, 1)
    assert stats["windows"]["late"] == 0
    assert stats["messages"] == 4


async def test_the_groups_of_a_stream(streams: Streams) -> None:
    await three_windows(streams)
    await streams.done()
    await streams.take()
    await streams.take(group="other")
    shown = (await streams.resource("/s"))["groups"]
    assert (await streams.resource("/s/consumers"))["consumers"] == shown
    groups = {group["consumerGroup"]: group for group in shown}
    assert set(groups) == {"g", "other"}
    one, other = groups["g"], groups["other"]
    assert (one["lag"], one["leased"], one["done"], one["dead"]) == (2, 1, 1, 0)
    assert moment(one["lastAckAt"])
    assert (other["lag"], other["leased"], other["done"], other["lastAckAt"]) == (3, 1, 0, None)


async def test_the_windows_of_a_stream(streams: Streams) -> None:
    await three_windows(streams, "a", "b")
    await streams.push("open", key="a")
    done = await streams.done()
    leased = await streams.take()

    async def all_there() -> bool:
        return len(await streams.windows(consumerGroup="g")) == 7

    await eventually(all_there)
    shown = {w["id"]: w for w in await streams.windows(consumerGroup="g")}
    assert shown[done["id"]]["state"] == "done"
    taken = shown[leased["id"]]
    assert (taken["state"], taken["attempt"], taken["messages"]) == ("leased", 1, 1)
    assert (taken["key"], taken["start"], taken["end"]) == (leased["key"], leased["start"], leased["end"])
    assert 50 < us(taken["leasedUntil"]) / 1e6 - streams.clock().timestamp() <= 60
    assert moment(taken["closedAt"])
    counts = [
        len(await streams.windows(consumerGroup="g", state=state))
        for state in ("open", "ripe", "leased", "done")
    ]
    assert counts == [1, 4, 1, 1]
    assert {w["key"] for w in await streams.windows(consumerGroup="g", key="b")} == {"b"}
    assert len(await streams.windows(consumerGroup="g", limit=2)) == 2
    await streams.resource("/nowhere/windows", status=404)


async def test_the_queue_of_a_stream_is_its_own(streams: Streams) -> None:
    """Nobody else pushes, pops, configures or deletes it, and no listing shows it."""
    await three_windows(streams)
    await streams.done()
    name = "__stream__:s"
    http = streams.http
    refused = [
        await http.post("/api/v1/push", json={"items": [{"queue": name, "payload": 1}]}),
        await http.post("/api/v1/push", json={"items": [{"queue": "__stream__:new", "payload": 1}]}),
        await http.get(f"/api/v1/pop/queue/{name}"),
        await http.get(f"/api/v1/pop/queue/{name}/partition/k"),
        await http.post("/api/v1/configure", json={"queue": name}),
        await http.delete(f"/api/v1/resources/queues/{name}"),
        await http.delete(f"/api/v1/queues/{name}/clear"),
    ]
    assert [answer.status_code for answer in refused] == [400] * len(refused), [a.text for a in refused]
    for path in (
        "resources/queues", "resources/overview", "resources/partitions", "resources/namespaces", "status",
        "status/queues", "messages", "consumer-groups", "dlq", "analytics/queue-lag", "analytics/queue-ops",
    ):  # fmt: skip
        answer = await http.get(f"/api/v1/{path}")
        assert answer.status_code == 200, answer.text
        assert "__stream__" not in answer.text, path
    assert [data(w) for w in await streams.drain(2)] == [["k1"], ["k2"]]


async def test_a_pop_over_a_namespace_takes_no_windows(streams: Streams) -> None:
    await configure(streams.http, "q", "tests", ttl=0)
    await streams.define()
    streams.align()
    await streams.push(1)
    streams.clock.turn(MINUTE)
    await streams.done()
    for _ in range(2):
        answer = await streams.http.get("/api/v1/pop", params={"namespace": "tests", "autoAck": True})
        popped = answer.json()["messages"] if answer.status_code == 200 else []
        assert [m["queue"] for m in popped] in (["q"], [])


# Explain: every problem of the guide's troubleshooting


async def test_explain_names_the_grace(streams: Streams) -> None:
    await streams.made(window_grace_period_ms=30_000)
    streams.align()
    await streams.push(1)
    await streams.nothing()
    await streams.explained("end")
    streams.clock.turn(MINUTE)
    await streams.nothing()
    await streams.explained("grace")


async def test_explain_says_that_there_are_no_messages(streams: Streams) -> None:
    await streams.made()
    await streams.nothing()
    await streams.explained("message", "q")


async def test_explain_names_the_source_that_holds_the_watermark(streams: Streams) -> None:
    await streams.made("s", "clicks", "orders", event_time_path="data.ts")
    await streams.push({"ts": at(5)}, {"ts": at(600)}, queue="clicks")
    await streams.nothing()
    await streams.explained("watermark", "orders")
    await streams.push({"ts": at(30)}, queue="orders")
    await streams.nothing()
    await streams.explained("watermark", "orders")
    assert (await streams.resource("/s/explain", consumerGroup="g"))["watermark"] == at(30)


async def test_explain_says_that_partition_names_differ(streams: Streams) -> None:
    """Two queues whose keys never meet: a join that gives halves."""
    await streams.made("s", "messages", "reactions", partitioned=True)
    streams.align()
    await streams.push(1, queue="messages", key="chat-1")
    await streams.push(2, queue="reactions", key="CHAT-1")
    streams.clock.turn(MINUTE)
    await streams.drain(2)
    await streams.explained("partition", "name")


async def test_explain_says_that_a_key_is_unknown(streams: Streams) -> None:
    await three_windows(streams, "chat-1")
    await streams.drain(3)
    await streams.explained("chat-9", key="chat-9")


async def test_explain_names_leases_that_ran_out(streams: Streams) -> None:
    """Why a window is processed twice."""
    await three_windows(streams)
    await streams.take()
    streams.clock.turn(61)
    await streams.take()
    await streams.explained("lease", "renew")


async def test_explain_counts_what_was_late(streams: Streams) -> None:
    """Why a message is in no window."""
    await streams.made(event_time_path="data.ts")
    await streams.push({"ts": at(5)}, {"ts": at(61)})
    await streams.done()
    await streams.push({"ts": at(6)})
    await streams.late(1)
    await streams.explained("late", "1")


async def test_explain_names_the_lease_that_is_out(streams: Streams) -> None:
    await three_windows(streams)
    await streams.take()
    await streams.nothing()
    await streams.explained("lease")


async def test_explain_names_the_error_of_a_window_that_fails(streams: Streams) -> None:
    """Why a group makes no progress."""
    await three_windows(streams)
    await streams.ack(await streams.take(), success=False, error="division by zero")
    await streams.ack(await streams.take(), success=False, error="division by zero")
    await streams.explained("division by zero")


async def test_explain_of_what_does_not_exist(streams: Streams) -> None:
    await streams.resource("/nowhere/explain", status=404, consumerGroup="g")
