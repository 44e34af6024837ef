"""Checkpoints on Spark: looked into, and gone back in, as with the local engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from queenstream.cli.pipeline import app
from queenstream.engines.local.checkpoints.store import open_store
from queenstream.engines.spark.checkpoints import inspection, rewind
from queenstream.errors import CheckpointError, ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Queue
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.pipeline.state import State
from queenstream.testing.brokers import TemporaryBroker

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


def visits(key: str, record: Row, state: State) -> Row:
    seen = state.get("seen", 0) + 1
    state.set("seen", seen)
    return {"user": key, "page": record["page"], "seen": seen}


def counting(pages: Path, to: Callable[[Row], object]) -> Pipeline[Any]:
    source = Files(pages, format="ndjson", follow=True)
    return Pipeline("visits").source(source, name="in").key_by("user").stateful(visits, name="seen").to(to)


class History:
    """A pipeline that has run once for each of some files."""

    def __init__(self, folder: Path, engine: Literal["local", "spark"]) -> None:
        self.pages, self.state = folder / engine / "in", folder / engine / "state"
        self.pages.mkdir(parents=True)
        self.engine = engine
        self.rows: list[Row] = []

    def run(self, **options: Any) -> list[Row]:
        """Run until all is caught up; gives the rows of this run."""
        self.rows = []
        counting(self.pages, self.rows.append).run(
            engine=self.engine, checkpoint=str(self.state), until="caught_up", **options
        )
        return sorted(self.rows, key=lambda row: (row["user"], row["seen"]))

    def page(self, number: int) -> list[Row]:
        """One more file with two visits, and a run."""
        visited = [{"user": user, "page": number} for user in ("ann", "bob" if number % 2 else "ann")]
        (self.pages / f"{number}.ndjson").write_text("".join(json.dumps(row) + "\n" for row in visited))
        return self.run()


def test_going_back_means_what_it_means_on_the_local_engine(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, here = History(tmp_path, "spark"), History(tmp_path, "local")
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of 'visits' in .*; run the pipeline"):
        there.run(from_checkpoint="0")
    local_ids = []
    for number in range(4):
        assert there.page(number) == here.page(number)
        local_ids.append(asyncio.run(_newest(here))[0])
    assert [each.id for each in inspection.batches(there.state, "visits")] == [3, 2, 1, 0]
    cannot_be_gone_back_to(there)
    assert [each.id for each in inspection.batches(there.state, "visits")] == [3, 2, 1, 0]

    # Killed in the middle: the next run does the rest, whatever it is told.
    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(rewind, "take_back", killed)
        with pytest.raises(KeyboardInterrupt):
            there.run(from_checkpoint="1")
    again = there.run()
    assert again == here.run(from_checkpoint=local_ids[1])
    assert [(row["user"], row["page"], row["seen"]) for row in again] == [
        ("ann", 2, 4),
        ("ann", 2, 5),
        ("ann", 3, 6),
        ("bob", 3, 2),
    ]
    assert _told("checkpoints", "--checkpoint", str(there.state))[0]["id"] == "2"
    as_of = ("state", "get", "ann", "--checkpoint", str(there.state))
    assert _told(*as_of)[0] == {
        "step": "seen",
        "key": "ann",
        "values": {"seen": 6},
        "timers": {},
        "touched": None,
    }
    assert _told(*as_of, "--id", "1")[0]["values"] == {"seen": 3}
    # It goes on from there, and what was taken back is not in the way.
    assert there.page(5) == here.page(5)
    assert inspection.state(spark, there.state, "visits", "seen", "bob") == [["bob", {"seen": 3}, {}, None]]
    assert there.run() == []
    aside = there.state / "visits" / rewind.ASIDE
    assert [path.name for path in aside.glob("*/spark/commits/?")] != []


def cannot_be_gone_back_to(history: History) -> None:
    """It is said, and nothing is changed."""
    with pytest.raises(CheckpointError, match=r"there is no checkpoint '7' of 'visits'; name one of 3, 2"):
        history.run(from_checkpoint="7")
    with pytest.raises(ConfigError, match="from_checkpoint needs to know where it is"):
        counting(history.pages, print).run(from_checkpoint="1")
    with pytest.raises(ConfigError, match="only a checkpoint on this machine"):
        counting(history.pages, print).run(checkpoint="s3a://bucket/x", from_checkpoint="1")
    snapshots = list((history.state / "visits" / "spark" / "state").rglob("1.*"))
    for path in snapshots:
        path.rename(path.with_name(f"lost {path.name}"))
    with pytest.raises(CheckpointError, match="the checkpoint of batch 0 is damaged"):
        history.run(from_checkpoint="0")
    for path in snapshots:
        path.with_name(f"lost {path.name}").rename(path)


def _told(*command: str) -> list[Row]:
    """What ``queen pipeline …`` prints, in this process: another one would start another Spark."""
    shown = CliRunner().invoke(app, [*command, "--output", "json"])
    assert shown.exit_code == 0, shown.output
    return [json.loads(line) for line in shown.output.splitlines()]


async def _newest(history: History) -> list[str]:
    store = open_store(str(history.state), "visits")
    try:
        return [each.id for each in await store.checkpoints()]
    finally:
        await store.close()


def test_two_runs_do_not_share_a_checkpoint(tmp_path: Path) -> None:
    history = History(tmp_path, "spark")
    first = counting(history.pages, print).start(checkpoint=str(history.state))
    try:
        with pytest.raises(CheckpointError, match=r"is in use by process \d+ on "):
            history.run()
    finally:
        first.stop()
        first.wait()
    assert history.run() == []


def test_a_queue_takes_the_batches_that_come_again_as_new_ones(
    broker: TemporaryBroker, tmp_path: Path
) -> None:
    """Written by the driver, and by the tasks themselves where no Python is needed."""
    source = Queue("orders", schema="n bigint")
    plain = Pipeline("plain").source(source).filter("n >= 0").to(Queue("plain"))
    counted = Pipeline("python").source(source).transform("same", dict).to(Queue("python"))
    with broker.client() as queen:
        for number in range(2):
            queen.queue("orders").push({"n": number})
            for pipeline in (plain, counted):
                pipeline.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address)
        for pipeline in (plain, counted):
            pipeline.run(checkpoint=str(tmp_path), until="caught_up", url=broker.address, from_checkpoint="0")
            got = [message.data["n"] for message in queen.queue(pipeline.name).batch(10).pop()]
            assert got == [0, 1, 1]


def test_windows_of_sparks_own_are_shown_by_key(spark: SparkSession, tmp_path: Path) -> None:
    pages = tmp_path / "in"
    pages.mkdir()
    rows = [{"user": user, "at": 1_793_000_000_000 + at} for user, at in (("ann", 0), ("ann", 5), ("bob", 9))]
    (pages / "1.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = Files(pages, format="ndjson", follow=True, schema="user string, at bigint")
    pipeline = (
        Pipeline("totals")
        .source(source, name="in")
        .key_by("user")
        .window(tumbling("1m"), time="at")
        .aggregate(n=count(), step_name="sum")
        .to(print)
    )
    pipeline.run(checkpoint=str(tmp_path), until="caught_up")
    [held] = inspection.entries(spark, tmp_path, "totals", keys=['"ann"'])
    assert held.step == "sum"
    assert isinstance(held.entry, dict)
    assert held.entry["key"] == "ann"
    assert held.entry["window_start"] == datetime(2026, 10, 26, 7, 33, tzinfo=UTC)
    assert held.entry["aggregates"]["count"] == 2
    assert len(inspection.entries(spark, tmp_path, "totals")) == 2
    assert len(inspection.entries(spark, tmp_path, "totals", limit=1)) == 1
    [newest, *_] = inspection.batches(tmp_path, "totals")
    shown = _told("checkpoints", "show", str(newest.id), "--checkpoint", str(tmp_path))[0]
    assert [each["step"] for each in shown["steps"]] == ["in", "sum"]
    assert shown["positions"] == [{"source": "in", "of": "query", "position": {"logOffset": 0}}]
    [bob] = _told("state", "get", "bob", "--checkpoint", str(tmp_path))
    assert (bob["step"], bob["key"], bob["window_start"]) == ("sum", "bob", "2026-10-26T07:33:00Z")
    assert newest.watermark == datetime.fromtimestamp(1_793_000_000.009, UTC)
