"""Runs of the local engine as users start them: to their end, until stopped, killed, failed."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Unpack

import pytest

from queenstream.connectors import Context, Reader, Writer, reader_for, writer_for
from queenstream.core.aggregates import count
from queenstream.engines.local.checkpoints.store import open_store
from queenstream.engines.local.run import LocalRun, start
from queenstream.errors import BufferFull, CheckpointError, ConfigError, RunAborted, StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Generator, Memory, Sink, Source
from queenstream.pipeline.engine_api import RunKeywords, RunOptions
from queenstream.pipeline.policies import DeadLetters, retry
from queenstream.pipeline.shorthand import tumbling
from tests.integration.local.collecting import Collected
from tests.processes import without_summaries

ROOT = Path(__file__).parents[3]
Row = dict[str, Any]


def numbers(total: int) -> list[Row]:
    return [{"n": n, "at": n * 1000} for n in range(total)]


class Tap:
    """A source that the test opens: it gives what it is told to, and waits for more."""

    def __init__(self) -> None:
        self._records: list[Row] = []
        self._more = threading.Condition()
        self._closed = False

    def give(self, *records: Row) -> None:
        with self._more:
            self._records += records
            self._more.notify_all()

    def close(self) -> None:
        with self._more:
            self._closed = True
            self._more.notify_all()

    def _next(self, taken: int) -> Row | None:
        with self._more:
            self._more.wait_for(lambda: self._closed or len(self._records) > taken)
            return self._records[taken] if len(self._records) > taken else None

    def source(self, name: str = "tap") -> Generator[Row]:
        def read(taken: int) -> Iterator[Row]:
            while (record := self._next(taken)) is not None:
                taken += 1
                yield record

        return Generator(read, name=name, endless=True)


def started(pipeline: Pipeline[Any], **options: Unpack[RunKeywords]) -> LocalRun:
    return start(pipeline.plan(), RunOptions.of(options))


def test_a_bounded_run_ends_by_itself_and_closes_its_windows() -> None:
    rows: list[Row] = []
    pipeline = (
        Pipeline("test")
        .source(Memory(numbers(25_000)))
        .window(tumbling("10000s"), time="at")
        .aggregate(n=count())
        .to(rows.append)
    )
    run = pipeline.run(engine="local")
    assert [row["n"] for row in rows] == [10_000, 10_000, 5_000]
    stats = run.get_stats()
    assert stats["messages"] == 25_000
    assert stats["live"] == 1
    assert stats["steps.aggregate.taken"] == 25_000
    assert 0 < stats["latency_p50_ms"] <= stats["latency_p99_ms"]


def test_async_steps_and_sinks() -> None:
    rows: list[Row] = []

    async def twice(record: Row) -> Row:
        await asyncio.sleep(0)
        return {"n": record["n"] * 2}

    async def keep(row: Row) -> None:
        await asyncio.sleep(0)
        rows.append(row)

    Pipeline("test").source(Memory(numbers(100))).transform("twice", twice, concurrency=8).to(keep).run(
        engine="local"
    )
    assert [row["n"] for row in rows] == [2 * n for n in range(100)]


@pytest.mark.parametrize("home", ["folder", "postgresql"])
def test_stopped_and_started_again_it_goes_on(
    home: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    where = str(tmp_path) if home == "folder" else request.getfixturevalue("empty_database_url")
    tap, windows, all_rows = Tap(), Collected(), Collected()
    pipeline = (
        Pipeline("test")
        .source(tap.source())
        .to(all_rows)
        .window(tumbling("10s"), time="at")
        .aggregate(n=count())
        .to(windows)
    )
    tap.give(*numbers(15))
    run = started(pipeline, checkpoint=where)
    windows.wait_for(1)
    run.stop()
    assert run.wait(30)
    tap.give(*numbers(35)[15:])
    again = started(pipeline, checkpoint=where)
    windows.wait_for(3)
    tap.close()
    assert again.wait(30)
    assert [row["n"] for row in windows.rows] == [10, 10, 10, 5]
    assert [row["n"] for row in all_rows.rows] == list(range(35))


def test_going_back_to_an_older_checkpoint(tmp_path: Path) -> None:
    tap, rows = Tap(), Collected()
    pipeline = Pipeline("test").source(tap.source()).to(rows)
    for total in (3, 5):
        tap.give(*numbers(total)[len(rows.rows) :])
        run = started(pipeline, checkpoint=str(tmp_path))
        rows.wait_for(total)
        run.stop()
        run.wait(30)
    tap.close()

    async def ids() -> list[str]:
        store = open_store(tmp_path, "test")
        try:
            return [info.id for info in await store.checkpoints() if info.clean]
        finally:
            await store.close()

    newest, older = asyncio.run(ids())
    started(pipeline, checkpoint=str(tmp_path), from_checkpoint=older).wait(30)
    assert [row["n"] for row in rows.rows] == [0, 1, 2, 3, 4, 3, 4]
    with pytest.raises(CheckpointError):
        started(pipeline, checkpoint=str(tmp_path), from_checkpoint=newest).wait(30)


def test_two_runs_of_one_checkpoint(tmp_path: Path) -> None:
    tap, rows = Tap(), Collected()
    pipeline = Pipeline("test").source(tap.source()).to(rows)
    tap.give({"n": 1})
    run = started(pipeline, checkpoint=str(tmp_path))
    rows.wait_for(1)
    with pytest.raises(CheckpointError):
        started(pipeline, checkpoint=str(tmp_path)).wait(30)
    run.stop()
    assert run.wait(30)


def test_caught_up_is_an_end_and_leaves_windows_open(tmp_path: Path) -> None:
    tap, rows = Tap(), Collected()
    tap.give(*numbers(15))
    pipeline = (
        Pipeline("test").source(tap.source()).window(tumbling("10s"), time="at").aggregate(n=count()).to(rows)
    )
    pipeline.run(engine="local", checkpoint=str(tmp_path), until="caught_up")
    assert [row["n"] for row in rows.rows] == [10]
    tap.give(*numbers(20)[15:], {"n": 20, "at": 20_000})
    pipeline.run(engine="local", checkpoint=str(tmp_path), until="caught_up")
    assert [row["n"] for row in rows.rows] == [10, 10]
    tap.close()


def test_an_interval_puts_many_batches_into_one_checkpoint(tmp_path: Path) -> None:
    rows: list[Row] = []
    pipeline = Pipeline("test").source(Memory(numbers(50_000))).to(Function(rows.extend, batch=True))
    pipeline.run(engine="local", checkpoint=str(tmp_path), interval="1h")
    assert len(rows) == 50_000

    async def newest() -> int:
        store = open_store(tmp_path, "test")
        try:
            return (await store.checkpoints())[0].epoch
        finally:
            await store.close()

    assert asyncio.run(newest()) == 1


def test_a_source_that_is_quiet_for_its_idle_timeout_holds_nothing_back() -> None:
    busy, quiet, rows = Tap(), Tap(), Collected()
    pipeline = (
        Pipeline("test")
        .source(busy.source("busy"))
        .event_time("at")
        .union(Pipeline("other").source(quiet.source("quiet"), idle_timeout="50ms").event_time("at"))
        .window(tumbling("10s"))
        .aggregate(n=count())
        .to(rows)
    )
    busy.give(*numbers(11))
    run = started(pipeline)
    rows.wait_for(1)
    assert rows.rows[0]["n"] == 10
    run.stop()
    busy.close()
    quiet.close()
    assert run.wait(30)


# Failures


def test_what_makes_a_run_fail_is_raised_by_wait() -> None:
    pipeline = (
        Pipeline("test")
        .source(Memory([{"n": 0}]))
        .transform("divide", lambda r: 1 // r["n"], on_error="fail")
        .to(print)
    )
    with pytest.raises(StepFailed, match="divide failed"):
        pipeline.run(engine="local")


def test_a_source_that_raises_ends_the_run() -> None:
    def broken() -> Iterator[Row]:
        yield {"n": 1}
        raise OSError("the line is dead")

    rows: list[Row] = []
    with pytest.raises(OSError, match="the line is dead"):
        Pipeline("test").source(broken).to(rows.append).run(engine="local")
    assert rows == [{"n": 1}]


@pytest.mark.parametrize(
    ("options", "told"),
    [({"master": "spark://x"}, "no master"), ({"from_checkpoint": "x"}, "add checkpoint=")],
)
def test_options_that_make_no_sense_are_refused_at_once(options: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        started(Pipeline("test").source(Memory([{"n": 0}])).to(print), **options)


def test_what_nobody_can_read_or_write_is_refused_at_once() -> None:
    class Own(Memory[Any]):
        pass

    class OwnSink(Function):
        pass

    with pytest.raises(ConfigError, match=r"a Own is not one of Cassandra, Files, .*Stream"):
        started(Pipeline("test").source(Own([])).to(print))
    with pytest.raises(ConfigError, match=r"a OwnSink is not one of Cassandra, Files, .*Queue"):
        started(Pipeline("test").source(Memory([])).to(OwnSink(print)))


def test_rows_that_a_sink_refuses_follow_the_policy_of_their_step() -> None:
    tries: list[int] = []
    letters: list[Row] = []

    def picky(row: Row) -> None:
        tries.append(row["n"])
        if row["n"] == 1 or (row["n"] == 2 and tries.count(2) == 1):
            raise ValueError("not this one")

    on_error = retry(2, delay="1ms", then=DeadLetters(Function(letters.append)))
    Pipeline("test").source(Memory(numbers(4))).to(picky, on_error=on_error).run(engine="local")
    assert sorted(tries) == [0, 1, 1, 1, 2, 2, 3]
    assert [(letter["record"]["n"], letter["attempts"], letter["error"]) for letter in letters] == [
        (1, 3, "not this one")
    ]


def test_rows_that_a_sink_refuses_are_tried_again_by_their_error() -> None:
    tries: list[int] = []
    letters: list[Row] = []

    def picky(row: Row) -> None:
        tries.append(row["n"])
        raise TimeoutError("away") if row["n"] == 1 else ValueError("wrong")

    on_error = retry(2, delay="1ms", on=TimeoutError, then=DeadLetters(Function(letters.append)))
    Pipeline("test").source(Memory(numbers(3))).to(picky, on_error=on_error).run(engine="local")
    assert sorted(tries) == [0, 1, 1, 1, 2]
    assert sorted((letter["record"]["n"], letter["attempts"]) for letter in letters) == [
        (0, 1),
        (1, 3),
        (2, 1),
    ]


def test_stop_before_the_first_record() -> None:
    tap = Tap()
    run = started(Pipeline("test").source(tap.source()).to(print))
    assert not run.wait(0)
    run.stop()
    assert run.wait(30)
    tap.close()


def test_a_second_stop_ends_a_run_that_hangs() -> None:
    entered = threading.Event()

    async def hang(row: Row) -> None:
        entered.set()
        await asyncio.Event().wait()

    run = started(Pipeline("test").source(Memory(numbers(1))).to(hang))
    assert entered.wait(30)
    run.stop()
    assert not run.wait(0.05)
    run.stop()
    with pytest.raises(RunAborted):
        run.wait(30)


# Backpressure


def test_a_slow_sink_slows_the_source() -> None:
    given = taken = furthest = 0

    def source() -> Iterator[Row]:
        nonlocal given
        for n in range(200_000):
            given += 1
            yield {"n": n}

    def sink(rows: list[Row]) -> None:
        nonlocal taken, furthest
        furthest = max(furthest, given - taken)
        taken += len(rows)

    Pipeline("test").source(source).to(Function(sink, batch=True)).run(engine="local")
    assert taken == 200_000
    # What waits in front, the batch that is worked on, the one that is delivered, and one at the door.
    assert furthest <= 40_000


def test_a_source_that_does_not_wait_drops_and_says_so() -> None:
    blocked, all_given = threading.Event(), threading.Event()
    rows: list[Row] = []

    async def firehose() -> AsyncIterator[Row]:
        for n in range(60_000):
            yield {"n": n}
        all_given.set()

    def sink(batch: list[Row]) -> None:
        blocked.set()
        assert all_given.wait(30)
        rows.extend(batch)

    pipeline = Pipeline("test").source(Generator(firehose), backpressure="drop_oldest", threshold=5_000)
    run = started(pipeline.to(Function(sink, batch=True)))
    assert run.wait(60)
    assert blocked.is_set()
    stats = run.get_stats()
    assert stats["dropped"] > 0
    assert len(rows) + stats["dropped"] == 60_000
    assert rows[-1] == {"n": 59_999}
    assert [pressure.on for pressure in run.pressures][:2] == [True, False]


def test_a_source_that_does_not_wait_may_also_fail() -> None:
    all_given = threading.Event()

    async def firehose() -> AsyncIterator[Row]:
        try:
            for n in range(60_000):
                yield {"n": n}
        finally:
            all_given.set()

    pipeline = Pipeline("test").source(Generator(firehose), backpressure="error", threshold=100)
    with pytest.raises(BufferFull):
        pipeline.to(Function(lambda rows: all_given.wait(2), batch=True)).run(engine="local")


# Figures


def test_metrics_for_prometheus() -> None:
    run = started(Pipeline("test").source(Memory(numbers(10))).to(lambda row: None))
    assert run.wait(30)
    port = run.serve_metrics()
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'queen_pipeline_messages_total{pipeline="test"} 10.0' in text
    assert 'queen_pipeline_step_taken_total{pipeline="test",step="memory"} 10.0' in text


def test_metrics_have_a_path_of_their_own() -> None:
    run = started(Pipeline("test").source(Memory(numbers(1))).to(lambda row: None))
    address = f"http://127.0.0.1:{run.serve_metrics(path='/figures')}"
    with urllib.request.urlopen(f"{address}/figures?all=1", timeout=10) as answer:
        assert b"queen_pipeline_messages_total" in answer.read()
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}/metrics", timeout=10)
    with pytest.raises(ConfigError, match="write it from the root"):
        run.serve_metrics(path="figures")
    assert run.wait(30)


def test_what_is_checked_before_a_run_has_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens: list[str | None] = []

    def reading(source: Source[Any], context: Context) -> Reader:
        tokens.append(context.token)
        return reader_for(source, context)

    def writing(sink: Sink, context: Context) -> Writer:
        tokens.append(context.token)
        return writer_for(sink, context)

    monkeypatch.setattr("queenstream.engines.local.run.reader_for", reading)
    monkeypatch.setattr("queenstream.engines.local.run.writer_for", writing)
    numbered = Pipeline("test").source(Memory(numbers(1)))
    numbered.to(lambda row: None).run(engine="local", token="secret")
    assert tokens == ["secret", "secret"]


def test_map_foreach_and_print_are_a_whole_pipeline(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[int] = []
    begin = Pipeline("test").source(Memory(numbers(3)))
    doubled = begin.map(lambda row: {"n": row["n"] * 2}).print("twice").filter("n > 0")
    doubled.foreach(lambda row: seen.append(row["n"])).run(engine="local")
    begin.print().run(engine="local")
    assert seen == [2, 4]
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f'twice: {{"n":{n}}}' for n in (0, 2, 4)] + [
        f'{{"n":{n},"at":{n * 1000}}}' for n in range(3)
    ]


def test_a_function_gets_no_more_rows_than_it_wants() -> None:
    sizes: list[int] = []
    sink = Function(lambda rows: sizes.append(len(rows)), batch_size=500)
    Pipeline("test").source(Memory(numbers(1_200))).to(sink).run(engine="local")
    assert sum(sizes) == 1_200
    assert max(sizes) <= 500


# Processes


class Job:
    """The pipeline of job.py, in a process of its own."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.integration.local.job", str(folder), *map(str, arguments)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines(self, so_many: int) -> int:
        """Wait for so many lines, or for its end; how many there were."""
        assert self.process.stdout is not None
        for seen in range(so_many):
            if not self.process.stdout.readline():
                return seen
        return so_many

    def end(self, number: int | None = None) -> tuple[int, str]:
        """Send it a signal, if there is one to send; its exit code and what it complained about.

        Its summary is no complaint.
        """
        if number is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, without_summaries(errors)


