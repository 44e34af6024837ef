"""Files that a pipeline on Spark writes: staged by tasks, with what the local engine would write."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream import count, sum_, tumbling
from queenstream.engines.spark.run import SparkRun
from queenstream.errors import RunFailed, StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import FileFormat, Files, Function
from queenstream.pipeline.engine_api import EngineName
from queenstream.pipeline.errors import PipelineError
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.state import State

pyarrow: Any = importlib.import_module("pyarrow")  # it has no types
parquet: Any = importlib.import_module("pyarrow.parquet")

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
WRITTEN: tuple[FileFormat, ...] = ("ndjson", "csv", "parquet")
NOON = datetime(2026, 1, 31, 12, 0, 0, 120, tzinfo=UTC)
SCHEMA = (
    "n bigint, user string, flag boolean, x double, price decimal(10,2), at timestamp, day date, raw binary, "
    "tags array<string>, who struct<name: string, at: timestamp>"
)


def some_row(n: int) -> Row:
    """Values whose text is easy to get wrong, and in every other row none."""
    if n % 2:
        return {"n": n, "user": None if n % 3 else ""}
    return {
        "n": n,
        "user": f'"{n}", é\nand\r\nmore',
        "flag": n % 4 == 0,
        "x": [1.0, 0.1, 1e300, 2.5e-7, -0.0][n % 5],
        "price": Decimal("10.50"),
        "at": NOON.replace(minute=n % 60, microsecond=n % 3 * 1_000),
        "day": date(1969, 12, 31),
        "raw": b"\x00\xff",
        "tags": ["a", None, "b,c"],
        "who": {"name": "ü", "at": NOON},
    }


def make_input(folder: Path, rows: int = 60) -> Files:
    """Two files with these rows."""
    folder.mkdir(parents=True, exist_ok=True)
    types = pyarrow.schema(
        [
            ("n", pyarrow.int64()), ("user", pyarrow.string()), ("flag", pyarrow.bool_()),
            ("x", pyarrow.float64()), ("price", pyarrow.decimal128(10, 2)),
            ("at", pyarrow.timestamp("us", "UTC")), ("day", pyarrow.date32()), ("raw", pyarrow.binary()),
            ("tags", pyarrow.list_(pyarrow.string())),
            ("who", pyarrow.struct([("name", pyarrow.string()), ("at", pyarrow.timestamp("us", "UTC"))])),
        ]
    )  # fmt: skip
    for part in range(2):
        made = [some_row(n) for n in range(part, rows, 2)]
        parquet.write_table(pyarrow.Table.from_pylist(made, schema=types), folder / f"{part}.parquet")
    return Files(folder, format="parquet", schema=SCHEMA)


def same(record: Row) -> Row:
    """A step in Python."""
    return dict(record)


def once(_: str, record: Row, state: State) -> Row | None:
    """A step with state, in Python."""
    seen = state.get("seen", 0)
    state.set("seen", seen + 1)
    return None if seen else record


def totals(rows: Pipeline[Any]) -> Any:
    """Windows. Their sums are wider than a column of files is."""
    return rows.filter("at is not null").window(tumbling("10m"), time="at").aggregate(
        n=count(), total=sum_("n"), x=sum_("x")
    )  # fmt: skip


PLANS: dict[str, Callable[[Pipeline[Any]], Any]] = {
    "native": lambda p: p.filter("n % 3 <> 0"),
    "windows": totals,
    "python": lambda p: p.map(same),
    "stateful": lambda p: p.key_by("n").stateful(once, name="once"),
}


def files_in(folder: Path) -> list[Path]:
    """What a reader of the folder sees; beside it is only what names the checkpoint, once a run is over."""
    found = [path for path in folder.iterdir() if not path.name.startswith("_checkpoint-")]
    assert not [path.name for path in found if path.name[0] in "._"], "staging areas are gone"
    return sorted(found)


def contents(folder: Path, form: FileFormat) -> list[str]:
    """The rows of all files, as text, in some order: of CSV with the names before each."""
    found: list[str] = []
    for path in files_in(folder):
        if form == "parquet":
            found += [json.dumps(row, default=repr) for row in parquet.read_table(path).to_pylist()]
        elif form == "ndjson":
            found += path.read_bytes().decode().split("\n")[:-1]
        else:
            text = path.read_bytes().decode()
            [names, *rows] = csv.reader(io.StringIO(text, newline=""))
            out = io.StringIO(newline="")
            csv.writer(out).writerows([names, *rows])
            assert out.getvalue() == text, "it is quoted as Python's writer does it"
            found += [f"{names} {row}" for row in rows]
    return sorted(found)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("form", WRITTEN)
def test_files_hold_what_the_local_engine_writes(tmp_path: Path, form: FileFormat, plan: str) -> None:
    source = make_input(tmp_path / "in")
    for engine in ("local", "spark"):
        rows = PLANS[plan](Pipeline("copy").source(source))
        rows.to(Files(tmp_path / engine, format=form)).run(engine=engine, summary=False)
    expected = contents(tmp_path / "local", form)
    assert len(expected) > 5
    assert contents(tmp_path / "spark", form) == expected


def test_spark_itself_writes_the_parquet_of_expressions(tmp_path: Path) -> None:
    source = make_input(tmp_path / "in")
    run = Pipeline("copy").source(source).filter("n >= 10").to(
        Files(tmp_path / "out", format="parquet"), name="out"
    ).start(summary=False)  # fmt: skip
    run.wait()
    found = [parquet.ParquetFile(path) for path in files_in(tmp_path / "out")]
    assert all(each.metadata.created_by.startswith("parquet-mr") for each in found)
    assert {str(each.schema_arrow.field("at").type) for each in found} == {"timestamp[us, tz=UTC]"}
    figures = run.get_stats()
    assert figures["steps.out.taken"] == sum(each.metadata.num_rows for each in found) == 50
    assert run.summary().written == 50


def test_several_sinks_of_one_plan_get_the_same(tmp_path: Path) -> None:
    source = make_input(tmp_path / "in")
    rows = Pipeline("copy").source(source).filter("n >= 10")
    sinks = [Files(tmp_path / form, format=form) for form in WRITTEN]
    more = Files(tmp_path / "more", format="parquet")
    run = rows.to(*sinks, more).start(summary=False)
    run.wait()
    assert contents(tmp_path / "more", "parquet") == contents(tmp_path / "parquet", "parquet")
    assert {len(contents(tmp_path / form, form)) for form in WRITTEN} == {50}


@pytest.mark.parametrize("plan", ["native", "python", "stateful"])
def test_rows_that_a_sink_refuses_are_its_steps(tmp_path: Path, plan: str) -> None:
    """With a schema that some rows do not fit: they are dead letters, and the others are written."""
    source = make_input(tmp_path / "in")
    for form in WRITTEN:
        folder = tmp_path / form
        letters = DeadLetters(Files(folder / "dead", format="ndjson"), replay=False)
        sink = Files(folder / "out", format=form, schema="n bigint, user string not null")
        PLANS[plan](Pipeline("copy").source(source)).to(sink, on_error=letters, name="write").run(
            summary=False
        )
        dead = [json.loads(line) for line in contents(folder / "dead", "ndjson")]
        refused = {letter["record"]["n"] for letter in dead}
        every = {n for n in range(60) if plan != "native" or n % 3}
        assert refused == {n for n in every if n % 2 and n % 3}
        assert {letter["step"] for letter in dead} == {"write"}
        assert len(contents(folder / "out", form)) == len(every) - len(refused)


def test_rows_that_are_not_alike(tmp_path: Path) -> None:
    """Lines take any; the header of CSV has all names; no table is made of text and numbers."""
    lines = [{"n": 1}, {"n": 2, "tags": ["a,b"]}, {"m": "x" * 200_000, "n": 3}]
    (tmp_path / "in.ndjson").write_text("".join(json.dumps(row) + "\n" for row in lines))
    for form in WRITTEN:
        rows = Pipeline("copy").source(Files(tmp_path / "in.ndjson"))
        for engine in ("local", "spark"):
            rows.to(Files(tmp_path / engine / form, format=form)).run(engine=engine, summary=False)
        [here], [there] = (files_in(tmp_path / engine / form) for engine in ("local", "spark"))
        if form == "parquet":
            assert parquet.read_table(there).to_pylist() == parquet.read_table(here).to_pylist()
        else:
            assert there.read_bytes() == here.read_bytes()
    with (tmp_path / "in.ndjson").open("a") as file:
        file.write('{"n": "text"}\n')
    out = Files(tmp_path / "mixed", format="parquet")
    with pytest.raises(StepFailed, match="the rows do not make one table"):
        Pipeline("copy").source(Files(tmp_path / "in.ndjson")).to(out).run(summary=False)
    assert files_in(tmp_path / "mixed") == []


@pytest.mark.parametrize("plan", ["native", "python"])
@pytest.mark.parametrize("form", WRITTEN)
def test_a_commit_that_was_interrupted_is_repeated(
    tmp_path: Path, form: FileFormat, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends after the first of two files was moved; the next run moves the other one."""
    source = make_input(tmp_path / "in")
    pipeline = PLANS[plan](Pipeline("copy").source(source)).to(Files(tmp_path / "out", format=form))
    location = importlib.import_module("queenstream.engines.spark.sinks.files.location").LocalLocation
    move, moved = location.move, list[str]()

    def interrupted(self: Any, path: str, to: str) -> bool:
        if moved:
            raise KeyError("interrupted")
        moved.append(to)
        return bool(move(self, path, to))

    state = str(tmp_path / "state")
    with monkeypatch.context() as patched:
        patched.setattr(location, "move", interrupted)
        with pytest.raises(RunFailed, match="interrupted"):
            pipeline.run(checkpoint=state, summary=False)
    before = [path for path in (tmp_path / "out").iterdir() if path.name[0] not in "._"]
    assert [path.name for path in before] == moved
    pipeline.run(checkpoint=state, summary=False)
    assert len(files_in(tmp_path / "out")) > 1
    expected = 60 if plan == "python" else 40
    assert len(contents(tmp_path / "out", form)) == expected


