"""Files on Spark: read in the tasks, with the same records, order and end as on the local engine."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream import count, first, sum_, tumbling
from queenstream.engines.spark.run import SparkRun
from queenstream.errors import CheckpointError, ConfigError, StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import FileFormat, Files, Function
from queenstream.pipeline.engine_api import EngineName
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.state import State
from tests.integration.spark import files_job

pyarrow: Any = importlib.import_module("pyarrow")  # it has no types
parquet: Any = importlib.import_module("pyarrow.parquet")
orc: Any = importlib.import_module("pyarrow.orc")

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
FORMATS: tuple[FileFormat, ...] = ("ndjson", "csv", "parquet", "orc", "text")
SCHEMA = "user string, n bigint, at timestamp"
NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
LIMIT_SECONDS = 90.0


def write(path: Path, rows: list[Row]) -> None:
    """A file with these rows, placed whole, by other means than ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}")
    form = path.suffix[1:]
    if form == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), hidden, row_group_size=4)
    elif form == "orc":
        orc.write_table(pyarrow.Table.from_pylist(rows), hidden)
    elif form == "csv":
        lines = [",".join(rows[0]), *(",".join(f'"{value}"' for value in row.values()) for row in rows)]
        hidden.write_text("\r\n".join(lines) + "\r\n")
    elif form == "text":
        hidden.write_text("".join(f"{row['user']}\r\n" for row in rows))
    else:
        hidden.write_text("\n".join(json.dumps(row, default=str) for row in rows))  # the last line has no end
    hidden.rename(path)


def rows_of(*numbers: int, user: str = "a") -> list[Row]:
    return [{"user": f"{user} {n}", "n": n, "at": NOON.replace(minute=n % 60)} for n in numbers]


def three_files(folder: Path, form: FileFormat) -> None:
    """Placed in another order than that of their names."""
    for number, name in ((2, "c d"), (0, "a"), (1, "b")):
        write(folder / f"{name}.{form}", rows_of(*range(number * 10, number * 10 + 10)))
    write(folder / f"_hidden.{form}", rows_of(99))


def numbered(record: Row) -> Row:
    """A step in Python."""
    return {**record, "type": type(record.get("n")).__name__}


def seen(_: str, record: Row, state: State) -> Row:
    """A step with state, to which the order matters."""
    state.set("all", [*state.get("all", []), record.get("n", record.get("value"))])
    return {"all": state.get("all")}


def read(
    source: Files, engine: EngineName, build: Callable[[Pipeline[Any]], Any], **options: Any
) -> list[Row]:
    found: list[Row] = []
    build(Pipeline("read").source(source, on_error="skip")).to(found.append).run(
        engine=engine, summary=False, **options
    )
    return found


PLANS: dict[str, Callable[[Pipeline[Any]], Any]] = {
    "native": lambda p: p.filter("n % 3 <> 0").select("user", "n", "at"),
    "python": lambda p: p.transform("number", numbered),
    "stateful": lambda p: p.key_by(all=lambda _: 1).stateful(seen, name="seen"),
    "windows": lambda p: p.window(tumbling("10m"), time="at").aggregate(
        n=count(), total=sum_("n"), one=first("n")
    ),
}


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet", "orc"])
def test_both_engines_read_the_same(tmp_path: Path, form: FileFormat, plan: str) -> None:
    three_files(tmp_path / "in", form)
    source = Files(tmp_path / "in", format=form, schema=SCHEMA)
    expected = read(source, "local", PLANS[plan])
    assert len(expected) > 0
    assert read(source, "spark", PLANS[plan]) == expected
    one_by_one = Files(tmp_path / "in", format=form, schema=SCHEMA, max_files=1)
    assert read(one_by_one, "spark", PLANS[plan]) == expected


