"""A pipeline on the local engine is changed between two runs, or starts from a savepoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queenstream.cli.pipeline import app
from queenstream.core.aggregates import max_
from queenstream.core.windows import Count, Definition
from queenstream.errors import CheckpointError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.shorthand import count, session, tumbling

Row = dict[str, Any]

START_MS = 1_793_000_000_000
MINUTE_MS = 60_000


class Job:
    """A pipeline over files that come one by one; each run may have other aggregates."""

    def __init__(self, folder: Path, window: Definition) -> None:
        self._pages, self.state, self._window = folder / "in", folder / "state", window
        self._pages.mkdir(parents=True)
        self.rows: list[Row] = []

    def page(self, name: str, *minutes: int) -> None:
        lines = [json.dumps({"user": "ann", "at": START_MS + at * MINUTE_MS}) for at in minutes]
        (self._pages / name).write_text("".join(f"{line}\n" for line in lines))

    def run(self, *, checkpoint: Path | None = None, from_checkpoint: str | None = None, **more: Any) -> None:
        rows = Pipeline("job").source(Files(self._pages, format="ndjson", follow=True), name="in")
        windows = rows.event_time("at").key_by("user").window(self._window)
        windows.aggregate(n=count(), **more, step_name="windows").to(self.rows.append).run(
            engine="local",
            checkpoint=str(checkpoint or self.state),
            from_checkpoint=from_checkpoint,
            until="caught_up",
            summary=False,
        )


@pytest.mark.parametrize("window", [tumbling("10m"), session("5m"), Count(4)])
def test_an_added_aggregate_counts_from_nothing_in_open_windows(tmp_path: Path, window: Definition) -> None:
    job = Job(tmp_path, window)
    job.page("1", 0, 1)
    job.run()
    job.page("2", 2, 3, 30)
    job.run(again=count(), last=max_("at"))
    [row] = job.rows
    assert (row["n"], row["again"], row["last"]) == (4, 2, START_MS + 3 * MINUTE_MS)
    with pytest.raises(CheckpointError, match="windows: aggregates was"):
        job.run()


def test_a_savepoint_is_started_from(tmp_path: Path) -> None:
    job, to = Job(tmp_path, Count(3)), tmp_path / "savepoint"
    job.page("1", 0, 1)
    job.run()
    done = CliRunner().invoke(app, ["savepoint", str(job.state), str(to)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["pipeline"] == "job"
    job.page("2", 2)
    job.run()
    assert [row["n"] for row in job.rows] == [3]
    for name in ("one", "two"):
        job.rows = []
        job.run(checkpoint=tmp_path / name, from_checkpoint=str(to))
        assert [row["n"] for row in job.rows] == [3]
    with pytest.raises(CheckpointError, match="has checkpoints of 'job' already; take another"):
        job.run(checkpoint=tmp_path / "one", from_checkpoint=str(to))


def test_check_says_what_a_run_would_do(tmp_path: Path) -> None:
    job = Job(tmp_path, tumbling("10m"))
    job.page("1", 0)
    job.run()

    def checked(aggregates: str) -> tuple[int, Row]:
        file = tmp_path / "jobs.py"
        file.write_text(
            "from queenstream import Files, Pipeline, count, tumbling\n"
            f"files = Files({str(tmp_path / 'in')!r}, format='ndjson', follow=True)\n"
            "rows = Pipeline('job').source(files, name='in')\n"
            "windows = rows.event_time('at').key_by('user').window(tumbling('10m'))\n"
            f"job = windows.aggregate({aggregates}, step_name='windows').to(print)\n"
        )
        done = CliRunner().invoke(app, ["check", f"{file}:job", "--against", str(job.state)])
        told = [json.loads(line) for line in done.stdout.splitlines()]
        return done.exit_code, next(each for each in told if each["step"] == "windows")

    code, kept = checked("n=count()")
    assert (code, kept["verdict"], kept["compatible"]) == (0, "kept", True)
    code, added = checked("n=count(), m=count()")
    assert (code, added["verdict"], added["why"].startswith("m = ")) == (0, "extended", True)
    code, broken = checked("m=count()")
    assert (code, broken["compatible"]) == (1, False)
    assert broken["line"].endswith("jobs.py:5")
