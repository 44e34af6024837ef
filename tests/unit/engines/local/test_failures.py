"""Error policies: one bad record hits only itself, and what happens to it is what the policy says."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from queenstream.core.aggregates import count, custom, sum_
from queenstream.core.batches import Batch
from queenstream.errors import StepFailed
from queenstream.pipeline.policies import DeadLetters, OnError, retry
from queenstream.pipeline.shorthand import tumbling
from tests.unit.engines.local.driving import NOW, Driven, Row, ignore, row, source


def halve(record: Row) -> Row:
    return {"n": record["n"] // record["by"]}


def failing(on_error: OnError | None, function: Any = halve, **options: Any) -> Driven:
    step = source().transform("halve", function, on_error=on_error, **options)
    return Driven(step.to(ignore, name="out"))


RECORDS = [{"n": 2, "by": 1}, {"n": 4, "by": 0}, {"n": 6, "by": 2}]


async def test_skip_leaves_one_record_out_and_counts_it() -> None:
    driven = failing("skip")
    assert await driven.send(*RECORDS) == [{"n": 2}, {"n": 3}]
    counts = driven.engine.counts["halve"]
    assert (counts.taken, counts.given, counts.failed) == (3, 2, 1)


async def test_what_nobody_chose_a_policy_for_ends_the_run() -> None:
    place = r"\w+\.py:\d+"
    with pytest.raises(StepFailed, match=place + r": halve failed on .*'n': 4, 'by': 0.*ZeroDivisionError"):
        await failing(None).send(*RECORDS)
    with pytest.raises(StepFailed, match=place + r": event_time failed on {'n': 1}"):
        await Driven(source().event_time("at").to(ignore, name="out")).send({"n": 1})
    driven = Driven(source().to(ignore, name="out"))
    with pytest.raises(StepFailed, match=place + r": in failed on '{bad'"):
        await driven.engine.process({"in": Batch([], failures=[("{bad", ValueError("no JSON"))])})
    with pytest.raises(StepFailed, match=place + r": out failed on {'n': 1}: ValueError: too large"):
        driven.engine.refused("out", {"n": 1}, ValueError("too large"), 1)


async def test_a_retry_ends_the_run_after_its_last_try() -> None:
    driven = failing("retry")
    with pytest.raises(StepFailed, match="halve failed on"):
        await driven.send(*RECORDS)
    assert driven.pauses == [1, 2, 4]


async def test_no_record_is_given_to_a_function_twice() -> None:
    seen = []

    def picky(record: Row) -> Row:
        seen.append(record["n"])
        raise ValueError("no")

    await failing("skip", picky).send(*({"n": n} for n in range(5)))
    assert seen == [0, 1, 2, 3, 4]


async def test_dead_letters_have_record_error_step_and_attempts() -> None:
    driven = failing(DeadLetters("failed"))
    assert await driven.send(*RECORDS) == [{"n": 2}, {"n": 3}]
    assert driven.letters == [
        {
            "record": {"n": 4, "by": 0},
            "error": "integer division or modulo by zero",
            "error_type": "ZeroDivisionError",
            "step": "halve",
            "attempts": 1,
            "pipeline": "test",
            "failed_at": NOW,
            "time": None,
            "key": None,
            "input": 0,
        }
    ]
    assert list(driven.last.dead_letters) == [("queue", "failed")]
    await driven.send({"n": 1, "by": 1})
    assert driven.letters == []


async def test_retries_have_growing_pauses_and_then_an_end() -> None:
    driven = failing(retry(3, delay="1s", max_delay="3s", then=DeadLetters("failed")))
    assert await driven.send(*RECORDS) == [{"n": 2}, {"n": 3}]
    assert driven.pauses == [1, 2, 3]
    assert [letter["attempts"] for letter in driven.letters] == [4]


@pytest.mark.parametrize("kind", ["plain", "threads", "async"])
async def test_a_retry_that_succeeds_keeps_the_records_place(kind: str) -> None:
    tries: dict[int, int] = {}

    def flaky(record: Row) -> Row:
        tries[record["n"]] = tries.get(record["n"], 0) + 1
        if record["n"] == 1 and tries[1] < 3:
            raise ConnectionError("away")
        return {"n": record["n"]}

    async def flaky_async(record: Row) -> Row:
        await asyncio.sleep(0)
        return flaky(record)

    function = flaky_async if kind == "async" else flaky
    driven = failing(retry(3, delay="1ms"), function, concurrency=1 if kind == "plain" else 2)
    assert await driven.send(*({"n": n} for n in range(3))) == [{"n": 0}, {"n": 1}, {"n": 2}]
    assert tries == {0: 1, 1: 3, 2: 1}
    assert driven.engine.counts["halve"].failed == 0
    driven.engine.close()


@pytest.mark.parametrize("concurrency", [1, 2])
async def test_fail_ends_the_pipeline_and_names_step_and_line(concurrency: int) -> None:
    driven = failing("fail", concurrency=concurrency)
    with pytest.raises(StepFailed, match=r"test_failures\.py:\d+: halve failed on .*ZeroDivisionError"):
        await driven.send(*RECORDS)
    driven.engine.close()


async def test_none_is_no_record() -> None:
    driven = failing(DeadLetters("failed"), lambda record: None)
    assert await driven.send({"n": 1}) == []
    assert "returned None" in driven.letters[0]["error"]


async def test_a_call_that_takes_too_long_is_an_error() -> None:
    async def hang(record: Row) -> Row:
        if record["n"] == 1:
            await asyncio.Event().wait()
        return record

    driven = failing(DeadLetters("failed"), hang, timeout="20ms", concurrency=2)
    assert await driven.send({"n": 0}, {"n": 1}, {"n": 2}) == [{"n": 0}, {"n": 2}]
    assert driven.letters[0]["error"] == "halve took longer than 20ms"
    assert driven.letters[0]["error_type"] == "TimeoutError"


async def test_a_timeout_of_the_functions_own_is_told_as_such() -> None:
    async def own(record: Row) -> Row:
        raise TimeoutError("the service said so")

    driven = failing(DeadLetters("failed"), own, timeout="10s")
    await driven.send({"n": 0})
    assert driven.letters[0]["error"] == "the service said so"


async def test_what_a_source_cannot_read_is_an_error_of_reading_it() -> None:
    driven = Driven(source().on_error(DeadLetters("failed")).to(ignore, name="out"))
    batch = Batch([{"n": 1}], failures=[("{bad", ValueError("line 3 is no JSON"))])
    outputs = await driven.engine.process({"in": batch})
    assert outputs.rows == {"out": [{"n": 1}]}
    [[letter]] = outputs.dead_letters.values()
    assert (letter["record"], letter["step"]) == ("{bad", "in")


async def test_a_record_that_a_users_aggregate_fails_on_is_in_none_of_them() -> None:
    strict = custom(
        lambda: 0, lambda held, value: held + int(value), lambda a, b: a + b, lambda held: held, "v"
    )
    pipeline = (
        source()
        .window(tumbling("1s"), time="at")
        .aggregate(n=count(), strict=strict, total=sum_("v"), on_error=DeadLetters("failed"))
        .to(ignore, name="out")
    )
    driven = Driven(pipeline)
    assert await driven.send({"at": 0, "v": 1}, {"at": 1, "v": "x"}, {"at": 2, "v": 4}) == []
    assert [letter["record"]["v"] for letter in driven.letters] == ["x"]
    assert await driven.finish() == [row(0, 1, n=2, strict=5, total=5)]


async def test_many_failures_are_a_few_lines_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    driven = failing("skip")
    await driven.send(*([RECORDS[1]] * 1000))
    assert len(caplog.records) == 10
    assert "ZeroDivisionError" in caplog.text


async def test_a_row_that_a_sink_refuses_is_an_error_of_writing_it() -> None:
    driven = Driven(source().to(ignore, name="out", on_error=DeadLetters("failed")))
    driven.engine.refused("out", {"n": 1}, ValueError("too large"), 2)
    [[letter]] = driven.engine.take().dead_letters.values()
    assert (letter["step"], letter["error"], letter["attempts"]) == ("out", "too large", 2)


def flaky(record: Row) -> Row:
    """Raises the error that the record names."""
    raise {"timeout": TimeoutError, "value": ValueError, "key": KeyError}[record["n"]]("no")


NAMES = ({"n": "timeout"}, {"n": "value"})


async def test_only_the_errors_that_are_listed_are_tried_again() -> None:
    policy = retry(2, delay="1s", on=(TimeoutError,), then=DeadLetters("failed"))
    driven = failing(policy, flaky)
    assert await driven.send(*NAMES) == []
    assert [(each["record"]["n"], each["attempts"]) for each in driven.letters] == [
        ("timeout", 3),
        ("value", 1),
    ]
    assert driven.pauses == [1, 2]


async def test_other_errors_have_an_end_of_their_own() -> None:
    policy = retry(0, on=TimeoutError, then=DeadLetters("failed"), otherwise="skip")
    driven = failing(policy, flaky)
    await driven.send(*NAMES)
    assert [each["record"]["n"] for each in driven.letters] == ["timeout"]
    assert (driven.engine.counts["halve"].failed, driven.engine.counts["halve"].dead_letters) == (2, 1)
    turned = failing(retry(0, on=TimeoutError, then="skip", otherwise=DeadLetters("failed")), flaky)
    await turned.send(*NAMES)
    assert [each["record"]["n"] for each in turned.letters] == ["value"]
    with pytest.raises(StepFailed, match=r"halve failed on {'n': 'value'}"):
        await failing(retry(0, on=TimeoutError, then="skip", otherwise="fail"), flaky).send(*NAMES)


async def test_a_function_chooses_by_the_error_and_the_record() -> None:
    def retryable(error: Exception, record: Row) -> bool:
        return isinstance(error, TimeoutError) and record["n"] == "timeout"

    driven = failing(retry(1, delay="1s", on=retryable, then=DeadLetters("failed"), otherwise="skip"), flaky)
    await driven.send(*NAMES)
    assert [(each["record"]["n"], each["attempts"]) for each in driven.letters] == [("timeout", 2)]


@pytest.mark.parametrize("most", [0, 1])
async def test_a_function_that_fails_itself_ends_the_run(most: int) -> None:
    policy = retry(most, on=lambda error, record: error.retryable, then="skip", otherwise="skip")
    with pytest.raises(StepFailed, match=r"halve failed on .*its error policy failed too: AttributeError"):
        await failing(policy, flaky).send(*NAMES)


async def test_a_callback_gets_each_error_once_with_its_record_and_step(
    caplog: pytest.LogCaptureFixture,
) -> None:
    called: list[tuple[str, Any, str]] = []

    def note(error: Exception, record: Any, step: str) -> None:
        called.append((type(error).__name__, record["n"], step))
        raise RuntimeError("nobody answers")

    driven = failing(retry(1, delay="1s", then="skip", callback=note), flaky)
    assert await driven.send(*NAMES) == []
    assert called == [("TimeoutError", "timeout", "halve"), ("ValueError", "value", "halve")]
    assert "nobody answers" in caplog.text
    whole = source().on_error("skip", callback=note).transform("halve", flaky).to(ignore, name="out")
    await Driven(whole).send({"n": "key"})
    assert called[2:] == [("KeyError", "key", "halve")]
    with pytest.raises(StepFailed):
        await Driven(source().on_error("fail", callback=note).event_time("at").to(ignore)).send({"n": 1})
    assert called[3:] == [("ValueError", 1, "event_time")]