def test_text_is_read_by_lines(tmp_path: Path) -> None:
    for name, text in (("b", "3\r\n\r\n4"), ("a", "\ufeff1 ü\n2\n")):
        (tmp_path / f"{name}.txt").write_text(text, newline="")
    source = Files(f"{tmp_path}/*.txt")
    expected = [{"value": value} for value in ("1 ü", "2", "3", "", "4")]
    for build in (lambda p: p, lambda p: p.filter("value <> 'x'"), lambda p: p.map(dict)):
        assert read(source, "local", build) == expected
        assert read(source, "spark", build) == expected


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_lines_that_are_none_are_failures_with_their_place(tmp_path: Path, engine: EngineName) -> None:
    path = tmp_path / "in.ndjson"
    path.write_bytes(
        b'\xef\xbb\xbf{"n": 1}\n\n{"n": oops}\n[1]\n{"n": "\xff"}\n{"n": "x"}\r\n{"n": "2"}\n \n'
    )
    for schema in ("n int", None):
        found: list[Row] = []
        letters = DeadLetters(Files(tmp_path / f"dead {schema}", format="ndjson"), replay=False)
        Pipeline("bad").source(Files(path, schema=schema), on_error=letters).to(found.append).run(
            engine=engine, summary=False
        )
        assert found == [{"n": 1}, {"n": 2}] if schema else [{"n": 1}, {"n": "x"}, {"n": "2"}]
        told: list[Row] = []
        Pipeline("look").source(Files(tmp_path / f"dead {schema}", format="ndjson")).to(told.append).run(
            engine="local", summary=False
        )
        errors = sorted(each["error"] for each in told)
        places = [f"{path} line {line}: " for line in (3, 4, 5)]
        assert [each.partition(": ")[0] + ": " for each in errors if each.startswith(str(path))] == places
        assert sum("must be a whole number" in each for each in errors) == (schema is not None)


def test_quoted_values_may_hold_line_ends(tmp_path: Path) -> None:
    (tmp_path / "in.csv").write_bytes(b'id,text\r\n1,"a, ""b""\r\nc"\r\n2,\r\n3\r\n4,d\r\n')
    source = Files(tmp_path / "in.csv", schema="id int, text string")
    for build in (lambda p: p, lambda p: p.map(dict)):
        assert read(source, "spark", build) == read(source, "local", build)
    found: list[Row] = []
    with pytest.raises(StepFailed, match=r"in\.csv line 5: 1 values for 2 fields"):
        Pipeline("bad").source(source).to(found.append).run(summary=False)


def test_parquet_of_other_types_is_made_to_fit(tmp_path: Path) -> None:
    texts = pyarrow.table(
        {"n": ["1", "x", "3"], "at": pyarrow.array([0, 1_000, 2_000], pyarrow.timestamp("ns"))}
    )
    parquet.write_table(texts, tmp_path / "a.parquet")
    narrow = pyarrow.table({"n": pyarrow.array([4, None], pyarrow.int16()), "extra": [1, 2]})
    parquet.write_table(narrow, tmp_path / "b.parquet")
    source = Files(tmp_path, format="parquet", schema="n bigint, at timestamp")
    for build in (lambda p: p, lambda p: p.map(dict)):
        found = read(source, "spark", build)
        assert found == read(source, "local", build)
        assert [row["n"] for row in found] == [1, 3, 4, None]


def test_parquet_widens_without_python(tmp_path: Path) -> None:
    made = {
        "n": pyarrow.array([4, None], pyarrow.int16()),
        "x": pyarrow.array([0.5, 2.0], pyarrow.float32()),
        "i": pyarrow.array([1, 2], pyarrow.int32()),
        "at": pyarrow.array([1, 2], pyarrow.timestamp("ms")),
        "part": [{"b": [1, 2], "a": "x"}, None],
    }
    parquet.write_table(pyarrow.table(made), tmp_path / "a.parquet")
    part = "struct<a: string, b: array<bigint>, c: int>"
    schema = f"n bigint, x double, i double, at timestamp, part {part}, no date"
    source = Files(tmp_path, format="parquet", schema=schema)
    found: list[Row] = []
    run = Pipeline("read").source(source).filter("true").to(found.append).start(summary=False)
    run.wait()
    assert isinstance(run, SparkRun)
    assert "python" not in run.explain().lower()
    assert "InArrow" not in run.explain()
    assert found == read(source, "local", lambda p: p.filter("true"))
    assert read(source, "spark", lambda p: p.map(dict)) == found


