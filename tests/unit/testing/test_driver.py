"""``PipelineDriver``: what a test sends, what it finds in the sinks, and what a crash leaves."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queenstream.core.aggregates import count as count_all
from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Kafka, Memory, Queue, Stream
from queenstream.pipeline.errors import PipelineError
from queenstream.pipeline.policies import DeadLetters, retry
from queenstream.pipeline.shorthand import tumbling
from queenstream.pipeline.state import State
from queenstream.testing import PipelineDriver

BEGINNING = datetime(2026, 1, 1, tzinfo=UTC)


def counted(user: str, record: dict[str, Any], state: State) -> dict[str, Any]:
    state.set("n", state.get("n", 0) + 1)
    return {"user": user, "n": state.get("n")}


def counting() -> Pipeline[Any]:
    return Pipeline("counting").source(Queue("in")).key_by("user").stateful(counted).to(Queue("out"))


def by_minute() -> Pipeline[Any]:
    return (
        Pipeline("minutes")
        .source(Queue("in"))
        .key_by("user")
        .window(tumbling("1m"), grace="10s")
        .aggregate(n=count_all())
        .late(Queue("too-late"))
        .to(Queue("out"))
    )


# Sending and looking


def test_rows_are_there_after_a_send() -> None:
    driver = PipelineDriver(counting())
    driver.send({"user": "ann"}, {"user": "bob"})
    driver.send({"user": "ann"})
    assert driver.rows() == [{"user": "ann", "n": 1}, {"user": "bob", "n": 1}, {"user": "ann", "n": 2}]


def test_a_plan_can_be_driven_as_well() -> None:
    driver = PipelineDriver(counting().plan())
    driver.send({"user": "ann"})
    assert driver.rows("queue:out") == driver.rows("out") == [{"user": "ann", "n": 1}]


def test_what_is_wrong_in_a_pipeline_is_said_at_once() -> None:
    with pytest.raises(PipelineError, match="leads nowhere"):
        PipelineDriver(Pipeline("p").source(Queue("in")))


def test_neither_sources_nor_sinks_are_touched() -> None:
    given: list[Any] = []
    pipeline = Pipeline("p").source(Memory([{"n": 1}])).to(Function(given.append, name="list"))
    with PipelineDriver(pipeline) as driver:
        driver.send({"n": 2})
        driver.end()
        assert driver.rows("list") == [{"n": 2}]
    assert given == []


def test_several_sinks_have_to_be_named() -> None:
    driver = PipelineDriver(Pipeline("p").source(Queue("in")).to(Queue("a"), Queue("b")))
    driver.send({"n": 1})
    assert driver.rows("a") == driver.rows("b") == [{"n": 1}]
    with pytest.raises(ConfigError, match=r"which sink.*write one of 'queue:a', 'queue:b'"):
        driver.rows()
    with pytest.raises(ConfigError, match="'c' is none"):
        driver.rows("c")


def test_several_sources_have_to_be_named() -> None:
    pipeline = Pipeline("p").source(Queue("a")).union(Pipeline("o").source(Queue("b"))).to(Queue("out"))
    driver = PipelineDriver(pipeline)
    driver.send({"n": 1}, source="a")
    driver.send_together({"queue:a": [{"n": 2}], "b": [{"n": 3}]})
    assert driver.rows() == [{"n": 1}, {"n": 2}, {"n": 3}]
    with pytest.raises(ConfigError, match=r"which source.*'queue:a', 'queue:b'"):
        driver.send({"n": 4})


def test_records_that_a_test_changes_afterwards_stay_as_they_were_sent() -> None:
    record = {"user": "ann"}
    driver = PipelineDriver(counting(), commit_every=2)
    driver.send(record)
    record["user"] = "bob"
    driver.crash()
    driver.commit()
    assert driver.rows() == [{"user": "ann", "n": 1}]


# Time


def test_a_queue_s_records_are_from_when_the_driver_s_clock_says() -> None:
    driver = PipelineDriver(by_minute())
    assert driver.now == BEGINNING
    driver.send({"user": "ann"})
    driver.advance("59s")
    driver.send({"user": "ann"})
    assert driver.rows() == []
    driver.advance("11s")  # the end of the minute, and its grace
    assert driver.rows() == [
        {"window_start": BEGINNING, "window_end": BEGINNING + timedelta(minutes=1), "user": "ann", "n": 2}
    ]
    assert driver.now == BEGINNING + timedelta(seconds=70)


def test_a_time_can_be_given() -> None:
    driver = PipelineDriver(by_minute(), start="2026-06-01T00:00:00Z")
    driver.send({"user": "ann"}, time="2026-06-01T12:00:00+02:00")
    driver.send({"user": "ann"}, time=datetime(2026, 6, 1, 11, tzinfo=UTC))
    assert [row["window_start"].hour for row in driver.rows()] == [10]
    assert driver.now == datetime(2026, 6, 1, 11, tzinfo=UTC)


def test_what_is_late_is_found_apart() -> None:
    driver = PipelineDriver(by_minute())
    driver.send({"user": "ann"}, time="2026-01-01T00:01:10Z")
    driver.send({"user": "bob"}, time="2026-01-01T00:00:59Z")
    assert driver.rows() == []
    [late] = driver.late()
    assert late["record"] == {"user": "bob"}
    assert late["lateness_ms"] == 11_000
    assert driver.late() == driver.rows("too-late")


def test_before_the_first_record_only_the_clock_moves() -> None:
    pipeline = (
        Pipeline("p")
        .source(Queue("in"))
        .window(tumbling("1m"), time="at")
        .aggregate(n=count_all())
        .to(Queue("out"))
    )
    driver = PipelineDriver(pipeline)
    driver.advance("1d")
    assert driver.now == BEGINNING + timedelta(days=1)
    driver.send({"at": 0})  # not late: nothing was seen before
    driver.advance("1m")
    assert [row["n"] for row in driver.rows()] == [1]


def test_event_times_in_records_move_on_from_the_latest() -> None:
    """Not from the clock's or the queue's own time, which are another."""
    pipeline = (
        Pipeline("p")
        .source(Queue("in"))
        .window(tumbling("1m"), time="at")
        .aggregate(n=count_all())
        .to(Queue("out"))
    )
    driver = PipelineDriver(pipeline)
    driver.send({"at": 30_000})
    driver.advance("29s")
    assert driver.rows() == []
    driver.advance("1s")
    assert [row["n"] for row in driver.rows()] == [1]
    assert driver.stats().watermark == datetime(1970, 1, 1, 0, 1, tzinfo=UTC)


@pytest.mark.parametrize("commit_every", [1, 4])
def test_an_idle_source_holds_nobody_back_also_after_crashes(commit_every: int) -> None:
    other = Pipeline("other").source(Queue("b"), idle_timeout="5s")
    pipeline = (
        Pipeline("p")
        .source(Queue("a"))
        .union(other)
        .window(tumbling("1m"))
        .aggregate(n=count_all())
        .to(Queue("out"))
    )
    driver = PipelineDriver(pipeline, commit_every=commit_every)
    driver.send({}, source="a")
    driver.send({}, source="a", time="2026-01-01T00:02:00Z")
    assert driver.rows() == []
    driver.idle("b")
    driver.crash()
    driver.commit()
    assert len(driver.rows()) == 1
    driver.crash()
    driver.send({}, source="a", time="2026-01-01T00:05:00Z")
    driver.commit()
    assert len(driver.rows()) == 2


def test_a_source_without_times_says_so() -> None:
    driver = PipelineDriver(Pipeline("p").source(Memory([])).to(Queue("out")))
    with pytest.raises(ConfigError, match=r"no time of its own.*event_time"):
        driver.send({}, time="2026-01-01T00:00:00Z")


@pytest.mark.parametrize(("given", "says"), [("noon", "ISO 8601"), ("2026-01-01T00:00:00", "time zone")])
def test_a_time_that_is_none_is_refused(given: str, says: str) -> None:
    driver = PipelineDriver(counting())
    with pytest.raises(ConfigError, match=says):
        driver.send({"user": "ann"}, time=given)


def test_the_end_closes_everything_and_nothing_comes_after_it() -> None:
    driver = PipelineDriver(by_minute())
    driver.send({"user": "ann"})
    driver.end()
    assert [row["n"] for row in driver.rows()] == [1]
    with pytest.raises(ConfigError, match="has ended"):
        driver.send({"user": "ann"})


# What sources make of what is sent


def test_whole_messages() -> None:
    driver = PipelineDriver(Pipeline("p").source(Queue("in", envelope=True)).to(Queue("out")))
    driver.send({"n": 1}, key="ann")
    [message] = driver.rows()
    assert message["data"] == {"n": 1}
    assert message["queue"] == "in"
    assert message["partition"] == "ann"
    assert message["created_at"] == BEGINNING
    assert {"id", "transaction_id"} <= message.keys()


def test_whole_messages_of_a_topic() -> None:
    driver = PipelineDriver(Pipeline("p").source(Kafka("in", envelope=True)).to(Queue("out")))
    driver.send({"n": 1}, {"n": 2}, key="ann")
    assert [(row["key"], row["value"], row["offset"]) for row in driver.rows()] == [
        ("ann", {"n": 1}, 0),
        ("ann", {"n": 2}, 1),
    ]


def test_payloads_of_whole_messages_are_made_to_fit_the_schema() -> None:
    source = Queue("in", envelope=True, schema="n int")
    driver = PipelineDriver(Pipeline("p").source(source, on_error=DeadLetters("failed")).to(Queue("out")))
    driver.send({"n": "1"}, {"n": "one"})
    assert [row["data"] for row in driver.rows()] == [{"n": 1}]
    assert [letter["record"] for letter in driver.dead_letters()] == [{"n": "one"}]


def test_a_stream_s_windows_are_from_their_start() -> None:
    pipeline = (
        Pipeline("p")
        .source(Stream("minutes"))
        .key_by("key")
        .window(tumbling("1h"))
        .aggregate(n=count_all())
        .to(Queue("out"))
    )
    driver = PipelineDriver(pipeline)
    for start in ("2026-01-01T10:00:00Z", "2026-01-01T10:59:00Z", "2026-01-01T11:00:00Z"):
        driver.send({"key": "ann", "window_start": start, "window_end": start, "messages": []})
    assert [(row["key"], row["n"]) for row in driver.rows()] == [("ann", 2)]


def test_a_key_is_for_whole_messages() -> None:
    with pytest.raises(ConfigError, match="envelope=True"):
        PipelineDriver(counting()).send({"user": "ann"}, key="ann")


def test_records_are_made_to_fit_the_schema() -> None:
    pipeline = (
        Pipeline("p").source(Queue("in", schema="n int"), on_error=DeadLetters("failed")).to(Queue("out"))
    )
    driver = PipelineDriver(pipeline)
    driver.send({"n": "1"}, {"n": "one"})
    assert driver.rows() == [{"n": 1}]
    assert [letter["record"] for letter in driver.dead_letters()] == [{"n": "one"}]
    assert driver.dead_letters() == driver.rows("failed")


# Errors


def test_a_pause_between_tries_takes_the_clock_s_time_and_not_the_test_s() -> None:
    tries: list[int] = []

    def flaky(record: dict[str, int]) -> dict[str, int]:
        tries.append(record["n"])
        if len(tries) < 3:
            raise ConnectionError("not yet")
        return record

    policy = retry(3, delay="30s", then=DeadLetters("failed"))
    driver = PipelineDriver(
        Pipeline("p").source(Queue("in")).transform("ask", flaky, on_error=policy).to(Queue("out"))
    )
    started = time.monotonic()
    driver.send({"n": 1})
    assert time.monotonic() - started < 20
    assert tries == [1, 1, 1]
    assert driver.rows() == [{"n": 1}]
    assert driver.now - BEGINNING == timedelta(seconds=30 + 60)
    assert driver.stats().retried == 2
    assert driver.stats().failed == 0


def test_stats() -> None:
    def check(record: dict[str, Any]) -> dict[str, Any]:
        if record["user"] is None:
            raise ValueError("who?")
        return record

    pipeline = (
        Pipeline("p")
        .source(Queue("in"))
        .transform("check", check, on_error=DeadLetters("failed"))
        .window(tumbling("1m"))
        .aggregate(n=count_all())
        .to(Queue("out"))
    )
    driver = PipelineDriver(pipeline)
    driver.send({"user": "ann"}, {"user": None}, time="2026-01-01T00:02:00Z")
    driver.send({"user": "bob"}, time="2026-01-01T00:00:00Z")
    driver.end()
    stats = driver.stats()
    assert (stats.records, stats.rows, stats.late, stats.failed, stats.dead_letters) == (3, 1, 1, 1, 1)
    assert stats.steps["check"].taken == 3
    assert stats.steps["check"].given == 2
    [letter] = driver.dead_letters()
    assert (letter["step"], letter["error"], letter["attempts"]) == ("check", "who?", 1)


# Crashes


def test_state_survives_a_crash() -> None:
    driver = PipelineDriver(counting())
    driver.send({"user": "ann"})
    driver.crash()
    driver.send({"user": "ann"})
    assert [row["n"] for row in driver.rows()] == [1, 2]


def test_rows_are_in_the_sinks_with_the_checkpoint_and_not_before() -> None:
    driver = PipelineDriver(counting(), commit_every=3)
    driver.send({"user": "ann"})
    driver.send({"user": "ann"})
    assert driver.rows() == []
    driver.send({"user": "ann"})
    assert [row["n"] for row in driver.rows()] == [1, 2, 3]
    driver.send({"user": "ann"})
    driver.commit()
    assert [row["n"] for row in driver.rows()] == [1, 2, 3, 4]


def test_after_a_crash_the_sources_give_again_what_was_not_committed() -> None:
    seen: list[int] = []

    def look(record: dict[str, Any]) -> dict[str, Any]:
        seen.append(record["n"])
        record["n"] *= 10  # what a step does to its record does not reach the source
        return record

    driver = PipelineDriver(
        Pipeline("p").source(Queue("in")).transform("look", look).to(Queue("out")), commit_every=2
    )
    for n in (1, 2, 3):
        driver.send({"n": n})
    driver.crash()
    assert seen == [1, 2, 3, 3]
    driver.commit()
    assert driver.rows() == [{"n": 10}, {"n": 20}, {"n": 30}]


def test_only_what_a_checkpoint_can_hold_survives() -> None:
    """State goes through bytes, as it does in a run: what would not come back does not here either."""

    def keep(user: str, record: dict[str, Any], state: State) -> dict[str, Any]:
        state.set("lock", object())
        return record

    driver = PipelineDriver(Pipeline("p").source(Queue("in")).key_by("user").stateful(keep).to(Queue("out")))
    with pytest.raises(TypeError, match="cannot be kept in a checkpoint"):
        driver.send({"user": "ann"})


def test_commit_every_is_a_number_of_batches() -> None:
    with pytest.raises(ConfigError, match="from 1"):
        PipelineDriver(counting(), commit_every=0)


# Event loops


async def ask(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "asked": True}


def asking() -> Pipeline[Any]:
    return Pipeline("p").source(Queue("in")).transform("ask", ask, concurrency=4).to(Queue("out"))


def test_async_steps() -> None:
    with PipelineDriver(asking()) as driver:
        driver.send({"n": 1}, {"n": 2})
        driver.crash()
        driver.send({"n": 3})
        assert driver.rows() == [{"n": n, "asked": True} for n in (1, 2, 3)]


def test_a_driver_that_nobody_closes_leaves_nothing_open() -> None:
    """Warnings are errors here, that of an event loop which was not closed among them."""
    driver = PipelineDriver(asking())
    driver.send({"n": 1})
    del driver


async def test_in_an_async_test() -> None:
    driver = PipelineDriver(counting())
    driver.send({"user": "ann"})
    assert driver.rows() == [{"user": "ann", "n": 1}]
    with pytest.raises(ConfigError, match="def, not async def"):
        PipelineDriver(asking())
