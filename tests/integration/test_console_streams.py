"""The window inspector: windows of keys on a time line, and one window with its messages and reasons."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import pytest

from tests.integration.streams.streaming import MINUTE, Streams, at, eventually

pytestmark = pytest.mark.timeout(60)


async def timeline(streams: Streams, **query: Any) -> Any:
    return await streams.resource("/s/timeline", **query)


async def event_windows(streams: Streams) -> None:
    """Two keys by event time: minutes 0, 1 and 2 of ``a:1``, minute 0 of ``b``, and one late message."""
    await streams.made(partitioned=True, event_time_path="data.ts")
    await streams.push({"ts": at(5)}, key="b")  # first: after the others it could be late
    await streams.push(*({"ts": at(s)} for s in (0, 10, 60, 125)), key="a:1")

    async def closed() -> bool:
        windows = await streams.windows(key="a:1")
        return [w["state"] for w in windows] == ["open", "closed", "closed"]

    await eventually(closed)
    await streams.push({"ts": at(20)}, key="a:1")
    await streams.late(1)


async def test_windows_by_key_with_what_was_late(streams: Streams) -> None:
    await event_windows(streams)
    shown = await timeline(streams)
    assert [key["key"] for key in shown["keys"]] == ["a:1", "b"]
    assert (shown["stream"], shown["complete"], shown["next"]) == ("s", True, None)
    assert shown["watermark"] == at(125)
    a, b = shown["keys"]
    assert [(w["start"], w["messages"], w["state"]) for w in a["windows"]] == [
        (at(120), 1, "open"),
        (at(60), 1, "closed"),
        (at(0), 2, "closed"),
    ]
    assert a["late"] == [{"start": at(0), "end": at(60), "messages": 1}]
    assert ([w["start"] for w in b["windows"]], b["late"]) == ([at(0)], [])

    window = await streams.take(group="g")
    states = {
        (key["key"], w["start"]): w["state"]
        for key in (await timeline(streams, consumerGroup="g"))["keys"]
        for w in key["windows"]
    }
    assert states.pop((window["key"], window["start"])) == "leased"
    assert set(states.values()) == {"waiting", "open"}


async def test_a_time_line_is_paged_by_key_and_cut_by_time(streams: Streams) -> None:
    await event_windows(streams)
    first = await timeline(streams, keys=1)
    assert ([key["key"] for key in first["keys"]], first["next"]) == (["a:1"], "a:1")
    second = await timeline(streams, keys=1, after=first["next"])
    assert ([key["key"] for key in second["keys"]], second["next"]) == (["b"], None)
    assert [key["key"] for key in (await timeline(streams, prefix="a"))["keys"]] == ["a:1"]
    [only] = (await timeline(streams, key="b"))["keys"]
    assert len(only["windows"]) == 1

    [cut] = (await timeline(streams, key="a:1", **{"from": at(60), "to": at(120)}))["keys"]
    assert [w["start"] for w in cut["windows"]] == [at(60)]
    assert cut["late"] == []
    few = await timeline(streams, key="a:1", limit=1)
    assert (few["complete"], len(few["keys"][0]["windows"])) == (False, 1)
    assert [w["start"] for w in await streams.windows(key="a:1", to=at(60))] == [at(0)]
    await streams.resource("/s/timeline", status=400, keys=0)
    await streams.resource("/nothing/timeline", status=404)


async def test_a_window_with_its_messages_and_why_it_has_not_come(streams: Streams) -> None:
    await event_windows(streams)
    newest, _, oldest = await streams.windows(key="a:1")
    path = f"/s/windows/{quote(oldest['id'], safe='')}"
    shown = await streams.resource(path, consumerGroup="g", limit=1)
    assert shown["window"] | {"state": "", "attempt": None} == oldest | {"state": "", "attempt": None}
    assert [m["data"] for m in shown["content"]] == [{"ts": at(0)}]
    message = shown["content"][0]
    assert (message["queue"], message["partition"], message["leftOut"]) == ("q", "a:1", False)
    found = await streams.http.get(f"/api/v1/messages/{message['partitionId']}/{message['transactionId']}")
    assert found.json()["data"] == {"ts": at(0)}
    rest = await streams.resource(path, consumerGroup="g", limit=1, after=shown["next"])
    assert ([m["data"] for m in rest["content"]], rest["next"]) == ([{"ts": at(10)}], None)

    waits = await streams.resource(f"/s/windows/{quote(newest['id'], safe='')}")
    assert waits["window"]["state"] == "open"
    assert "watermark_held" in {reason["code"] for reason in waits["reasons"]}


async def test_a_count_window_is_found_by_its_positions(streams: Streams) -> None:
    await streams.made(window_type="count", window_size_count=2, window_duration_ms=None)
    streams.align()
    await streams.push(1, 2, 3)
    streams.clock.turn(MINUTE)
    window = await streams.take()
    shown = await streams.resource(f"/s/windows/{quote(window['id'], safe='')}", consumerGroup="g")
    assert (shown["window"]["state"], [m["data"] for m in shown["content"]]) == ("leased", [1, 2])
    line = await timeline(streams, **{"from": "2020-01-01T00:00:00Z"})
    assert len(line["keys"][0]["windows"]) == 2


async def test_a_window_that_is_not_there(streams: Streams) -> None:
    number = await streams.made()
    spans = f"{at(0)}:{at(60)}"
    for name in ("x", f"{number}:k:{spans}", f"999:k:{spans}", f"{number}:k:2026-13-01T00:00:00Z:{at(0)}"):
        refused = await streams.resource(f"/s/windows/{quote(name, safe='')}", status=404)
        assert "no window" in refused["error"]
