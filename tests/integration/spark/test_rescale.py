"""``queen pipeline rescale``: state in more and in fewer partitions, with the rows of an undisturbed run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queenstream.cli.pipeline import app
from queenstream.engines.spark.checkpoints import inspection
from queenstream.engines.spark.checkpoints.directory import Lock
from queenstream.engines.spark.maintenance.rescale import rescale
from queenstream.engines.spark.versions import state_repartition
from queenstream.errors import CheckpointError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.shorthand import count, sliding, tumbling
from queenstream.pipeline.state import State

Row = dict[str, Any]
Make = Callable[[Path, Callable[[Row], object]], Pipeline[Any]]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

START_MS = 1_793_000_000_000
USERS, STEP_MS, ROWS = 20, 500, 120
SCHEMA = "user string, at bigint"


def windows(pages: Path, to: Callable[[Row], object]) -> Pipeline[Any]:
    """Windows of Spark's own."""
    rows = Pipeline("job").source(Files(pages, format="ndjson", follow=True, schema=SCHEMA), name="in")
    return rows.event_time("at").key_by("user").window(tumbling("1m")).aggregate(n=count()).to(to)


def joined(pages: Path, to: Callable[[Row], object]) -> Pipeline[Any]:
    """A join of Spark's own."""
    left, right = (
        Pipeline("job").source(Files(pages, format="ndjson", follow=True, schema=SCHEMA), name=name)
        for name in ("left", "right")
    )
    return left.event_time("at").join(right.event_time("at"), on="user", within="15s").to(to)


def visits(key: str, record: Row, state: State) -> Row:
    del record
    state.set("n", state.get("n", 0) + 1)
    return {"user": key, "visit": state.get("n"), "all": "all"}


def stages(pages: Path, to: Callable[[Row], object]) -> Pipeline[Any]:
    """Two steps with state in Python: values by key, and timers and pages of a key with many windows."""
    rows = Pipeline("job").source(Files(pages, format="ndjson", follow=True), name="in")
    seen = rows.event_time("at").key_by("user").stateful(visits, name="visits")
    many = seen.key_by("all").window(sliding("2s", "250ms"), grace="55s")
    return many.aggregate(n=count(), step_name="many").to(to)


class Job:
    """A pipeline over files that come one by one, a run for each."""

    def __init__(self, make: Make, folder: Path) -> None:
        self._make, self._pages, self.state = make, folder / "in", folder / "state"
        self._pages.mkdir(parents=True)
        self.rows: list[str] = []

    def run(self, **options: Any) -> None:
        def keep(row: Row) -> None:
            self.rows.append(json.dumps(row, default=str, sort_keys=True))

        pipeline = self._make(self._pages, keep)
        pipeline.run(checkpoint=str(self.state), until="caught_up", summary=False, **options)

    def page(self, number: int) -> None:
        first = number * ROWS
        rows = [
            {"user": f"u{at % USERS}", "at": START_MS + at * STEP_MS} for at in range(first, first + ROWS)
        ]
        (self._pages / f"{number}.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.run()

    def partitions(self) -> int:
        """In how many partitions the last batch was computed."""
        offsets = max(
            (self.state / "job" / "spark" / "offsets").glob("[0-9]*"), key=lambda each: int(each.name)
        )
        about = json.loads(offsets.read_text().splitlines()[1])
        return int(about["conf"]["spark.sql.shuffle.partitions"])


def pages_of(spark: SparkSession, job: Job) -> int:
    """How many pages of state there are."""
    reader = spark.read.format("statestore").option("stateVarName", "pages")
    where = str(job.state / "job" / "spark")
    return sum(reader.option("operatorId", each).load(where).count() for each in (0, 1))


@pytest.fixture
def can_repartition(spark: SparkSession, tmp_path: Path) -> bool:
    """Whether this version of Spark can; one that cannot says so, and changes nothing."""
    if state_repartition(spark) is not None:
        return True
    job = Job(windows, tmp_path)
    job.page(0)
    with pytest.raises(
        CheckpointError, match="this version of Spark cannot repartition state; run the command with"
    ):
        rescale(str(job.state), "job", 7)
    job.page(1)
    assert len(job.rows) == 2 * USERS
    return False


@pytest.mark.parametrize("make", [windows, joined, stages])
def test_rows_are_those_of_a_run_that_was_not_rescaled(
    spark: SparkSession, tmp_path: Path, make: Make, can_repartition: bool
) -> None:
    if not can_repartition:
        return
    job, undisturbed = Job(make, tmp_path / "rescaled"), Job(make, tmp_path / "undisturbed")
    for number in range(4):
        undisturbed.page(number)
    job.page(0)
    pages = pages_of(spark, job) if make is stages else 0
    before = job.partitions()
    job_state = str(job.state)
    done = rescale(job_state, "job", before + 3)
    assert (done.before, done.partitions, job.partitions()) == (before, before + 3, before + 3)
    if make is stages:  # state can be looked into as before
        assert pages_of(spark, job) == pages > 0
        held = [each for each in inspection.entries(spark, job_state, "job") if each.step == "visits"]
        assert sorted(
            (each.entry[0], each.entry[1]) for each in held if isinstance(each.entry, list)
        ) == sorted((f"u{user}", {"n": ROWS // USERS}) for user in range(USERS))
    job.page(1)
    rescale(job_state, "job", 1)
    job.page(2)
    job.run(from_checkpoint=str(inspection.batches(job_state, "job")[0].id))
    job.page(3)
    assert job.partitions() == 1
    assert sorted(job.rows) == sorted(undisturbed.rows)
    assert len(job.rows) > 2 * USERS
    with pytest.raises(
        CheckpointError, match=r"batch 0 had its state in .* partitions, and the checkpoint was"
    ):
        job.run(from_checkpoint="0")


def test_the_command(tmp_path: Path, can_repartition: bool) -> None:
    if not can_repartition:
        return
    job = Job(windows, tmp_path)
    job.page(0)
    where = str(job.state)
    command = ("rescale", where, "--partitions", "3")
    last = inspection.batches(where, "job")[0].id
    lock = Lock(job.state / "job")
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, CheckpointError)
    assert "is in use by process" in str(refused.exception)
    lock.release()
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert (told["pipeline"], told["partitions"], told["batch"]) == ("job", 3, last + 1)
    again = CliRunner().invoke(app, [*command, "-o", "table"])
    assert again.stdout == "job keeps its state in 3 partitions already\n"


def test_an_interrupted_rescale_is_completed(tmp_path: Path, can_repartition: bool) -> None:
    if not can_repartition:
        return
    job = Job(windows, tmp_path)
    job.page(0)
    rescale(str(job.state), "job", 3)
    last = inspection.batches(str(job.state), "job")[0].id
    for log in (job.state / "job" / "spark" / "commits").glob(f"*{last}*"):
        log.unlink()  # as if it had been killed just before
    with pytest.raises(
        CheckpointError, match=r"a rescale of .* to 3 partitions was interrupted; complete it"
    ):
        job.run()
    with pytest.raises(CheckpointError, match=r"complete it with .*--partitions 3"):
        rescale(str(job.state), "job", 4)
    rescale(str(job.state), "job", 3)
    job.page(1)
    assert len(job.rows) == 2 * USERS
