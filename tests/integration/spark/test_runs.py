"""A run on Spark over its life: how it starts, goes on after a failure, and ends."""

from __future__ import annotations

import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest

from queenstream.core import metric_names
from queenstream.errors import RunFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Memory
from queenstream.runtime.progress import Phase

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
LIMIT_SECONDS = 90.0
TRIES = 4  # of a task, before its batch fails


def crash(record: Row, folder: str, times: int) -> Row:
    """End the worker of the task, as often as that."""
    if record["n"] == 2 and len([*Path(folder).iterdir()]) < times:
        Path(folder, f"{time.monotonic_ns()}").touch()
        os._exit(1)
    return record


def crashing(pages: Path, crashes: Path, times: int, to: Any) -> Pipeline[Any]:
    pages.mkdir()
    crashes.mkdir()
    where = str(crashes)
    source = Files(pages, format="ndjson", follow=True)
    return Pipeline("crashing").source(source).transform("crash", lambda r: crash(r, where, times)).to(to)


def add(pages: Path, number: int) -> None:
    (pages / f".{number}").write_text(json.dumps({"n": number}) + "\n")
    (pages / f".{number}").rename(pages / f"{number}.ndjson")


def until(condition: Any) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_run_goes_on_after_a_failure_though_nobody_waits_for_it(tmp_path: Path) -> None:
    found: list[Row] = []
    pages = tmp_path / "in"
    run = crashing(pages, tmp_path / "crashes", TRIES, found.append).start()
    add(pages, 1)
    until(lambda: found == [{"n": 1}])
    add(pages, 2)
    until(lambda: found == [{"n": 1}, {"n": 2}])
    until(lambda: run.get_stats()["messages"] == 2)
    stats = run.get_stats()
    assert stats["restarts"] == 1
    [sink] = metric_names.SINK.group(stats).values()
    assert (sink["rows"], sink["last_batch_rows"]) == (2, 1)  # each once, though a batch had two attempts
    add(pages, 3)
    until(lambda: len(found) == 3)
    assert run.get_stats()["recovering"] == 0
    run.stop()
    assert run.wait(LIMIT_SECONDS)
    assert [row["n"] for row in found] == [1, 2, 3]


def test_a_failure_of_the_first_batch_ends_the_run(tmp_path: Path) -> None:
    found: list[Row] = []
    pages = tmp_path / "in"
    pipeline = crashing(pages, tmp_path / "crashes", 1_000, found.append)
    add(pages, 2)
    run = pipeline.start()
    with pytest.raises(RunFailed, match="Python worker exited unexpectedly"):
        run.wait(LIMIT_SECONDS)
    assert found == []


def test_the_phases_of_the_start_are_told() -> None:
    phases: list[Phase] = []
    found: list[Row] = []
    Pipeline("p").source(Memory([{"n": 1}])).to(found.append).run(progress=phases.append)
    assert phases == ["session", "plan", "first batch", "running"]
    assert found == [{"n": 1}]


def test_standard_error_has_the_phases_of_a_start_that_takes_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("queenstream.runtime.progress.PATIENCE_SECONDS", 0.0)
    pipeline = Pipeline("p").source(Memory([{"n": 1}])).to(lambda row: None)
    pipeline.run(summary=False)
    assert capsys.readouterr().err == ""
    pipeline.run()
    started, _, rest = capsys.readouterr().err.partition("p ended after ")
    assert re.search(r"^p: started in .*: session .*, plan .*, first batch .*\n$", started, re.M)
    assert "1 record read" in rest