@pytest.mark.parametrize("policy", ["skip", "fail", "letters"])
def test_a_field_that_must_be_there_is_asked_for_in_the_jvm(tmp_path: Path, policy: Any) -> None:
    write(
        tmp_path / "in" / "a.parquet", [{"user": "a", "n": 1}, {"user": None, "n": 2}, {"user": "c", "n": 3}]
    )
    dead: Any = DeadLetters(Files(tmp_path / "dead", format="ndjson"), replay=False)
    source = Files(tmp_path / "in", format="parquet", schema="user string not null, n bigint")
    found: list[Row] = []
    pipeline = Pipeline("read").source(source, on_error=dead if policy == "letters" else policy)
    run = pipeline.filter("n > 0").to(found.append).start(summary=False)
    if policy == "fail":
        with pytest.raises(StepFailed, match="user must be string and is required"):
            run.wait()
        assert found == []
        return
    run.wait()
    assert [row["n"] for row in found] == [1, 3]
    figures = run.get_stats()
    assert figures["steps.files:" + str(tmp_path / "in") + ".failed"] == 1
    if policy == "letters":
        lines = [
            line for file in (tmp_path / "dead").glob("part-*") for line in file.read_text().splitlines()
        ]
        [letter] = [json.loads(line) for line in lines]
        assert letter["record"] == {"user": None, "n": 2}
        assert "user must be string and is required" in letter["error"]


# The end, and what comes after it


def windows(folder: Path, to: Callable[[Row], object], form: FileFormat, **options: Any) -> Pipeline[Any]:
    source = Files(folder, format=form, schema=SCHEMA, **options)
    begun: Pipeline[Any] = PLANS["windows"](Pipeline("windows").source(source, name="in"))
    return begun.to(to)


@pytest.mark.parametrize("form", ["ndjson", "parquet"])
def test_windows_close_once_all_files_are_read(tmp_path: Path, form: FileFormat) -> None:
    three_files(tmp_path / "in", form)
    found: list[Row] = []
    state = str(tmp_path / "state")
    run = windows(tmp_path / "in", found.append, form, max_files=1).start(checkpoint=state, summary=False)
    run.wait()
    assert [(row["window_start"].minute, row["n"], row["one"]) for row in found] == [
        (0, 10, 0),
        (10, 10, 10),
        (20, 10, 20),
    ]
    figures = run.get_stats()
    assert figures["steps.in.taken"] == 30
    assert figures["batches"] >= 3
    found.clear()
    windows(tmp_path / "in", found.append, form, max_files=1).run(checkpoint=state, summary=False)
    assert found == []
    assert not [*(tmp_path / "state" / "windows" / "feed").rglob("0*.parquet")], "nothing was fed"
    write(tmp_path / "in" / f"d.{form}", rows_of(30))
    with pytest.raises(ConfigError, match="a source that had ended in this checkpoint has more"):
        windows(tmp_path / "in", found.append, form).run(checkpoint=state, summary=False)


@pytest.mark.parametrize("remote", [False, True], ids=["folder", "elsewhere"])
def test_late_records_of_files_are_counted(tmp_path: Path, elsewhere: str, remote: bool) -> None:
    write(tmp_path / "in" / "a.parquet", rows_of(30, 31))
    write(tmp_path / "in" / "b.parquet", rows_of(45, 46))
    write(tmp_path / "in" / "c.parquet", rows_of(1, 2, 47))
    found: list[Row] = []
    state = f"{elsewhere}/state" if remote else None
    run = windows(tmp_path / "in", found.append, "parquet", max_files=1).start(
        checkpoint=state, summary=False
    )
    run.wait()
    assert [row["n"] for row in found] == [2, 3]
    [late] = [value for name, value in run.get_stats().items() if name.endswith(".late") and value]
    assert late == 2


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", rows_of(1))
    state = str(tmp_path / "state")
    source = Files(tmp_path / "in", format="parquet", follow=True, schema=SCHEMA)
    pipeline = Pipeline("read").source(source).to(lambda row: None)
    pipeline.run(checkpoint=state, until="caught_up", summary=False)
    write(tmp_path / "in" / "a.parquet", rows_of(*range(100)))
    with pytest.raises(ConfigError, match=r"a\.parquet has \d+ bytes and had \d+ when it was read"):
        pipeline.run(checkpoint=state, until="caught_up", summary=False)


