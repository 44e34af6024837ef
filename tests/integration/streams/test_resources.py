"""What is shown of streams: definitions, groups, windows, late messages, and every reason of explain."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from queenstream.broker.app import Broker
from queenstream.broker.streams.diagnose import Facts, not_assigned
from tests.acceptance.speaking import Json, configure, moment
from tests.integration.streams.streaming import MINUTE, Streams, at, eventually, three_windows

WINDOW_FIELDS = {
    "id", "key", "start", "end", "state", "messages", "closedAt", "attempt", "leasedUntil", "complete",
    "error",
}  # fmt: skip


async def reasons(streams: Streams, **query: Any) -> dict[str, Json]:
    answer = await streams.resource("/s/explain", **{"consumerGroup": "g"} | query)
    assert moment(answer["now"])
    assert moment(answer["assigned_up_to"])
    for reason in answer["reasons"]:
        assert set(reason) == {"code", "message", "remedy"}
        assert reason["message"].endswith(".")
        assert reason["remedy"].endswith(".")
    return {reason["code"]: reason for reason in answer["reasons"]}


async def until(streams: Streams, *codes: str, **query: Any) -> dict[str, Json]:
    """The reasons, once they are these: messages reach their windows beside the requests."""
    seen: dict[str, Json] = {}

    async def found() -> bool:
        nonlocal seen
        seen = await reasons(streams, **query)
        return list(seen) == list(codes)

    try:
        await eventually(found)
    except TimeoutError:
        raise AssertionError(f"{codes} were expected: {seen}") from None
    return seen


# Definitions


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, {"window_type": "tumbling", "window_duration_ms": 60_000, "window_slide_ms": None}),
        (
            {"window_type": "sliding", "window_slide_ms": 15_000},
            {"window_type": "sliding", "window_duration_ms": 60_000, "window_slide_ms": 15_000},
        ),
        (
            {"window_type": "session", "window_session_gap_ms": 5000, "window_duration_ms": None},
            {"window_type": "session", "window_session_gap_ms": 5000, "window_duration_ms": None},
        ),
        (
            {"window_type": "count", "window_size_count": 9, "window_slide_count": 3},
            {"window_size_count": 9, "window_slide_count": 3, "window_duration_ms": None},
        ),
        (
            {"event_time_path": "data.ts", "idle_timeout_ms": 7000, "window_grace_period_ms": 1500},
            {"event_time_path": "data.ts", "idle_timeout_ms": 7000, "window_grace_period_ms": 1500},
        ),
        (
            {"window_lease_timeout_ms": 2500, "retry_limit": 4, "max_in_flight": 3, "emit_empty": True},
            {"window_lease_timeout_ms": 2500, "retry_limit": 4, "max_in_flight": 3, "emit_empty": True},
        ),
        ({"subscription_from": at(0)}, {"subscription_from": at(0)}),
    ],
    ids=["tumbling", "sliding", "session", "count", "event time", "delivery", "start"],
)
async def test_a_definition_is_shown_as_it_was_given(streams: Streams, given: Json, shown: Json) -> None:
    await streams.made("s", "q", "r", **given)
    one = await streams.resource("/s")
    assert one.items() >= shown.items()
    assert one["sources"] == [
        {"queue": name, "highestEventTime": None, "idle": False, "quietSince": source["quietSince"]}
        for name, source in zip(("q", "r"), one["sources"], strict=True)
    ]
    assert one["windows"] == {"open": 0, "ripe": 0, "closed": 0}
    [listed] = (await streams.resource())["streams"]
    assert set(one) - set(listed) == {"groups"}


async def test_sources_say_how_far_they_are(streams: Streams) -> None:
    await streams.made("s", "clicks", "orders", event_time_path="data.ts", idle_timeout_ms=10_000)
    await streams.push({"ts": at(5)}, {"ts": at(3)}, queue="clicks")

    async def seen() -> bool:
        return bool((await streams.resource("/s"))["sources"][0]["highestEventTime"] == at(5))

    await eventually(seen)
    streams.clock.turn(11)

    async def idle() -> bool:
        return all(source["idle"] for source in (await streams.resource("/s"))["sources"])

    await eventually(idle)


async def test_what_does_not_exist(streams: Streams) -> None:
    await streams.made()
    for path in ("", "/consumers", "/windows", "/late", "/explain"):
        assert "nowhere" in (await streams.resource(f"/nowhere{path}", status=404))["error"]
    assert (await streams.resource("/stats"))["streams"] == 1  # a name beats a parameter


async def test_a_query_that_cannot_be(streams: Streams) -> None:
    await streams.made()
    for query in ({"limit": 0}, {"limit": 1001}, {"limit": "many"}, {"state": "gone"}, {"key": "x" * 256}):
        await streams.resource("/s/windows", status=400, **query)
    for state in ("waiting", "leased", "done", "dead"):
        refused = await streams.resource("/s/windows", status=400, state=state)
        assert "consumerGroup" in refused["error"]
    await streams.resource("/s/late", status=400, limit=0)
    await streams.resource("/s/explain", status=400, consumerGroup="x" * 256)


async def test_a_stream_is_deleted_once(streams: Streams) -> None:
    await three_windows(streams)
    for existed in (True, False):
        answer = await streams.http.delete("/api/v1/resources/streams/s")
        assert answer.status_code == 200
        assert answer.json() == {"deleted": existed, "stream": "s", "existed": existed}
    assert await streams.resource("/stats") == {
        "streams": 0, "windows": {"open": 0, "closed": 0, "leased": 0, "late": 0}, "messages": 0,
    }  # fmt: skip


# Windows


async def test_windows_without_a_group(streams: Streams) -> None:
    await three_windows(streams)
    await streams.push("open", key="k")
    await streams.done()

    async def all_there() -> bool:
        return len(await streams.windows()) == 4

    await eventually(all_there)
    shown = await streams.windows()
    assert [window["state"] for window in shown] == ["open", "closed", "closed", "closed"]
    assert all(set(window) == WINDOW_FIELDS for window in shown)
    assert {(w["attempt"], w["leasedUntil"], w["error"]) for w in shown} == {(None, None, None)}
    assert shown[0]["closedAt"] is None
    assert len(await streams.windows(state="closed")) == 3
    assert [w["state"] for w in await streams.windows(state="open")] == ["open"]
    assert await streams.windows(state="ripe") == []
    assert await streams.windows(key="other") == []


async def test_what_a_window_is_to_each_group(streams: Streams) -> None:
    await three_windows(streams, retry_limit=1)
    for _ in range(2):
        await streams.ack(await streams.take(), success=False, error="boom")
    await streams.ack(await streams.take(), success=False, error="bang")

    by_state = {w["state"]: w for w in await streams.windows(consumerGroup="g", limit=2)}
    assert set(by_state) == {"waiting"}
    shown = (await streams.windows(consumerGroup="g"))[::-1]
    assert [(w["state"], w["attempt"], w["error"]) for w in shown] == [
        ("dead", 2, "boom"), ("waiting", 1, "bang"), ("waiting", 0, None),
    ]  # fmt: skip
    assert {w["state"] for w in await streams.windows(consumerGroup="never polled")} == {"waiting"}
    for state in ("dead", "waiting", "leased", "done", "closed", "open"):
        listed = await streams.windows(consumerGroup="g", state=state)
        assert len(listed) == {"dead": 1, "waiting": 2, "closed": 3}.get(state, 0), state
    group = (await streams.resource("/s/consumers"))["consumers"][0]
    assert (group["lag"], group["leased"], group["done"], group["dead"]) == (2, 0, 0, 1)


async def test_a_window_that_died_may_be_sought_back(streams: Streams) -> None:
    starts = await three_windows(streams, retry_limit=0)
    await streams.ack(await streams.take(), success=False, error="boom")
    await streams.drain(2)
    group = (await streams.resource("/s/consumers"))["consumers"][0]
    assert (group["lag"], group["done"], group["dead"]) == (0, 2, 1)
    await streams.seek(starts[0])
    assert [w["state"] for w in await streams.windows(consumerGroup="g")] == ["waiting"] * 3
    group = (await streams.resource("/s/consumers"))["consumers"][0]
    assert (group["lag"], group["done"], group["dead"]) == (3, 0, 1)


async def test_a_lease_that_ran_out_is_no_lease(streams: Streams) -> None:
    await three_windows(streams)
    await streams.take()
    [leased] = await streams.windows(consumerGroup="g", state="leased")
    assert (leased["attempt"], moment(leased["leasedUntil"])) == (1, True)
    streams.clock.turn(61)
    assert await streams.windows(consumerGroup="g", state="leased") == []
    assert [w["attempt"] for w in await streams.windows(consumerGroup="g", state="waiting")] == [0, 0, 1]
    assert (await streams.resource("/stats"))["windows"]["leased"] == 0


async def test_windows_before_a_groups_start_are_not_for_it(streams: Streams) -> None:
    starts = await three_windows(streams)
    await streams.seek(starts[2], group="late")

    async def closed() -> bool:
        return len(await streams.windows(state="closed")) == 3

    await eventually(closed)
    states = [w["state"] for w in await streams.windows(consumerGroup="late")]
    assert states == ["waiting", "done", "done"]


async def test_count_windows_show_the_times_of_their_messages(streams: Streams) -> None:
    await streams.made(window_type="count", window_size_count=2, window_duration_ms=None)
    await streams.push(1, 2, 3)
    await streams.done()
    open_, closed = await streams.windows(consumerGroup="g")
    assert (open_["state"], open_["messages"], open_["id"].split(":")[-2:]) == ("open", 1, ["2", "4"])
    assert (closed["state"], closed["messages"], closed["id"].split(":")[-2:]) == ("done", 2, ["0", "2"])
    assert moment(closed["start"])
    assert closed["start"] < closed["end"]


async def test_windows_of_several_lanes(streams: Streams) -> None:
    await three_windows(streams, max_in_flight=2)
    taken = {(await streams.take())["id"] for _ in range(2)}
    assert {w["id"] for w in await streams.windows(consumerGroup="g", key="k", state="leased")} == taken
    assert "leased" in await reasons(streams, key="k")


# Late messages


async def test_late_messages_are_listed(streams: Streams) -> None:
    await streams.made(event_time_path="data.ts", partitioned=True)
    await streams.push({"ts": at(5)}, {"ts": at(61)}, key="a")
    await streams.take()
    [sent] = await streams.push({"ts": at(6)}, key="a")
    await streams.push({"no": "time"}, key="b")
    without, late = await streams.late(2)
    assert late == {
        "messageId": sent["message_id"], "transactionId": sent["transaction_id"], "queue": "q",
        "partition": "a", "key": "a", "eventTime": at(6), "window": {"start": at(0), "end": at(60)},
        "latenessMs": 55_000.0, "reason": "its window had closed", "notedAt": late["notedAt"],
    }  # fmt: skip
    assert moment(late["notedAt"])
    assert (without["eventTime"], without["window"], without["latenessMs"]) == (None, None, None)
    assert "data.ts" in without["reason"]
    cut = await streams.resource("/s/late", limit=1)
    assert (cut["total"], [one["key"] for one in cut["late"]]) == (2, ["b"])
    assert (await streams.resource("/s/late", key="a"))["late"] == [late]
    assert (await streams.resource("/stats"))["windows"]["late"] == 2
    assert (await streams.resource("/s"))["late"] == 2
    assert "2 messages" in (await reasons(streams))["late_messages"]["message"]
    assert "1 message " in (await reasons(streams, key="b"))["late_messages"]["message"]


# Explain


async def test_nobody_has_polled_and_nothing_was_pushed(streams: Streams) -> None:
    await streams.made()
    found = await until(streams, "no_such_group", "no_messages")
    assert "'q'" in found["no_messages"]["message"]
    await streams.nothing()
    await until(streams, "no_messages")
    answer = await streams.resource("/s/explain")  # the stream alone
    assert (answer["consumerGroup"], [r["code"] for r in answer["reasons"]]) == (None, ["no_messages"])


async def test_the_time_that_is_left(streams: Streams) -> None:
    await streams.made(window_grace_period_ms=30_000)
    streams.align(into=10)
    await streams.push(1)
    await streams.nothing()
    message = (await until(streams, "not_ripe"))["not_ripe"]["message"]
    [window] = await streams.windows()
    assert window["start"] in message
    assert window["end"] in message
    left = re.search(r"That is in ([0-9.]+) s", message)
    assert left
    assert 60 < float(left[1]) <= 80
    assert "a grace of 30.0 s" in message


async def test_a_count_window_wants_messages(streams: Streams) -> None:
    await streams.made(window_type="count", window_size_count=5, window_duration_ms=None)
    await streams.push(1, 2)
    await streams.nothing()
    reason = (await until(streams, "not_ripe"))["not_ripe"]
    assert "2 of 5" in reason["message"]
    assert "3 more" in reason["remedy"]


async def test_a_silent_source_and_when_it_counts_as_idle(streams: Streams) -> None:
    await streams.made("s", "clicks", "orders", event_time_path="data.ts")
    await streams.push({"ts": at(5)}, queue="clicks")
    await streams.nothing()
    reason = (await until(streams, "source_silent"))["source_silent"]
    assert "'orders'" in reason["message"]
    assert "idle_timeout_ms is not set" in reason["message"]
    assert at(60) in reason["message"]
    await streams.define("s", "clicks", "orders", event_time_path="data.ts", idle_timeout_ms=100_000)
    left = re.search(r"counts as idle in ([0-9.]+) s", str(await reasons(streams)))
    assert left
    assert 80 < float(left[1]) <= 100


async def test_the_source_that_holds_the_watermark(streams: Streams) -> None:
    await streams.made("s", "clicks", "orders", event_time_path="data.ts", window_grace_period_ms=5000)
    await streams.push({"ts": at(5)}, {"ts": at(600)}, queue="clicks")
    await streams.push({"ts": at(7)}, queue="orders")
    await streams.nothing()
    message = (await until(streams, "watermark_held"))["watermark_held"]["message"]
    assert "'orders'" in message
    assert "'clicks'" not in message
    assert at(7) in message
    assert at(65) in message


async def test_what_is_out_is_named(streams: Streams) -> None:
    await three_windows(streams, "a", "b")
    window = await streams.take()
    found = await until(streams, "leased", "behind")
    assert window["start"] in found["leased"]["message"]
    assert "attempt 1" in found["leased"]["message"]
    assert window["leaseId"] not in str(found), "a lease id is its consumer's alone"
    assert "5 closed windows" in found["behind"]["message"]
    other = "b" if window["key"] == "a" else "a"
    assert set(await reasons(streams, key=window["key"])) == {"leased"}
    assert set(await reasons(streams, key=other)) == {"behind"}


async def test_what_fails_and_what_died(streams: Streams) -> None:
    await three_windows(streams, retry_limit=1)
    await streams.ack(await streams.take(), success=False, error="division by zero")
    found = await until(streams, "retrying", "behind")
    assert "failed once" in found["retrying"]["message"]
    assert "retry_limit 1" in found["retrying"]["message"]
    await streams.ack(await streams.take(), success=False, error="division by zero")
    found = await until(streams, "behind", "dead")
    assert found["dead"]["message"].startswith("1 window is in the dead letters")
    assert "division by zero" in found["dead"]["message"]
    await streams.drain(2)
    await until(streams, "up_to_date", "dead")
    await until(streams, "up_to_date", "dead", key="k")


async def test_a_lease_that_ran_out(streams: Streams) -> None:
    await three_windows(streams)
    await streams.take()
    streams.clock.turn(61)
    found = await until(streams, "lease_expired", "behind")
    assert "failed once" in found["lease_expired"]["message"]
    await streams.take()
    found = await until(streams, "leased", "lease_expired")
    assert "attempt 2" in found["leased"]["message"]
    assert "failed once" in found["lease_expired"]["message"]


async def test_partition_names_that_never_meet(streams: Streams) -> None:
    await streams.made("s", "messages", "reactions", partitioned=True)
    await streams.nothing()
    await until(streams, "no_messages")  # no messages, so no names either
    streams.align()
    await streams.push(1, queue="messages", key="chat-1")
    await streams.push(2, queue="reactions", key="CHAT-1")
    await until(streams, "not_ripe", "partition_names")
    found = await until(streams, "not_ripe", "partition_names", key="chat-1")
    assert "none in 'reactions'" in found["partition_names"]["message"]
    await streams.push(3, queue="reactions", key="chat-1")
    await until(streams, "not_ripe")


async def test_a_key_that_is_not_there(streams: Streams) -> None:
    await three_windows(streams)
    await streams.drain(3)
    assert "'K'" in (await until(streams, "no_such_key", key="K"))["no_such_key"]["message"]
    await streams.made("whole", "q")
    answer = await streams.resource("/whole/explain", key="k")
    assert answer["reasons"][0]["code"] == "no_such_key"
    assert "not partitioned" in answer["reasons"][0]["message"]


async def test_a_group_that_starts_later(streams: Streams) -> None:
    await three_windows(streams)
    await streams.drain(3)
    await streams.seek("2999-01-01T00:00:00Z")
    await streams.push("x", key="k")
    found = await until(streams, "before_start", "not_ripe")
    assert "2999-01-01" in found["before_start"]["message"]


async def test_messages_that_wait_to_be_assigned(streams: Streams, broker: Broker) -> None:
    await streams.made()
    await streams.nothing()
    stream = broker.streams.get("s")
    assert stream is not None
    now = streams.clock()
    waiting = {"name": "q", "has_messages": True, "had_messages": True, "waiting_since": now}
    facts = Facts(stream, "g", None, now, sources=[waiting])
    assert list(not_assigned(facts)) == [], "it is only a moment"
    facts.now += timedelta(seconds=30)
    assert [reason.code for reason in not_assigned(facts)] == ["not_assigned"]
    assert facts.assigned_up_to == now
    facts.maintenance = True
    assert [reason.code for reason in not_assigned(facts)] == ["maintenance"]


# What streams keep for themselves


async def test_ordinary_lists_do_not_count_what_is_a_streams(streams: Streams, broker: Broker) -> None:
    await configure(streams.http, "q", "tests", "work", ttl=0)
    await streams.define(retry_limit=0, partitioned=True)
    streams.align()
    await streams.push("x", key="k")
    streams.clock.turn(MINUTE)
    await streams.ack(await streams.take(), success=False, error="boom")
    await streams.push("y", key="k")
    streams.clock.turn(MINUTE)
    await streams.take()
    http = streams.http

    async def get(path: str, **query: Any) -> Any:
        answer = await http.get(path, params=query)
        assert answer.status_code == 200, answer.text
        assert "__stream__" not in answer.text, path
        return answer.json()

    assert [queue["name"] for queue in (await get("/api/v1/resources/queues"))["queues"]] == ["q"]
    one = await get("/api/v1/resources/queues/q")
    assert one["groups"] == []
    overview = await get("/api/v1/resources/overview")
    assert (overview["queues"], overview["consumerGroups"], overview["leases"]) == (1, 0, 0)
    assert (overview["messages"]["total"], overview["messages"]["deadLetter"]) == (2, 0)
    assert [n["namespace"] for n in (await get("/api/v1/resources/namespaces"))["namespaces"]] == ["tests"]
    assert [t["task"] for t in (await get("/api/v1/resources/tasks"))["tasks"]] == ["work"]
    partitions = await get("/api/v1/resources/partitions")
    assert partitions["pagination"]["total"] == len(partitions["partitions"])
    assert (await get("/api/v1/status"))["deadLetters"] == {"total": 0, "lastHour": 0}
    assert (await get("/api/v1/dlq"))["total"] == 0
    assert (await get("/api/v1/messages", status="dead"))["messages"] == []
    assert {m["queue"] for m in (await get("/api/v1/messages"))["messages"]} == {"q"}
    assert await get("/api/v1/consumer-groups") == []
    assert await get("/api/v1/consumer-groups/lagging", minLagSeconds=0) == []
    for path in ("queue-lag", "queue-ops", "retention"):
        await get(f"/api/v1/analytics/{path}")
    await get("/api/v1/status/queues/q")
    [sent] = (await get("/api/v1/messages", limit=1))["messages"]
    shown = await get(f"/api/v1/messages/{sent['partitionId']}/{sent['transactionId']}")
    assert shown["groups"] == []
    await broker.background.flush()
    series = (await get("/api/v1/status/analytics"))["series"]
    assert sum(point["pushed"] for point in series) <= 2
    rows = await broker.database.admin("queue_gauges", None)
    assert [row["name"] for row in rows] == ["q"]
    assert await broker.database.admin("group_lag", None, None) == []