def written(folder: Path, name: str) -> list[Row]:
    return [
        json.loads(line)
        for path in sorted((folder / name).glob("part-*"))
        for line in path.read_text("utf-8").splitlines()
    ]


def check_outcome(folder: Path, total: int) -> None:
    """What an undisturbed run gives."""
    totals = written(folder, "totals")
    assert [row["n"] for row in totals] == list(range(total))
    assert len({row["tag"] for row in totals}) == total
    sums: dict[int, int] = {}
    for row in totals:
        sums[row["user"]] = sums.get(row["user"], 0) + row["n"]
        assert row["total"] == sums[row["user"]]
    windows = written(folder, "windows")
    found = sorted((row["user"], row["window_start"], row["n"], row["total"]) for row in windows)
    expected: dict[tuple[int, int], list[int]] = {}
    for n in range(total):
        expected.setdefault((n % 7, n // 100), []).append(n)
    assert [(user, n, total) for user, _, n, total in found] == [
        (user, len(inside), sum(inside)) for (user, _), inside in sorted(expected.items())
    ]
    assert sum(row["n"] for row in written(folder, "sessions")) == total


@pytest.mark.slow
def test_killed_again_and_again_the_sinks_hold_what_an_undisturbed_run_gives(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")  # noqa: T201 - for whoever has to find out
    chance = random.Random(seed)
    total = 3_000
    for _ in range(100):
        job = Job(tmp_path, total, 0.002)
        wanted = chance.randrange(1, 12)
        if job.lines(wanted) < wanted:
            code, errors = job.end()
            assert (code, errors) == (0, "")
            break
        assert job.end(signal.SIGKILL)[0] == -signal.SIGKILL
    else:
        pytest.fail("it never came to its end")
    check_outcome(tmp_path, total)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_a_process_gently(number: int, tmp_path: Path) -> None:
    job = Job(tmp_path, 100_000, 0.01)
    assert job.lines(3) == 3
    assert job.end(number) == (0, "")
    first = len(written(tmp_path, "totals"))
    assert 0 < first < 100_000
    again = Job(tmp_path, first + 100)
    assert again.end() == (0, "")
    check_outcome(tmp_path, first + 100)