def test_a_checkpoint_with_files_that_the_driver_has_fed_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "in" / "a.parquet", rows_of(1))
    pipeline = Pipeline("read").source(Files(tmp_path / "in", format="parquet"), name="in").to(print)
    (tmp_path / "state" / "read" / "feed" / "in").mkdir(parents=True)
    (tmp_path / "state" / "read" / "feed" / "in" / "000000000000.parquet").touch()
    with pytest.raises(CheckpointError, match="was written by another version"):
        pipeline.run(checkpoint=str(tmp_path / "state"), summary=False)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("plan", ["native", "stateful"])
def test_a_folder_grows_while_a_run_reads_it(tmp_path: Path, plan: str) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.parquet", rows_of(1, 2))
    source = Files(tmp_path / "in", format="parquet", follow=True, schema=SCHEMA)
    found: list[Row] = []
    state = str(tmp_path / "state")
    pipeline = PLANS[plan](Pipeline("read").source(source)).to(found.append)
    run = pipeline.start(checkpoint=state, summary=False)
    until(lambda: len(found) == 2)
    write(tmp_path / "in" / "0.parquet", rows_of(4, 5))
    until(lambda: len(found) == 4)
    run.stop()
    run.wait()
    write(tmp_path / "in" / "1.parquet", rows_of(7))
    pipeline.run(checkpoint=state, until="caught_up", summary=False)
    if plan == "native":
        assert [row["n"] for row in found] == [1, 2, 4, 5, 7]
    else:
        assert found[-1] == {"all": [1, 2, 4, 5, 7]}


def test_a_path_with_nothing_is_an_error(tmp_path: Path) -> None:
    for place in (tmp_path / "no.parquet", f"{tmp_path}/*.parquet"):
        with pytest.raises(ConfigError, match="there is no file or folder"):
            Pipeline("read").source(Files(place, schema=SCHEMA)).to(print).run(summary=False)


def test_killed_anywhere_a_run_over_files_gives_what_an_undisturbed_one_does(tmp_path: Path) -> None:
    """Killed early, and again around the last batches, where the end is."""
    days = 8
    for number in range(days):
        rows = [
            {"n": number * 100 + each, "at": NOON + timedelta(minutes=number * 10 + each % 10)}
            for each in range(50)
        ]
        write(tmp_path / "in" / f"{number:02}.parquet", rows)
    commits = tmp_path / "state" / "summed" / "spark" / "commits"

    def done() -> int:
        return len([each for each in commits.glob("*") if each.name.isdecimal()])

    def run(kill_at: int) -> int:
        command = [sys.executable, "-m", "tests.integration.spark.files_job", str(tmp_path)]
        job = subprocess.Popen(command, start_new_session=True)
        try:
            until(lambda: job.poll() is not None or done() >= kill_at)
        finally:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
        return job.wait()

    assert run(2) == -signal.SIGKILL
    assert run(days - 1) in (0, -signal.SIGKILL)
    assert run(1_000) == 0
    found: list[Row] = []
    Pipeline("look").source(Files(tmp_path / "out", format="ndjson")).to(found.append).run(
        engine="local", summary=False
    )
    expected: list[Row] = []
    undisturbed = files_job.summed(tmp_path / "again")
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / "in").symlink_to(tmp_path / "in")
    undisturbed.run(engine="local", summary=False)
    Pipeline("look").source(Files(tmp_path / "again" / "out", format="ndjson")).to(expected.append).run(
        engine="local", summary=False
    )
    assert len(expected) == days

    def key(row: Row) -> str:
        return str(row["window_start"])

    assert sorted(found, key=key) == sorted(expected, key=key)