def test_what_crashed_attempts_have_staged_is_deleted(tmp_path: Path) -> None:
    """When a batch cannot be computed, and when a run begins."""
    source = make_input(tmp_path / "in")
    state = str(tmp_path / "state")

    def fails(row: Row) -> Row:
        if row["n"] == 59 and Path(tmp_path / "broken").exists():
            raise ValueError("not yet")
        return row

    (tmp_path / "broken").touch()
    pipeline = Pipeline("copy").source(source).map(fails).to(Files(tmp_path / "out", format="ndjson"))
    with pytest.raises(StepFailed, match="not yet"):
        pipeline.run(checkpoint=state, summary=False)
    assert files_in(tmp_path / "out") == []
    generation = json.loads((tmp_path / "state" / "copy" / "run.json").read_text())["generation"]
    (tmp_path / "broken").unlink()
    name = f"files:{tmp_path / 'out'}".replace(":", "%3A").replace("/", "%2F")
    left = tmp_path / "out" / f"_staged-{generation}-{name}" / "0000000001" / "0000000007"
    left.mkdir(parents=True)
    (left / "00000-ab.ndjson").write_text("{}\n")
    pipeline.run(checkpoint=state, summary=False)
    assert len(contents(tmp_path / "out", "ndjson")) == 60


def test_rows_of_files_are_shown_to_who_looks(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    source = Files(tmp_path / "in", format="parquet", schema=SCHEMA, follow=True)
    for form in WRITTEN:
        out = Files(tmp_path / form, format=form)
        run = Pipeline("copy").source(source).filter("n >= 0").to(out, name="out").start(summary=False)
        assert isinstance(run, SparkRun)
        run.look()
        make_input(tmp_path / "in" / "hidden")
        for number, path in enumerate((tmp_path / "in" / "hidden").iterdir()):
            path.rename(tmp_path / "in" / f"{form}-{number}.parquet")
        try:
            samples: Any = None
            for _ in range(600):
                samples = run.look()["samples"].get("out")
                if samples:
                    break
                run.wait(0.05)
            assert '"user":' in samples[-1]
        finally:
            run.stop()
            run.wait()


# Other file systems


@pytest.mark.parametrize("plan", ["native", "floats"])
def test_parquet_of_expressions_is_written_to_other_file_systems(
    elsewhere: str, tmp_path: Path, plan: str
) -> None:
    source = make_input(tmp_path / "in")
    rows = Pipeline("copy").source(source)
    rows = PLANS["native"](rows) if plan == "native" else rows.filter("at is not null").window(
        tumbling("10m"), time="at"
    ).aggregate(x=sum_("x"))  # fmt: skip
    broken = [True]

    def called(row: Row) -> None:
        if broken:
            raise ValueError("not yet")

    job = rows.to(Files(f"{elsewhere}/out", format="parquet"), Function(called, name="called"))
    with pytest.raises(StepFailed, match="not yet"):
        job.run(checkpoint=str(tmp_path / "state"), summary=False)
    broken.clear()
    job.run(checkpoint=str(tmp_path / "state"), summary=False)
    rows.to(Files(tmp_path / "here", format="parquet")).run(engine="local", summary=False)
    there = tmp_path / "data" / "out"
    for path in there.glob(".*.crc"):
        path.unlink()
    assert contents(there, "parquet") == contents(tmp_path / "here", "parquet") != []


@pytest.mark.parametrize("engine", ["local", "spark"])
def test_what_cannot_be_written_elsewhere_is_refused_by_line(
    elsewhere: str, tmp_path: Path, engine: EngineName
) -> None:
    source = make_input(tmp_path / "in")
    there = Files(f"{elsewhere}/out", format="parquet")
    refused = [
        PLANS["native"](Pipeline("copy").source(source)).to(Files(f"{elsewhere}/out", format="ndjson")),
        PLANS["python"](Pipeline("copy").source(source)).to(there),
        PLANS["native"](
            Pipeline("copy").source(source, on_error=DeadLetters(there, replay=False))
        ).to(print),
    ]  # fmt: skip
    if engine == "local":
        refused.append(PLANS["native"](Pipeline("copy").source(source)).to(there))
    for pipeline in refused:
        with pytest.raises(PipelineError, match=rf"test_file_sinks\.py:\d+.* {elsewhere}/out"):
            pipeline.run(engine=engine, summary=False)
    assert not (tmp_path / "data" / "out").exists()


def test_the_session_keeps_its_settings(spark: SparkSession, tmp_path: Path) -> None:
    before = spark.conf.get("spark.sql.parquet.outputTimestampType")
    source = make_input(tmp_path / "in")
    Pipeline("copy").source(source).filter("n > 1").to(Files(tmp_path / "out", format="parquet")).run(
        summary=False
    )
    assert spark.conf.get("spark.sql.parquet.outputTimestampType") == before
