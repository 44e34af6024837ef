"""Dead letters of a pipeline on Spark, in queues of a real broker: edited, and let in where they failed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from pyspark.sql import SparkSession

from queenstream import Queen
from queenstream.connectors.dead_letters import Letters
from queenstream.core import aggregates
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Memory, Queue
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import tumbling
from queenstream.pipeline.state import State
from queenstream.testing.brokers import TemporaryBroker
from tests.processes import Up
from tests.sparks import is_native

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


def summed(user: str, record: Row, state: State) -> Row:
    if record["n"] is None:
        raise ValueError("no number")
    state.set("sum", state.get("sum", 0) + record["n"])
    return {"user": user, "sum": state.get("sum")}


def parsed(record: Row) -> Row:
    return {**record, "n": None if record["n"] is None else int(record["n"])}


def test_letters_come_back_to_a_step_and_to_a_key(broker: TemporaryBroker, tmp_path: Path) -> None:
    rows: list[Row] = []
    pipeline = (
        Pipeline("sums")
        .source(Queue("numbers"))
        .key_by("user")
        .transform("parse", parsed)
        .stateful(summed, name="sum")
        .on_error(DeadLetters("failed"))
        .to(Function(rows.append, name="out"))
    )

    def run() -> Any:
        return pipeline.run(url=broker.address, checkpoint=str(tmp_path), until="caught_up")

    with broker.client() as queen:
        queen.queue("numbers").push(
            [{"user": "ann", "n": "1"}, {"user": "ann", "n": "two"}, {"user": "bob", "n": None}]
        )
        run()
        assert rows == [{"user": "ann", "sum": 1}]
        letters = Letters(queen, "failed")
        assert {letter.step: letter.key for letter in letters} == {"parse": "ann", "sum": "bob"}
        for letter in letters:
            letters.edit(letter, record={"n": "2" if letter.step == "parse" else 7})
        letters.replay(letters)
        ended = run()
        assert sorted(rows, key=lambda row: (row["user"], row["sum"])) == [
            {"user": "ann", "sum": 1},
            {"user": "ann", "sum": 3},
            {"user": "bob", "sum": 7},
        ]
        assert ended.get_stats()["steps.replay:failed.taken"] == 2
        assert not list(letters)
        run()
        assert len(rows) == 3


SCHEMA = "user string, amount decimal(20,2), at timestamp"


def put_back(queen: Queen, queue: str, letters: list[Row]) -> None:
    queen.queue(f"{queue}.replay").push(letters)


def test_plans_without_python_take_letters_back(
    broker: TemporaryBroker, spark: SparkSession, tmp_path: Path
) -> None:
    """At the source, at the step that reads the time, and at the sink; what is none of theirs goes back."""
    pipeline = (
        Pipeline("payments")
        .on_error(DeadLetters("bad"))
        .source(Queue("payments", schema=SCHEMA), name="in")
        .filter("amount > 0 or amount is null")
        .key_by("user")
        .event_time("at")
        .to(Queue("paid", partition_by="user"), name="out")
    )
    assert is_native(pipeline.plan(), spark)

    def run() -> Any:
        return pipeline.run(url=broker.address, checkpoint=str(tmp_path), until="caught_up")

    at = "2026-01-31T12:00:00Z"
    with broker.client() as queen:
        queen.queue("payments").push([
            {"user": "ann", "amount": 1, "at": at},
            {"user": "bob", "amount": "much", "at": at},
            {"user": "cyd", "amount": 3},
            {"user": None, "amount": 4, "at": at},
        ])  # fmt: skip
        run()
        letters = Letters(queen, "bad")
        assert sorted(letter.step for letter in letters) == ["event_time", "in", "out"]
        mended: dict[str, Row] = {"in": {"amount": 2}, "event_time": {"at": at}, "out": {"user": "dan"}}
        for letter in letters:
            letters.edit(letter, record={**letter.record, **mended[letter.step]})
        letters.replay(letters)
        put_back(queen, "bad", [
            {"pipeline": "payments", "step": "filter", "record": {"user": "eve"}},
            {"no": "letter"},
            {"pipeline": "another", "step": "in", "record": {"user": "gus", "amount": 9, "at": at}},
            {"pipeline": "payments", "step": "in", "record": {"user": "hal", "amount": "more"}, "time": at},
            {"pipeline": "payments", "step": "event_time", "record": {"user": "ida", "amount": 5}, "time": at,
             "key": "ida"},
        ])  # fmt: skip
        figures = run().get_stats()
        assert figures["steps.replay:bad.taken"] == 8
        assert figures["steps.replay:bad.failed"] == 2
        assert (figures["steps.in.failed"], figures["steps.event_time.failed"]) == (1, 1)
        assert (figures["steps.in.taken"], figures["steps.out.taken"]) == (0, 3)
        left = {letter.step: letter for letter in letters if letter.step != "replay:bad"}
        users = {step: letter.record["user"] for step, letter in left.items()}
        assert users == {"in": "hal", "event_time": "ida"}
        assert left["event_time"].key == "ida"
        errors = [letter.error for letter in letters if letter.step == "replay:bad"]
        assert len(errors) == 2
        known = "no step 'filter' takes letters back; edit the letter's step: in, event_time, out"
        assert any(known in each for each in errors)
        run()
        found = queen.queue("paid").group("all").batch(20).partitions(20).pop()
        paid = sorted((row.data["user"], float(row.data["amount"])) for row in found)
        assert paid == [("ann", 1), ("bob", 2), ("cyd", 3), ("dan", 4)]
        assert all(row.data["at"].startswith("2026-01-31T12:00:00") for row in found)


def test_a_record_that_comes_back_to_a_plan_without_python_closes_no_window(
    broker: TemporaryBroker, spark: SparkSession, tmp_path: Path
) -> None:
    rows: list[Row] = []
    pipeline = (
        Pipeline("sums")
        .on_error(DeadLetters("lost"))
        .source(Queue("amounts", schema=SCHEMA), name="in")
        .key_by("user")
        .event_time("at")
        .window(tumbling("1m"))
        .aggregate({"n": aggregates.count(), "total": aggregates.sum_("amount")}, step_name="sum")
        .to(Function(rows.append, name="rows"), name="out")
    )
    assert is_native(pipeline.plan(), spark)

    def amounts(*found: tuple[str, Any, str | None]) -> list[Row]:
        return [{"user": user, "amount": amount, "at": at} for user, amount, at in found]

    def run() -> Any:
        return pipeline.run(url=broker.address, checkpoint=str(tmp_path), until="caught_up")

    def minute(number: int) -> str:
        return f"2026-01-31T12:{number:02}:30Z"

    with broker.client() as queen:
        queen.queue("amounts").push(
            amounts(
                ("ann", 1, minute(10)), ("ann", "x", minute(10)), ("ann", 3, None), ("bob", "y", minute(50))
            )
        )
        run()
        letters = Letters(queen, "lost")
        mended: dict[str, Row] = {"x": {"amount": 2}, "y": {"amount": 9}, "3.00": {"at": minute(10)}}
        for letter in letters:
            letters.edit(letter, record={**letter.record, **mended[letter.record["amount"]]})
        letters.replay(letters)
        run()
        assert not list(letters)
        assert rows == []  # though what came back is of 12:50
        queen.queue("amounts").push(amounts(("bob", 1, minute(20))))
        run()
        run()
        assert [(row["user"], row["n"], row["total"]) for row in rows] == [("ann", 3, 6)]
        [late] = amounts(("ann", 7, minute(10)))
        put_back(queen, "lost", [
            {"pipeline": "sums", "step": "in", "record": late, "time": minute(10)},
            {"pipeline": "sums", "step": "out", "record": {"user": "eve", "n": 1, "total": "4"}},
        ])  # fmt: skip
        figures = run().get_stats()
        assert (figures["steps.sum.late"], figures["late"]) == (1, 1)
        assert len(rows) == 2
        assert (rows[1]["user"], rows[1]["n"]) == ("eve", 1)
        queen.queue("amounts").push(amounts(("bob", 1, "2026-01-31T13:00:00Z")))
        run()
        assert sorted((row["user"], row["n"], row["total"]) for row in rows[2:]) == [
            ("bob", 1, 1),
            ("bob", 1, 9),
        ]


def test_letters_come_back_to_a_side_of_a_join_and_beside_a_source_that_ends(
    broker: TemporaryBroker, spark: SparkSession, tmp_path: Path
) -> None:
    rows: list[Row] = []
    others: list[Row] = []
    minute = "2026-01-31T12:00:00Z"
    people = Pipeline("people").source(Queue("people", schema="who string, when timestamp"), name="people")
    joined = (
        Pipeline("joined")
        .on_error(DeadLetters("single"))
        .source(Queue("bought", schema=SCHEMA), name="bought")
        .event_time("at")
        .join(people.event_time("when"), on=("user", "who"), within="1m")
        .select("user", "amount")
        .to(Function(rows.append, name="rows"), name="out")
    )
    assert is_native(joined.plan(), spark)
    ends = (
        Pipeline("ends")
        .on_error(DeadLetters("left"))
        .source(Memory([{"user": "ann", "amount": 1}], schema=SCHEMA), name="in")
        .filter("amount > 0")
        .to(Function(others.append, name="all"), name="all")
        .select("user")
        .to(Function(others.append, name="users"), name="users")
    )
    assert is_native(ends.plan(), spark)
    with broker.client() as queen:
        queen.queue("bought").push([{"user": "ann", "amount": "x", "at": minute}])
        queen.queue("people").push([{"who": "ann", "when": minute}])
        joined.run(url=broker.address, checkpoint=str(tmp_path), until="caught_up")
        letters = Letters(queen, "single")
        for letter in letters:
            letters.edit(letter, record={**letter.record, "amount": 5})
        letters.replay(letters)
        joined.run(url=broker.address, checkpoint=str(tmp_path), until="caught_up")
        assert rows == [{"user": "ann", "amount": 5}]
        good = {"pipeline": "ends", "step": "in", "record": {"user": "bob", "amount": 2}, "time": minute}
        low = {"pipeline": "ends", "step": "in", "record": {"user": "cyd", "amount": -1}}
        put_back(queen, "left", [good, low, {**good, "step": "users", "record": {"user": "dan"}}])
        ends.run(url=broker.address)
        assert sorted((row["user"], row.get("amount")) for row in others if "amount" in row) == [
            ("ann", 1), ("bob", 2),
        ]  # fmt: skip
        assert sorted(row["user"] for row in others if "amount" not in row) == ["ann", "bob", "dan"]
        assert not list(Letters(queen, "left"))


@pytest.mark.parametrize("python", [False, True])
def test_rows_that_a_queue_refuses_are_letters_and_the_others_keep_their_order(
    broker: TemporaryBroker, tmp_path: Path, python: bool
) -> None:
    """Enough rows to be staged in several pieces."""
    events = [{"n": n, "lane": None if n % 1_000 == 500 else f"lane {n % 3}"} for n in range(7_000)]
    rows = Pipeline("lanes").source(Queue("events", schema="n bigint, lane string")).filter("n >= 0")
    if python:
        rows = rows.map(lambda row: {**row, "n": row["n"]})
    made = rows.to(Queue("lanes", partition_by="lane"), on_error=DeadLetters("refused"))
    with broker.client() as queen:
        for first in range(0, len(events), 1_000):
            queen.queue("events").push(events[first : first + 1_000])
        made.run(url=broker.address, checkpoint=str(tmp_path), until="caught_up", partitions=1)
        letters = [letter.record["n"] for letter in Letters(queen, "refused")]
        found: dict[str, list[int]] = {}
        while messages := queen.queue("lanes").group("all").batch(1_000).partitions(3).pop():
            for message in messages:
                found.setdefault(message.partition, []).append(message.data["n"])
            messages.ack()
    assert sorted(letters) == [*range(500, 7_000, 1_000)]
    assert found == {
        f"lane {lane}": [n for n in range(lane, 7_000, 3) if n % 1_000 != 500] for lane in range(3)
    }
    sinks = asyncio.run(noted_sinks(broker.database_url))
    assert any("dead-letters" in sink for sink in sinks), sinks  # the broker had nothing to do with it


async def noted_sinks(url: str) -> list[str]:
    """The sinks of which the database has stored batches that tasks had staged."""
    connection = await asyncpg.connect(url)
    try:
        return [row["sink"] for row in await connection.fetch("select distinct sink from queen.sink_batches")]
    finally:
        await connection.close()


def test_the_broker_gets_letters_where_its_database_is_not_known(empty_database_url: str) -> None:
    """A broker with a PostgreSQL of its own does not say where that is."""

    def fail(row: Row) -> Row:
        if row["n"] % 2:
            raise ValueError("odd")
        return row

    broker = Up("--pg", empty_database_url, "--port", "0")
    try:
        url = broker.ready()
        letters = DeadLetters("odd", replay=False)  # to read a queue, Spark has to know the database
        rows = Pipeline("half").source(Memory([{"n": n} for n in range(10)])).on_error(letters)
        rows.map(fail).to(Queue("even")).run(url=url)
        with Queen(url) as queen:
            assert sorted(letter.record["n"] for letter in Letters(queen, "odd")) == [1, 3, 5, 7, 9]
            assert queen.admin.queue("even").messages.total == 5
        assert asyncio.run(noted_sinks(empty_database_url)) == []
    finally:
        broker.stop()