def test_parquet_that_spark_has_written_is_read_by_the_jvm(spark: SparkSession, tmp_path: Path) -> None:
    """Its times have another type than those of others."""
    made = spark.range(100).selectExpr("id as n", "timestamp_micros(id * 1000000) as at")
    made.write.parquet(str(tmp_path / "in"))
    found: list[Row] = []
    source = Files(tmp_path / "in", format="parquet", schema="n bigint, at timestamp")
    run = Pipeline("read").source(source).filter("n % 2 = 0").to(found.append).start(summary=False)
    run.wait()
    assert isinstance(run, SparkRun)
    assert "InArrow" not in run.explain()
    assert found == read(source, "local", lambda p: p.filter("n % 2 = 0"))


# Other file systems


@pytest.mark.parametrize("form", ["ndjson", "csv", "parquet", "orc"])
def test_other_file_systems_are_read(elsewhere: str, tmp_path: Path, form: FileFormat) -> None:
    three_files(tmp_path / "data", form)
    for plan in ("windows", "stateful"):
        expected = read(Files(tmp_path / "data", format=form, schema=SCHEMA), "local", PLANS[plan])
        for place in (elsewhere, f"{elsewhere}/*.{form}"):
            assert read(Files(place, format=form, schema=SCHEMA), "spark", PLANS[plan]) == expected


def test_failures_name_the_file_where_it_lies(elsewhere: str, tmp_path: Path) -> None:
    (tmp_path / "data" / "a.csv").write_text("n\n1\n2,3\n")
    with pytest.raises(StepFailed, match=rf"{elsewhere}/a\.csv line 3: 2 values for 1 fields"):
        Pipeline("read").source(Files(f"{elsewhere}/a.csv")).to(print).run(summary=False)


def test_a_manifest_and_state_may_be_elsewhere_too(elsewhere: str, tmp_path: Path) -> None:
    three_files(tmp_path / "data" / "in", "parquet")
    found: list[Row] = []
    state = f"{elsewhere}/state"
    for _ in range(2):
        windows(tmp_path / "data" / "in", found.append, "parquet", max_files=1).run(
            checkpoint=state, summary=False
        )
        assert [row["n"] for row in found] == [10, 10, 10]
    assert (tmp_path / "data" / "state" / "windows" / "feed" / "in" / "files.json").exists()


@pytest.mark.parametrize("plan", ["native", "python", "stateful", "windows"])
def test_rows_reach_all_sinks_by_a_checkpoint_that_is_elsewhere(
    elsewhere: str, tmp_path: Path, plan: str
) -> None:
    """The first try ends when some sinks have the batch; the second gives the others the same rows."""
    write(tmp_path / "data" / "in" / "a.parquet", rows_of(*range(200)))
    found: list[Row] = []
    broken = True

    def called(row: Row) -> None:
        if broken:
            raise ValueError("not yet")
        found.append(row)

    sinks = [Files(tmp_path / "lines", format="ndjson"), Files(tmp_path / "columns", format="parquet")]
    source = Files(tmp_path / "data" / "in", format="parquet", schema=SCHEMA)
    steps = PLANS[plan](Pipeline("read").source(source, name="in"))
    job = steps.to(*sinks, Function(called, name="called"))
    with pytest.raises(StepFailed, match="not yet"):
        job.run(checkpoint=f"{elsewhere}/state", summary=False)
    broken = False
    job.run(checkpoint=f"{elsewhere}/state", summary=False)
    numbers = sorted(json.dumps(row, default=str) for row in found)
    lines = [line for path in (tmp_path / "lines").glob("part-*") for line in path.read_text().splitlines()]
    columns = [
        row for path in (tmp_path / "columns").glob("part-*") for row in parquet.read_table(path).to_pylist()
    ]
    assert len(numbers) == len(lines) == len(columns) > 0
    assert sorted(json.dumps(row, default=str) for row in columns) == numbers
