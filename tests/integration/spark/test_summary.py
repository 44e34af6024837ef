"""What a run on Spark prints: the same summary as a run of the local engine, and the same warnings."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from queenstream.core.aggregates import count
from queenstream.errors import StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.shorthand import tumbling
from queenstream.runtime.summary import Summary
from tests.sparks import is_native

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]

ORDERS: list[Row] = [{"user": "ab"[n % 2], "amount": n, "at": n * 10_000} for n in range(12)]
SCHEMA = "user STRING, amount INT, at BIGINT"


def priced(row: Row) -> Row:
    return {**row, "price": 6 / row["amount"]}


def in_python() -> Pipeline[Any]:
    return (
        Pipeline("orders")
        .source(Memory(ORDERS), name="in")
        .filter("(amout > 1) is null", name="misspelt")
        .transform("price", priced, on_error="skip")
        .filter("price < 3", name="cheap")
        .key_by("user")
        .window(tumbling("1m"), time="at")
        .aggregate(n=count(), step_name="sum")
        .to(lambda row: None, name="out")
    )


def without_python() -> Pipeline[Any]:
    return (
        Pipeline("typed")
        .on_error("skip")
        .source(Memory([*ORDERS, {"user": "c", "amount": 9, "at": None}], schema=SCHEMA), name="in")
        .filter("amount > 2", name="large")
        .key_by("user")
        .window(tumbling("1m"), time="at")
        .aggregate(n=count(), step_name="sum")
        .to(lambda row: None, name="out")
    )


def counted(summary: Summary) -> list[tuple[Any, ...]]:
    return [
        (step.name, step.where, step.taken, step.filtered, step.failed, step.late, step.given)
        for step in summary.steps
    ]


def test_with_python_it_has_the_numbers_of_the_local_engine_and_the_misspelt_field(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    here = in_python().run(engine="local", summary=False).summary()
    run = in_python().run(checkpoint=str(tmp_path))
    out, said = capsys.readouterr()
    assert out == ""
    assert said.count("orders ended after ") == 1
    assert "12 records read, 2 filtered, 1 failed, 0 late, 4 written" in said
    there = run.summary()
    assert counted(there) == counted(here)
    assert (there.warnings, there.checkpoint is not None) == (here.warnings, True)
    assert f"  checkpoint: {there.checkpoint.id} in {tmp_path}" in said  # type: ignore[union-attr]
    [warning] = there.warnings
    assert warning.endswith("reads 'amout', which none of 12 records had; did you mean 'amount'?")
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert f"orders: {warning}" in told
    assert repr(run) == there.text()
    assert "12 records read" in run._repr_html_()  # type: ignore[attr-defined]


def test_without_python_too_and_without_a_second_pass(
    spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert is_native(without_python().plan(), spark)
    here = without_python().run(engine="local", summary=False).summary()
    assert capsys.readouterr().err == ""
    there = without_python().run()
    assert counted(there.summary()) == counted(here)
    assert "13 records read, 3 filtered, 1 failed, 0 late, 4 written" in capsys.readouterr().err
    there.wait()
    assert capsys.readouterr().err == ""  # once


def test_a_run_that_fails_says_why(capsys: pytest.CaptureFixture[str]) -> None:
    source = Memory([{"amount": 0}])
    pipeline = Pipeline("failing").source(source).transform("price", priced, on_error="fail")
    with pytest.raises(StepFailed):
        pipeline.to(print).run()
    said = capsys.readouterr().err
    assert "failing failed after " in said
    assert "0 written" in said
    [error] = [line for line in said.splitlines() if line.startswith("  error: ")]
    assert "test_summary.py:" in error
    assert "{'amount': 0}" in error
