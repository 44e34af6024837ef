"""Savepoints on Spark: copied while a run goes on, and started from in another folder."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from queenstream.cli.pipeline import app
from queenstream.errors import CheckpointError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Memory, Queue
from queenstream.pipeline.state import State
from queenstream.testing.brokers import TemporaryBroker

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


def visits(key: str, record: Row, state: State) -> Row:
    state.set("n", state.get("n", 0) + 1)
    return {"user": key, "page": record["page"], "visit": state.get("n")}


def counting(pages: Path, found: list[Row]) -> Pipeline[Any]:
    # Files of lines that grow are fed by the driver, so their copies are in the checkpoint.
    source = Files(pages, format="ndjson", follow=True)
    return (
        Pipeline("visits")
        .source(source, name="in")
        .key_by("user")
        .stateful(visits, name="seen")
        .to(found.append)
    )


def page(pages: Path, number: int) -> None:
    (pages / f"{number}.ndjson").write_text(json.dumps({"user": "ann", "page": number}) + "\n")


def saved(state: Path, to: Path) -> Row:
    done = CliRunner().invoke(app, ["savepoint", str(state), str(to)])
    assert done.exit_code == 0, done.output
    told: Row = json.loads(done.stdout)
    return told


def test_a_pipeline_starts_from_a_savepoint(tmp_path: Path) -> None:
    pages, state, copy = tmp_path / "in", tmp_path / "state", tmp_path / "savepoint"
    pages.mkdir()
    found: list[Row] = []
    page(pages, 1)
    run = counting(pages, found).start(checkpoint=str(state), summary=False)
    deadline = time.monotonic() + 120
    while len(found) < 1:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while not list((state / "visits" / "spark" / "commits").glob("0")):
        time.sleep(0.1)
    told = saved(state, copy)  # of a pipeline that runs
    assert told["pipeline"] == "visits"
    page(pages, 2)
    while len(found) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    run.stop()
    run.wait()
    assert [row["visit"] for row in found] == [1, 2]

    page(pages, 3)
    for name in ("one", "two"):  # it can be started from as often as one likes
        again: list[Row] = []
        options = {"checkpoint": str(tmp_path / name), "from_checkpoint": str(copy), "until": "caught_up"}
        counting(pages, again).run(**options, summary=False)  # type: ignore[arg-type]
        assert [(row["page"], row["visit"]) for row in again] == [(2, 2), (3, 3)]
    again = []
    counting(pages, again).run(checkpoint=str(tmp_path / "one"), until="caught_up", summary=False)
    assert again == []
    with pytest.raises(CheckpointError, match="has a checkpoint already; take another checkpoint folder"):
        counting(pages, again).run(
            checkpoint=str(tmp_path / "one"), from_checkpoint=str(copy), until="caught_up", summary=False
        )
    refused = CliRunner().invoke(app, ["savepoint", str(state), str(copy)])
    assert "is not empty; name a new folder" in str(refused.exception)


def test_a_queue_goes_on_where_the_local_engine_was(broker: TemporaryBroker, tmp_path: Path) -> None:
    found: list[Row] = []
    before, to = str(tmp_path / "local"), tmp_path / "savepoint"

    def push(*numbers: int) -> None:
        with broker.client() as queen:
            for n in numbers:
                queen.queue("moved").partition("ab"[n % 2]).push([{"n": n}])

    def run(checkpoint: str, rows: Pipeline[Any], **options: Any) -> list[int]:
        found.clear()
        rows.to(found.append).run(
            checkpoint=checkpoint, until="caught_up", url=broker.address, summary=False, **options
        )
        return sorted(row["n"] for row in found)

    numbers = Pipeline("moved").source(Queue("moved", schema="n bigint"))
    push(1, 2, 3)
    assert run(before, numbers, engine="local") == [1, 2, 3]
    assert saved(Path(before), to)["pipeline"] == "moved"
    push(4, 5)
    there = str(tmp_path / "spark")
    assert run(there, numbers.filter("n > 0"), from_checkpoint=str(to)) == [4, 5]
    push(6)
    assert run(there, numbers) == [6]
    with_state = numbers.key_by("n").stateful(visits, name="seen")
    with pytest.raises(CheckpointError, match=r"seen \(.*\) has state, and .* is a savepoint of the local"):
        run(str(tmp_path / "other"), with_state, from_checkpoint=str(to))
    memory = Pipeline("moved").source(Memory([{"n": 1}], schema="n bigint"), name="queue:moved")
    with pytest.raises(CheckpointError, match="does not fit the savepoint"):
        run(str(tmp_path / "other"), memory, from_checkpoint=str(to))


def test_messages_that_the_local_engine_had_not_read_are_not_left_out(
    broker: TemporaryBroker, tmp_path: Path
) -> None:
    with broker.client() as queen:
        for partition in "ab":
            queen.queue("gaps").partition(partition).push([{"n": 1}])
    rows = Pipeline("gaps").source(Queue("gaps", schema="n bigint")).to(print)
    options = {"until": "caught_up", "url": broker.address, "summary": False}
    rows.run(engine="local", checkpoint=str(tmp_path / "local"), **options)  # type: ignore[arg-type]
    saved(tmp_path / "local", tmp_path / "savepoint")
    file = tmp_path / "savepoint" / "positions.json"
    told = json.loads(file.read_text())
    del told["positions"]["queue:gaps"]["a"]  # as if it had not got there yet
    file.write_text(json.dumps(told))
    with pytest.raises(CheckpointError, match="queue gaps has messages that the local engine had not read"):
        rows.run(checkpoint=str(tmp_path / "x"), from_checkpoint=str(tmp_path / "savepoint"), **options)  # type: ignore[arg-type]
