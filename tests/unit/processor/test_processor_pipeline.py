"""StreamProcessor.as_pipeline: the same steps, as a plan that an engine can run."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from queenstream.core.aggregates import first, sum_
from queenstream.core.batches import Batch
from queenstream.core.windows import Session, Tumbling
from queenstream.engines.local.engine import Engine
from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Memory, Queue, Record
from queenstream.pipeline.errors import PipelineError
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.shorthand import count
from queenstream.processor.processor import Event, StreamProcessor


def double(event: Event) -> Event:
    event.data["double"] = event.data["value"] * 2
    return event


def to_user(event: Event) -> Event:
    return replace(event, key=event.data["user"], timestamp=event.timestamp + 1)


RECORDS: list[Record] = [
    {"id": f"e{number}", "data": {"value": number, "user": f"u{number % 2}"}, "timestamp": float(number)}
    for number in range(6)
]


async def rows_of(pipeline: Pipeline[Record], records: list[Record]) -> dict[str, list[Any]]:
    """What a pipeline writes, by sink, when it has read all of its records."""
    engine = Engine(pipeline.plan())
    try:
        outputs = await engine.process({"memory": Batch(list(records))})
        outputs.add(await engine.finish())
        return outputs.rows
    finally:
        engine.close()


def function_of(pipeline: Pipeline[Record], name: str) -> Any:
    node = pipeline.plan().node(name)
    if isinstance(node, nodes.Write):
        assert isinstance(node.sink, Function)
        return node.sink.function
    assert isinstance(node, nodes.Apply)
    return node.function


async def test_records_become_what_events_become() -> None:
    seen: list[Event] = []
    stream = StreamProcessor("same").filter(lambda event: event.data["value"] > 1).map(double).map(to_user)
    stream.sink(seen.append, name="collect")
    for record in RECORDS:
        stream.emit(record["id"], record["data"], timestamp=record["timestamp"])
    emitted = list(seen)
    assert len(emitted) == 4

    pipeline = stream.as_pipeline(Memory(RECORDS))
    rows = (await rows_of(pipeline, RECORDS))["collect"]
    assert rows == [
        {
            "id": event.id,
            "data": event.data,
            "key": event.key,
            "timestamp": datetime.fromtimestamp(event.timestamp, UTC),
        }
        for event in emitted
    ]
    seen.clear()
    for row in rows:
        function_of(pipeline, "collect")(row)
    assert seen == emitted


async def test_a_step_that_raises_leaves_that_event_out_as_in_the_processor() -> None:
    def check(event: Event) -> Event:
        if event.data["value"] == 3:
            raise ValueError("three")
        return event

    stream = StreamProcessor("failing").map(check).sink(print, name="collect")
    rows = (await rows_of(stream.as_pipeline(Memory(RECORDS)), RECORDS))["collect"]
    assert [row["data"]["value"] for row in rows] == [0, 1, 2, 4, 5]


LOGS = st.lists(st.tuples(st.integers(-60_000, 60_000), st.sampled_from(["a", "b"])), max_size=30)


@hypothesis_settings(deadline=None)
@given(LOGS, st.integers(1, 20_000), st.sampled_from(["tumbling", "sliding", "session"]))
def test_a_pipeline_of_it_has_the_same_windows(log: list[Any], size: int, kind: str) -> None:
    stream = StreamProcessor("windows").filter(lambda event: event.data["n"] % 5 != 0).map(double_n)
    if kind == "tumbling":
        stream.tumbling_window(size / 1000)
    elif kind == "sliding":
        stream.sliding_window(size / 500, size / 1000)
    else:
        stream.session_window(size / 1000)
    records: list[Record] = [
        {"id": f"e{number}", "data": {"n": number}, "key": key, "timestamp": moment / 1000}
        for number, (moment, key) in enumerate(log)
    ]
    for record in records:
        stream.emit(record["id"], record["data"], record["key"], record["timestamp"])
    aggregates = {"n": count(), "total": sum_("data.n"), "first": first("data.n")}
    expected = [
        (window.start, window.end, window.key, stream.aggregate_window(window, aggregates))
        for window in stream.get_windows()
    ]
    pipeline = stream.as_pipeline(Memory(records)).aggregate(aggregates).to(print, name="out")
    rows = asyncio.run(rows_of(pipeline, records)).get("out", [])
    found = [
        (
            row["window_start"].timestamp(),
            row["window_end"].timestamp(),
            row.get("key"),
            {name: row[name] for name in aggregates},
        )
        for row in rows
    ]
    assert sorted(found, key=str) == sorted(expected, key=str)


def double_n(event: Event) -> Event:
    event.data["n"] *= 2
    return event


def test_steps_keep_their_order_and_names() -> None:
    stream = StreamProcessor("names").sink(print, name="before").filter(bool).map(double, name="double")
    pipeline = stream.sink(print).as_pipeline(Memory(RECORDS))
    names = [node.name for node in pipeline.plan().nodes]
    assert names == ["memory", "event", "before", "filter", "double", "event_time", "sink"]
    assert "map         double" in pipeline.describe()


@pytest.mark.parametrize("kind", ["tumbling", "session"])
def test_windows_go_by_the_events_time_and_sessions_by_their_key(kind: str) -> None:
    stream = StreamProcessor("windows")
    stream = stream.tumbling_window("10s") if kind == "tumbling" else stream.session_window("10s")
    pipeline = stream.as_pipeline(Memory(RECORDS), grace="5s").aggregate(n=count()).to(print)
    plan = pipeline.plan()
    [aggregation] = [node for node in plan.nodes if isinstance(node, nodes.Aggregation)]
    ten = timedelta(seconds=10)
    assert aggregation.window == (Tumbling(ten) if kind == "tumbling" else Session(ten))
    assert aggregation.grace == timedelta(seconds=5)
    assert aggregation.keys == (() if kind == "tumbling" else ("key",))


def test_windows_wait_for_an_aggregate() -> None:
    stream = StreamProcessor("waits").tumbling_window(10).sink(print)
    with pytest.raises(PipelineError, match=r"has no aggregate; add .aggregate"):
        stream.as_pipeline(Memory(RECORDS)).plan()


def test_the_parts_of_an_event_are_found_where_one_says() -> None:
    stream = StreamProcessor("paths").sink(print)
    flat = {"order": 7, "shop": {"id": "s1"}, "at": "1970-01-01T00:01:00Z", "amount": 5}
    pipeline = stream.as_pipeline(Memory([flat]), id="order", data="", key="shop.id", time="at")
    assert function_of(pipeline, "event")(flat) == {
        "id": "7",
        "data": flat,
        "key": "s1",
        "timestamp": datetime(1970, 1, 1, 0, 1, tzinfo=UTC),
    }
    message = {
        "id": "m1",
        "data": {"x": 1},
        "partition": "ann",
        "created_at": datetime(2026, 1, 31, tzinfo=UTC),
    }
    queue = stream.as_pipeline(Queue("clicks", envelope=True), key="partition", time="created_at")
    assert function_of(queue, "event")(message) == {
        "id": "m1",
        "data": {"x": 1},
        "key": "ann",
        "timestamp": datetime(2026, 1, 31, tzinfo=UTC),
    }
    assert queue.plan().name == "paths"


def test_id_and_key_may_be_missing_but_not_the_data_and_the_time() -> None:
    make = function_of(StreamProcessor("parts").sink(print).as_pipeline(Memory(RECORDS)), "event")
    assert make({"data": {}, "timestamp": 0})["id"] == ""
    assert make({"data": {}, "timestamp": 0})["key"] is None
    with pytest.raises(ConfigError, match="no 'timestamp'; say where its time stands: time='field'"):
        make({"id": "e1", "data": {}})
    with pytest.raises(ConfigError, match="'data' of the record is no dictionary; say where it is"):
        make({"id": "e1", "timestamp": 0})


def test_a_step_does_not_change_the_record_it_gets() -> None:
    pipeline = StreamProcessor("pure").map(double).sink(print).as_pipeline(Memory(RECORDS))
    record = function_of(pipeline, "event")(RECORDS[3])
    assert function_of(pipeline, "map")(record)["data"]["double"] == 6
    assert "double" not in record["data"]
    assert "double" not in RECORDS[3]["data"]


def test_steps_added_later_are_not_in_it() -> None:
    stream = StreamProcessor("fixed").sink(print)
    pipeline = stream.as_pipeline(Memory(RECORDS))
    stream.map(double)
    assert "map" not in [node.name for node in pipeline.plan().nodes]
