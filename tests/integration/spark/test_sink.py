"""Writing into queues with Spark: what becomes of rows, and that each is stored once whatever happens."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StringType, StructField, StructType

from queenstream.broker.storage.notifications import CHANNEL, Notice
from queenstream.broker.storage.sql import bind
from queenstream.engines.spark.datasource.options import sink_options
from queenstream.engines.spark.datasource.writers import QueenStreamWriter, QueenWriter, Staged, claim, store
from queenstream.errors import (
    CheckpointError,
    ConfigError,
    DatabaseUnusable,
    OwnershipLost,
    PayloadInvalid,
    QueueFull,
)
from tests.integration.spark.conftest import Queen, Sql

TEXTS = StructType([StructField("data", StringType()), StructField("partition", StringType())])


def writer(sql: Sql, **options: str) -> QueenWriter:
    """What a task and the driver call, without Spark."""
    return QueenWriter(sink_options({"queue": "out", "pg": sql.url, **options}), TEXTS, False)


def rows(*payloads: Any, partition: str | None = None) -> Iterator[pa.RecordBatch]:
    columns = {
        "data": [json.dumps(payload) for payload in payloads],
        "partition": [partition] * len(payloads),
    }
    yield pa.RecordBatch.from_pydict(
        columns, schema=pa.schema([("data", pa.string()), ("partition", pa.string())])
    )


def staged(sql: Sql) -> int:
    return int(sql.rows("select count(*) from queen.staged")[0][0])


# What becomes of rows


def test_columns_make_up_the_payload(spark: SparkSession, sql: Sql) -> None:
    frame = spark.sql(
        "select id as n, concat('user', id % 3) as partition, named_struct('a', array(id)) as deep, "
        "map('k', id) as pairs, timestamp'2026-01-02 03:04:05Z' as at, 1.50BD as price, "
        "cast(null as string) as none from range(6)"
    )
    frame.coalesce(1).write.format("queen").options(queue="out", pg=sql.url).mode("append").save()
    got = sql.stored("out")
    assert {name: [row["n"] for row in found] for name, found in got.items()} == {
        "user0": [0, 3], "user1": [1, 4], "user2": [2, 5]
    }  # fmt: skip
    assert got["user1"][0] == {
        "n": 1, "deep": {"a": [1]}, "pairs": {"k": 1}, "at": "2026-01-02T03:04:05Z", "price": 1.5,
        "none": None,
    }  # fmt: skip
    seqs = sql.rows("select p.name, array_agg(m.seq order by m.id) from queen.messages m "
                    "join queen.partitions p on p.id = m.partition_id group by 1 order by 1")  # fmt: skip
    assert seqs == [("user0", [1, 2]), ("user1", [1, 2]), ("user2", [1, 2])]
    assert sql.rows("select pushed from queen.queue_stats") == [(6,)]


def test_a_column_data_is_the_payload(spark: SparkSession, sql: Sql) -> None:
    kinds = {
        "text": "'[1, 2]'",
        "struct": "named_struct('a', id)",
        "variant": "parse_json('{\"a\": 1.25}')",
        "map": "map('a', cast(id as string))",
    }
    for name, value in kinds.items():
        frame = spark.sql(f"select {value} as data, 'u' as user from range(1)")
        frame.write.format("queen").options(queue=name, pg=sql.url, partitionBy="user").mode("append").save()
    assert {name: sql.stored(name) for name in kinds} == {
        "text": {"u": [[1, 2]]}, "struct": {"u": [{"a": 0}]}, "variant": {"u": [{"a": 1.25}]},
        "map": {"u": [{"a": "0"}]},
    }  # fmt: skip


def test_a_transaction_is_stored_once(spark: SparkSession, sql: Sql) -> None:
    frame = spark.sql(
        "select id as n, concat('t', id % 4) as transaction_id, 'trace' as trace_id from range(10)"
    )
    write = frame.coalesce(1).write.format("queen").options(queue="out", pg=sql.url, partition="p")
    for _ in range(2):
        write.mode("append").save()
    assert sql.stored("out") == {"p": [{"n": 0}, {"n": 1}, {"n": 2}, {"n": 3}]}
    assert sql.rows("select distinct trace_id from queen.messages") == [("trace",)]
    assert sql.rows("select sum(pushed)::int, sum(duplicates)::int from queen.queue_stats") == [(4, 16)]


def test_what_cannot_be_written_is_refused(spark: SparkSession, sql: Sql) -> None:
    sql.queue("secret", encryption_enabled=True)
    write = spark.range(1).write.format("queen").option("pg", sql.url)
    with pytest.raises(PySparkException, match="encrypted"):
        write.option("queue", "secret").mode("append").save()
    with pytest.raises(PySparkException, match="append"):
        write.option("queue", "out").mode("overwrite").save()
    one = writer(sql)
    bad = pa.RecordBatch.from_pydict({"data": ['{"a": 1'], "partition": ["p"]})
    with pytest.raises(PayloadInvalid, match="to_json"):
        one.write(iter([bad]))
    with pytest.raises(PayloadInvalid, match="partition's name"):
        one.write(rows(1, partition="x" * 300))
    with pytest.raises(ConfigError, match="no such column"):
        writer(sql, partitionBy="user")
    assert staged(sql) == 0


# Exactly once


def test_a_batch_is_stored_once_however_often_it_runs(sql: Sql) -> None:
    one = writer(sql, sink="job", batchId="7")
    for _ in range(3):
        one.commit([one.write(rows(1, 2)), one.write(rows(3))])
    assert sql.stored("out") == {"Default": [1, 2, 3]}
    assert sql.rows("select sink, batch_id, messages from queen.sink_batches") == [("job", 7, 3)]
    assert staged(sql) == 0
    following = writer(sql, sink="job", batchId="8")
    following.commit([following.write(rows(4))])
    other = writer(sql, sink="other", batchId="7")
    other.commit([other.write(rows(5))])
    assert sql.stored("out") == {"Default": [1, 2, 3, 4, 5]}


def test_a_batch_older_than_what_is_stored_is_refused(sql: Sql) -> None:
    """However long ago it was: a number that was used once is never taken for a new batch."""
    for number in range(1, 106):
        one = writer(sql, sink="job", batchId=str(number))
        one.commit([one.write(rows(number))])
    for number in (1, 3, 105):
        again = writer(sql, sink="job", batchId=str(number))
        staged_again = again.write(rows(f"{number} again"))
        if number == 105:  # the last one is known, and changes nothing
            again.commit([staged_again])
        else:
            with pytest.raises(CheckpointError, match=f"batch {number} of sink job comes after batch 105"):
                again.commit([staged_again])
    assert sql.stored("out") == {"Default": [*range(1, 106)]}


def test_a_run_that_lost_its_sink_stores_nothing_more(sql: Sql) -> None:
    def commit(batch: int, value: str, token: str) -> None:
        one = writer(sql, sink="job", batchId=str(batch))
        store(sql.url, "out", [one.write(rows(value))], batch, once=True, token=token)

    claim(sql.url, "job", 1, "first", "process 1 on host-a", temporary=False)
    commit(1, "of the first run", "first")
    claim(sql.url, "job", 2, "second", "process 2 on host-b", temporary=False)
    with pytest.raises(OwnershipLost, match="process 2 on host-b has taken over the sink"):
        commit(2, "of the first run, which was paused", "first")
    with pytest.raises(OwnershipLost, match="process 2 on host-b"):
        commit(2, "of a program that has claimed nothing", "")
    commit(2, "of the second run", "second")
    for epoch, token in ((1, "first"), (2, "of a copy of the folder")):
        with pytest.raises(OwnershipLost, match="process 2 on host-b"):
            claim(sql.url, "job", epoch, token, "process 3 on host-c", temporary=False)
    claim(sql.url, "job", 2, "second", "process 2 on host-b", temporary=False)  # again: it is its own
    assert sql.stored("out") == {"Default": ["of the first run", "of the second run"]}


def test_only_the_winning_attempts_count_and_the_others_are_cleaned_up(sql: Sql) -> None:
    one = writer(sql, sink="job", batchId="1")
    lost = one.write(rows("lost"))
    won = one.write(rows("won"))
    assert lost.attempt != won.attempt
    one.commit([won])
    assert sql.stored("out") == {"Default": ["won"]}
    assert staged(sql) == 0
    one.write(rows("late"))  # a task that did not hear of the end
    following = writer(sql, sink="job", batchId="2")
    following.commit([following.write(rows("next"))])
    assert sql.stored("out") == {"Default": ["won", "next"]}
    assert staged(sql) == 0


def test_what_was_staged_and_lost_fails_the_commit(sql: Sql) -> None:
    """A crash of PostgreSQL empties tables that are not logged."""
    one = writer(sql, sink="job", batchId="1")
    before = [one.write(rows(1)), one.write(rows(2))]
    sql.rows("truncate queen.staged")
    after = one.write(rows(3))
    with pytest.raises(DatabaseUnusable, match="run again"):
        one.commit([*before, after])
    assert sql.stored("out") == {}
    assert sql.rows("select * from queen.sink_batches") == []
    one.commit([one.write(rows(1)), one.write(rows(2)), one.write(rows(3))])
    assert sql.stored("out") == {"Default": [1, 2, 3]}


def test_a_batch_that_fails_leaves_nothing(sql: Sql) -> None:
    one = writer(sql, sink="job", batchId="1")
    one.abort([one.write(rows(1)), None])
    assert staged(sql) == 0
    sql.queue("out", max_size=3)
    with pytest.raises(QueueFull, match="maxSize"):
        one.commit([one.write(rows(1, 2)), one.write(rows(3, 4))])
    assert sql.stored("out") == {}
    one.commit([one.write(rows(1, 2, 3))])
    assert sql.stored("out") == {"Default": [1, 2, 3]}


def test_the_order_of_tasks_is_kept_whatever_came_first(sql: Sql) -> None:
    one = writer(sql)
    second = one.write(rows(3, 4))
    first = one.write(rows(1, 2))
    one.commit([Staged(second.sink, 1, second.attempt, 2), Staged(first.sink, 0, first.attempt, 2)])
    assert sql.stored("out") == {"Default": [1, 2, 3, 4]}


def test_large_batches_go_in_pieces(sql: Sql) -> None:
    one = writer(sql)
    many = list(range(45_000))
    large = ["x" * 1_000_000] * 12
    done = [one.write(rows(*many, partition="many")), one.write(rows(*large, partition="large"))]
    assert sql.rows("select count(*) from queen.staged") == [(5,)]
    one.commit([*done])
    assert sql.stored("out") == {"many": many, "large": large}


def test_brokers_are_told_after_the_commit(sql: Sql) -> None:
    listening = sql.connect()
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def listen() -> None:
        await listening.add_listener(CHANNEL, lambda *notice: heard.put_nowait(notice[3]))

    sql.runner.run(listen())
    one = writer(sql)
    one.commit([one.write(rows(1))])

    async def first() -> str:
        async with asyncio.timeout(30):
            return await heard.get()

    assert msgspec.json.decode(sql.runner.run(first()), type=Notice).ready == ["out"]


def test_groups_that_wait_get_what_was_written(sql: Sql) -> None:
    """A cursor that rests is woken by the same transaction."""
    sql.push("out", [0])
    sql.rows(bind("select queen.ensure_group(1, 'g', 'all', null)"))
    sql.rows(
        "update queen.cursors set ready_at = null, acked_seq = 1, "
        "acked_id = (select max(id) from queen.messages)"
    )
    one = writer(sql)
    one.commit([one.write(rows(1))])
    assert sql.rows("select ready_at is not null from queen.cursors") == [(True,)]


# Queries


def copy(queen: Queen, checkpoint: Path) -> None:
    """From one queue to another, partition by partition."""
    query = (
        queen.stream(queue="in", schema="STRING", maxRowsPerBatch="30", endingOffsets="latest")
        .select("data", "partition").writeStream.format("queen")
        .options(queue="out", pg=queen.url, checkpointLocation=str(checkpoint)).start()
    )  # fmt: skip
    query.processAllAvailable()
    query.stop()


def test_a_query_copies_a_queue_exactly_once(sql: Sql, queen: Queen, tmp_path: Path) -> None:
    for number in range(10):
        sql.push("in", [number * 10 + n for n in range(10)], f"p{number % 3}")
    copy(queen, tmp_path)
    assert sql.stored("out") == sql.stored("in")
    # Killed after the sink's commit, before Spark had noted it: the last batch runs again.
    last = max(int(path.name) for path in (tmp_path / "commits").glob("[0-9]*"))
    for path in (tmp_path / "commits").glob(f"*{last}*"):
        path.unlink()
    sql.push("in", ["new"], "p0")
    copy(queen, tmp_path)
    assert sql.stored("out") == sql.stored("in")
    [(sinks, batches)] = sql.rows("select count(distinct sink), count(*) from queen.sink_batches")
    assert (sinks, batches) == (1, last + 2)


def test_a_task_that_fails_in_the_middle_stores_nothing_twice(spark: SparkSession, sql: Sql) -> None:
    """The write fails on one row, for good; then it succeeds without it."""
    sql.queue("out")
    bad = (
        spark.range(100).selectExpr("if(id = 77, '{', to_json(named_struct('n', id))) as data").repartition(2)
    )
    write = bad.write.format("queen").options(queue="out", pg=sql.url, sink="job", batchId="1").mode("append")
    with pytest.raises(PySparkException, match="is not JSON"):
        write.save()
    assert sql.stored("out") == {}
    good = bad.where("data <> '{'")
    good.write.format("queen").options(queue="out", pg=sql.url, sink="job", batchId="1").mode("append").save()
    assert Counter(row["n"] for row in sql.stored("out")["Default"]) == Counter(
        n for n in range(100) if n != 77
    )
    assert staged(sql) == 0


def test_a_stream_writer_needs_no_name(sql: Sql) -> None:
    """Its name is that of the query, which only a task knows."""
    with pytest.raises(ConfigError, match="where to write"):
        QueenStreamWriter(sink_options({"pg": sql.url}), TEXTS, False)
