"""What a run of the local engine prints: its summary, once, and what it warns of."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from queenstream.core.aggregates import count
from queenstream.engines.local.run import LocalRun
from queenstream.errors import StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Generator, Memory
from queenstream.pipeline.shorthand import tumbling

ORDERS = [{"user": "ab"[n % 2], "amount": n, "at": n * 10_000} for n in range(12)]


def priced(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "price": row["amount"] * 2.5}


def late_and_bad() -> Pipeline[Any]:
    records: list[dict[str, Any]] = [*ORDERS, {"user": "a", "amount": "?", "at": 0}]
    return (
        Pipeline("orders")
        .source(Memory(records), name="in")
        .transform("price", priced, on_error="skip")
        .filter("price > 5", name="large")
        .key_by("user")
        .window(tumbling("1m"), time="at")
        .aggregate(n=count(), step_name="sum")
        .to(lambda row: None, name="out")
    )


def test_at_the_end_on_standard_error_once_and_as_repr(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = late_and_bad().run(engine="local", checkpoint=str(tmp_path))
    assert run.wait()
    out, said = capsys.readouterr()
    assert out == ""
    assert said.count("orders ended after") == 1
    assert "13 records read, 3 filtered, 1 failed, 0 late, 4 written" in said
    rows = {line.split()[0]: line.split()[2:] for line in said.splitlines() if line.startswith("  ")}
    assert rows["price"] == ["13", "1", "0", "12"]
    assert rows["large"] == ["12", "3", "0", "0", "9"]
    assert rows["out"] == ["4", "0", "0", "4"]
    summary = run.summary()
    assert summary.checkpoint is not None
    assert summary.checkpoint.id is not None
    assert f"  checkpoint: {summary.checkpoint.id} in {tmp_path}" in said
    assert repr(run) == str(summary) == said.rstrip("\n")
    assert "13 records read" in run._repr_html_()  # type: ignore[attr-defined]


def test_a_run_that_is_started_prints_it_when_it_ends_and_shows_how_it_does_before(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def forever() -> Any:
        n = 0
        while True:
            yield {"n": (n := n + 1)}

    run = Pipeline("endless").source(Generator(forever)).to(lambda row: None).start(engine="local")
    assert isinstance(run, LocalRun)
    assert repr(run).startswith("endless running for ")
    assert capsys.readouterr().err == ""
    run.stop()
    run.wait()
    assert capsys.readouterr().err.count("endless stopped after ") == 1


def test_a_run_that_fails_says_what_it_had_done_and_why(capsys: pytest.CaptureFixture[str]) -> None:
    def strict(row: Any) -> Any:
        return {"inverse": 1 / row["n"]}

    records = Memory([{"n": 1}, {"n": 0}])
    failing = Pipeline("p").source(records).transform("invert", strict, on_error="fail")
    with pytest.raises(StepFailed):
        failing.to(print).run(engine="local")
    said = capsys.readouterr().err
    assert "p failed after " in said
    assert "2 records read, 0 filtered, 1 failed" in said
    assert "  error: " in said
    assert "test_summary.py:" in said
    assert "{'n': 0}" in said


def test_it_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    run = late_and_bad().run(engine="local", summary=False)
    assert capsys.readouterr().err == ""
    assert run.summary().read == 13


def test_a_misspelt_field_is_a_warning_after_the_first_batch_and_in_the_summary(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    pipeline = Pipeline("orders").source(Memory(ORDERS * 1_000)).filter("amout > 1").key_by("user")
    run = pipeline.to(lambda row: None).run(engine="local")
    [warning] = [each for each in caplog.records if each.levelname == "WARNING"]
    told = "filter reads 'amout', which none of {} records had; did you mean 'amount'?"
    assert warning.getMessage().startswith("orders: ")
    first = int(warning.getMessage().split("none of ")[1].split()[0].replace(",", ""))
    assert first < 12_000  # it comes after the first batch
    [said] = run.summary().warnings
    assert said.endswith(told.format("12,000"))
    assert "test_summary.py:" in said
    assert f"  warning: {said}" in capsys.readouterr().err


INTERRUPTED = """
import itertools, time
from queenstream import Generator, Pipeline

def numbers():
    for n in itertools.count():
        yield {"n": n}
        time.sleep(0.001)

def show(row):
    print(row["n"], flush=True)

Pipeline("numbers").source(Generator(numbers)).to(show).run(engine="local", checkpoint="state", interval="1h")
"""


def test_ctrl_c_finishes_what_is_under_way_and_then_sums_up(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        while not (tmp_path / "state").exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=60)
    [heading] = [line for line in said.splitlines() if line.startswith("numbers stopped after ")]
    assert f" {len(out.splitlines())} written" in heading
    assert "  checkpoint: " in said
    assert said.rstrip().endswith("KeyboardInterrupt")
