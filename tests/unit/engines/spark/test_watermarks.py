"""The watermark in Spark's logs, and which sources are idle, without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from queenstream.engines.spark.compile import clock_groups
from queenstream.engines.spark.sinks.storage import Folder
from queenstream.engines.spark.watermarks.idle import Groups, IdleSources, check_sources, has_idle
from queenstream.engines.spark.watermarks.log import plan_due_batch
from queenstream.engines.spark.watermarks.marks import Marks, beginning
from queenstream.errors import CheckpointError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.shorthand import count, tumbling


class Home:
    """A folder with Spark's logs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.storage = Folder(str(root))

    def batch(self, number: int, watermark: int, after: int | None = None, *positions: Any) -> None:
        """A batch that was planned at a watermark, and is done if that is known ``after`` it."""
        about = {"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": {"a": "b"}}
        lines = ["v1", json.dumps(about), *map(json.dumps, positions)]
        self.storage.write(f"spark/offsets/{number}", "\n".join(lines).encode())
        if after is not None:
            done = json.dumps({"nextBatchWatermarkMs": after, "stateUniqueIds": {}})
            self.storage.write(f"spark/commits/{number}", f"v2\n{done}".encode())

    def marks(self) -> Marks | None:
        """What Spark's planning process finds."""
        found = [*self.root.glob("planning/marks.json")]
        return Marks.of(json.loads(found[0].read_text())) if found else None


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_the_batch_that_closes_what_is_due_is_a_copy_at_the_new_watermark(home: Home) -> None:
    home.batch(0, 0, 5, {"id": 1})
    home.batch(1, 5, 9, {"id": 2}, {"logOffset": 3})
    assert plan_due_batch(home.storage) == 2
    version, about, *positions = (home.root / "spark" / "offsets" / "2").read_text().splitlines()
    assert version == "v1"
    told = json.loads(about)
    assert (told["batchWatermarkMs"], told["conf"]) == (9, {"a": "b"})
    assert told["batchTimestampMs"] > 1
    assert [json.loads(each) for each in positions] == [{"id": 2}, {"logOffset": 3}]
    assert plan_due_batch(home.storage) is None  # it is to run first


def test_nothing_is_planned_where_nothing_is_due(home: Home) -> None:
    assert plan_due_batch(home.storage) is None
    home.batch(0, 0)  # it was not done
    assert plan_due_batch(home.storage) is None
    home.batch(0, 7, 7)
    assert plan_due_batch(home.storage) is None
    home.storage.write("spark/commits/0", b"v1\n{")  # Spark says what is wrong
    assert plan_due_batch(home.storage) is None
    assert home.storage.names("spark/offsets") == ["0"]


def groups(idle: str | None = "5s") -> Groups:
    """Those of two sources, the second of which may be idle."""
    other: Pipeline[Any] = Pipeline("p").source(Memory([]), name="b", idle_timeout=idle).event_time("at")
    both = Pipeline("p").source(Memory([]), name="a").event_time("at").union(other)
    return clock_groups(both.window(tumbling("1s")).aggregate(n=count()).to(print).plan())


def test_only_plans_with_sources_that_wait_for_an_idle_one_need_more_than_sparks_watermark() -> None:
    alone: Pipeline[Any] = Pipeline("p").source(Memory([]), idle_timeout="5s").event_time("at")
    plan = alone.window(tumbling("1s")).aggregate(n=count()).to(print).plan()
    assert [has_idle(each) for each in (groups(), groups(None), clock_groups(plan))] == [True, False, False]


def test_a_query_begins_with_the_marks_of_the_last_batch_and_not_with_those_gone_back_behind(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    def folder(prefix: str) -> str:
        (home.root / "planning").mkdir(exist_ok=True)
        return str(home.root / "planning")

    monkeypatch.setattr("tempfile.mkdtemp", folder)

    def begun() -> Marks | None:
        IdleSources(groups(), home.storage).begin()
        return home.marks()

    assert begun() == beginning(2)
    home.batch(4, 50, 50, {"id": 1}, Marks(6, (60, 50), (False, True)).offset())
    assert begun() == Marks(7, (60, 50), (False, True))  # as they are logged
    stored = {"batch": 4, **Marks(8, (90, 55), (False, False)).offset()}
    home.storage.write("watermarks.json", json.dumps(stored).encode())
    assert begun() == Marks(9, (90, 55), (False, False))
    home.storage.write("watermarks.json", json.dumps({**stored, "batch": 5}).encode())
    assert begun() == Marks(9, (60, 50), (False, True))  # with a number that nobody has seen
    home.storage.write("watermarks.json", b"{}")
    with pytest.raises(CheckpointError, match=r"watermarks\.json is damaged; put a copy back"):
        begun()


def test_a_checkpoint_is_refused_if_idle_sources_came_or_went(home: Home) -> None:
    check_sources(home.storage, groups())
    home.batch(0, 0, 0, {"id": 1})
    with pytest.raises(CheckpointError, match="has no source with an idle_timeout"):
        check_sources(home.storage, groups())
    home.batch(1, 0, 0, {"id": 1}, beginning(2).offset())
    check_sources(home.storage, groups())
    with pytest.raises(CheckpointError, match="has sources with an idle_timeout"):
        check_sources(home.storage, groups(None))
