"""A run is refused if its checkpoint is not the one that has written its exactly-once sinks."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from queenstream.errors import CheckpointError, ConfigError, OwnershipLost
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Postgres, Queue, Sink
from queenstream.testing.brokers import TemporaryBroker
from tests.integration.spark.test_delivery_kills import messages

KINDS = ("queue", "table", "files")
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


class Scene:
    """A pipeline that copies files into one sink, on one engine."""

    def __init__(self, folder: Path, engine: Any, kind: str, broker: TemporaryBroker, database: str) -> None:
        self.folder, self.engine, self.kind = folder, engine, kind
        self._broker, self._database = broker, database
        (folder / "in").mkdir()
        self.add(0)

    def add(self, number: int) -> None:
        """One more file, of two records."""
        rows = [{"n": 2 * number + each} for each in range(2)]
        (self.folder / "in" / f"{number}.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))

    @property
    def sink(self) -> Sink:
        if self.kind == "queue":
            return Queue("copies")
        if self.kind == "table":
            return Postgres("copies", url=self._database, create_table=True, schema="n bigint")
        return Files(self.folder / "out", format="ndjson")

    def run(self, checkpoint: str | None = "state", **options: Any) -> list[int]:
        """Run until caught up; gives what the sink has then."""
        pipeline = Pipeline("copies").source(
            Files(self.folder / "in", format="ndjson", follow=True), name="in"
        )
        where = None if checkpoint is None else str(self.folder / checkpoint)
        pipeline.transform("same", lambda record: record).to(self.sink, name="out").run(
            engine=self.engine, checkpoint=where, url=self._broker.address, until="caught_up", **options
        )
        return self.rows()

    def rows(self) -> list[int]:
        if self.kind == "queue":
            with self._broker.client() as queen:
                return sorted(row["n"] for row in messages(queen, "copies"))
        if self.kind == "table":
            return asyncio.run(self._table())
        return sorted(
            json.loads(line)["n"]
            for path in (self.folder / "out").glob("part-*")
            for line in path.read_text().splitlines()
        )

    async def _table(self) -> list[int]:
        connection = await asyncpg.connect(self._database)
        try:
            return [row["n"] for row in await connection.fetch("select n from copies order by n")]
        finally:
            await connection.close()


@pytest.fixture(params=[(engine, kind) for engine in ("local", "spark") for kind in KINDS], ids="-".join)
def scene(
    request: pytest.FixtureRequest, tmp_path: Path, broker: TemporaryBroker, empty_database_url: str
) -> Scene:
    engine, kind = request.param
    return Scene(tmp_path, engine, kind, broker, empty_database_url)


def test_a_lost_checkpoint_is_refused_until_told_to_start_over(scene: Scene) -> None:
    assert scene.run() == [0, 1]
    place = scene.folder / "state"
    place.rename(scene.folder / "kept")
    scene.add(1)
    with pytest.raises(CheckpointError) as lost:
        scene.run()
    for part in ("the sink out of copies", str(place), "process ", " UTC", "start_over=True", "--start-over"):
        assert part in str(lost.value)
    with pytest.raises(CheckpointError, match="other is not that checkpoint"):
        scene.run("other")
    assert scene.rows() == [0, 1]  # nothing ran

    shutil.rmtree(place)
    (scene.folder / "kept").rename(place)
    assert scene.run() == [0, 1, 2, 3]
    assert scene.run("new", start_over=True) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert scene.run("new") == [0, 0, 1, 1, 2, 2, 3, 3]
    with pytest.raises(CheckpointError, match=r"was last written from the checkpoint .*/new"):
        scene.run()


def test_a_run_without_a_checkpoint_delivers_each_time(scene: Scene) -> None:
    assert scene.run(None) == [0, 1]
    assert scene.run("state") == [0, 0, 1, 1]
    assert scene.run(None) == [0, 0, 0, 1, 1, 1]
    assert scene.run("state") == [0, 0, 0, 1, 1, 1]
    with pytest.raises(ConfigError, match="start_over is about sinks that another checkpoint has written"):
        scene.run(None, start_over=True)


def test_a_checkpoint_that_failed_before_its_first_batch_may_be_deleted(scene: Scene) -> None:
    (scene.folder / "in" / "0.ndjson").write_text('{"n": 0}\nno json\n')
    with pytest.raises(Exception, match=r"JSON|json"):
        scene.run()
    shutil.rmtree(scene.folder / "state")
    scene.add(0)
    assert scene.run() == [0, 1]


@pytest.mark.parametrize("scene", [("spark", kind) for kind in KINDS], ids="-".join, indirect=True)
def test_a_checkpoint_without_sparks_folder_is_lost(scene: Scene) -> None:
    assert scene.run() == [0, 1]
    home = scene.folder / "state" / "copies"
    assert home.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(home / "spark")
    scene.add(1)
    with pytest.raises(CheckpointError, match="what is there now is not that checkpoint"):
        scene.run()
    # Its numbers begin anew, and the sink takes none of its batches for one that it has.
    assert scene.run(start_over=True) == [0, 0, 1, 1, 2, 3]


@pytest.mark.parametrize("scene", [("spark", kind) for kind in KINDS[:2]], ids="-".join, indirect=True)
def test_of_two_copies_of_a_checkpoint_one_writes(scene: Scene) -> None:
    assert scene.run() == [0, 1]
    shutil.copytree(scene.folder / "state", scene.folder / "copy")
    scene.add(1)
    assert scene.run() == [0, 1, 2, 3]
    with pytest.raises(OwnershipLost, match="has taken over the sink"):
        scene.run("copy")
    assert scene.rows() == [0, 1, 2, 3]
