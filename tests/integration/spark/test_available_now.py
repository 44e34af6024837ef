"""Runs that come to an end, on Spark without admission control as well."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queenstream.engines.spark import available_now
from queenstream.engines.spark.versions import ADMISSION_CONTROL, Feature
from queenstream.errors import StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.testing.brokers import TemporaryBroker

Row = dict[str, Any]
WITHOUT = Feature("what no version has", since=(9, 9), module="pyspark.no_such_module")

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


@pytest.fixture(params=[ADMISSION_CONTROL, WITHOUT], ids=["as it is", "without admission control"])
def control(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is started as on the installed version, and as on Spark 4.1."""
    monkeypatch.setattr(available_now, "ADMISSION_CONTROL", request.param)


@pytest.mark.usefixtures("control")
def test_it_ends_at_what_was_there_after_several_batches(broker: TemporaryBroker, tmp_path: Path) -> None:
    found: list[int] = []
    with broker.client() as queen:
        orders = queen.queue("orders")
        orders.push([{"n": n} for n in range(30)])

        def take(row: Row) -> None:
            found.append(row["n"])
            if row["n"] < 1_000:
                orders.push({"n": 1_000 + row["n"]})  # as others do while it runs

        copy = Pipeline("copy").source(Queue("orders", schema="n INT")).filter("n >= 0").to(take)
        run = copy.start(checkpoint=str(tmp_path), until="caught_up", url=broker.address, max_batch_rows=12)
        assert run.wait(300)
        sizes = [batch["records"] for batch in run.look()["batches"]]
    assert found == list(range(30))
    assert max(sizes) <= 12


@pytest.mark.usefixtures("control")
def test_the_next_run_goes_on_from_the_checkpoint(broker: TemporaryBroker, tmp_path: Path) -> None:
    found: list[int] = []
    copy = Pipeline("copy").source(Queue("orders", schema="n INT")).filter("n >= 0")
    copied = copy.to(lambda row: found.append(row["n"]))
    with broker.client() as queen:
        for begin in (0, 30, 60):
            queen.queue("orders").push([{"n": n} for n in range(begin, begin + 30)])
            copied.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address, max_batch_rows=12)
            assert found == list(range(begin + 30))


@pytest.mark.usefixtures("control")
def test_what_fails_is_raised(broker: TemporaryBroker, tmp_path: Path) -> None:
    def bad(record: Row) -> Row:
        raise ValueError(f"not {record['n']}")

    with broker.client() as queen:
        queen.queue("orders").push({"n": 7})
        failing = Pipeline("failing").source(Queue("orders")).transform("bad", bad).to(print)
        with pytest.raises(StepFailed, match="not 7"):
            failing.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address)
