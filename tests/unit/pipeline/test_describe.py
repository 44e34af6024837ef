"""Plans as text, JSON and pictures: compared with what is stored in snapshots/.

To store them anew, after a change that is meant, run this file with ``UPDATE_SNAPSHOTS=1``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from queenstream.core.schemas import Schema
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory, Queue, Record
from queenstream.pipeline.plan import svg
from queenstream.pipeline.plan.svg import Box
from tests.unit.pipeline import jobs

HERE = Path(__file__).parent
SVG = "{http://www.w3.org/2000/svg}"
Form = Literal["text", "json", "svg"]
FORMS: list[tuple[Form, str]] = [("text", "txt"), ("json", "json"), ("svg", "svg")]
JOBS: list[Callable[[], Pipeline[Record]]] = [jobs.user_activity, jobs.orders, jobs.pages]


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Places are shown from the working folder."""
    monkeypatch.chdir(HERE)


@pytest.mark.parametrize(("form", "suffix"), FORMS)
@pytest.mark.parametrize("job", JOBS)
def test_a_plan_looks_as_it_did(job: Callable[[], Pipeline[Record]], form: Form, suffix: str) -> None:
    stored = HERE / "snapshots" / f"{job.__name__}.{suffix}"
    found = job().describe(form)
    if os.environ.get("UPDATE_SNAPSHOTS"):
        stored.write_text(found, "utf-8")
    assert found == stored.read_text("utf-8")


def test_a_plan_looks_the_same_in_another_process() -> None:
    script = "from tests.unit.pipeline import jobs; print(jobs.orders().describe('json'), end='')"
    root = str(HERE.parents[2])
    environment = {**os.environ, "PYTHONPATH": root, "PYTHONHASHSEED": "7"}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=HERE, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == jobs.orders().describe("json")


def test_json_has_everything_and_no_secrets() -> None:
    document = json.loads(jobs.user_activity().describe("json"))
    by_name = {node["name"]: node for node in document["nodes"]}
    assert document["fingerprint"] == jobs.user_activity().plan().fingerprint
    assert by_name["aggregate"]["inputs"] == ["event_time"]
    assert by_name["aggregate"]["state"]
    assert by_name["parse"]["where"].startswith("jobs.py:")
    assert by_name["enrich"]["details"] == {"what": "async enrich", "concurrency": "32", "timeout": "2s"}
    assert by_name["enrich"]["on_error"] == "retry 5 times, exponential from 1s, then fail"
    columns = Schema.of(by_name["aggregate"]["schema"])
    assert columns.names == ("window_start", "window_end", "user_id", "event_count", "total", "users")
    assert "hunter2" not in "".join(jobs.user_activity().describe(form) for form, _ in FORMS)


def test_text_says_where_a_step_does_not_follow_the_line_above() -> None:
    lines = jobs.orders().describe().splitlines()
    [join] = [line for line in lines if " join " in line]
    assert "from with_columns, deduplicate" in join
    [filtered] = [line for line in lines if " filter " in line]
    assert "from join" in filtered
    [summed] = [line for line in lines if "by-country" in line and " aggregate " in line]
    assert "| from" not in summed


def drawn(pipeline: Pipeline[Any]) -> ET.Element:
    return ET.fromstring(pipeline.describe("svg"))


def corners(box: ET.Element) -> tuple[float, float, float, float]:
    x, y, width, height = (float(box.attrib[name]) for name in ("x", "y", "width", "height"))
    return x, y, x + width, y + height


@pytest.mark.parametrize("job", JOBS)
def test_the_boxes_of_a_picture_lie_apart_and_inside(job: Callable[[], Pipeline[Record]]) -> None:
    picture = drawn(job())
    boxes = [corners(box) for box in picture.iter(f"{SVG}rect") if "box" in box.attrib["class"]]
    assert len(boxes) == len(job().plan().nodes)
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    for at, (left, top, right, bottom) in enumerate(boxes):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        for other in boxes[at + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] or other[3] <= top


def test_a_line_past_other_boxes_has_a_lane_of_its_own() -> None:
    boxes = [
        Box("a", "", "end", ()),
        Box("b", "", "step", ("a",)),
        Box("c", "", "step", ("b",)),
        Box("d", "", "end", ("c", "a")),
    ]
    picture = ET.fromstring(svg.draw("lanes", boxes))
    paths = [path.attrib["d"] for path in picture.iter(f"{SVG}path") if path.attrib["class"] == "line"]
    passing = [float(path[1 : path.index(",")]) for path in paths if "V" in path]
    assert len(passing) == 2
    steps = [corners(box) for box in picture.iter(f"{SVG}rect") if "step" in box.attrib["class"]]
    assert all(not left < x < right for left, _, right, _ in steps for x in passing)


def test_names_cannot_break_out_of_the_picture() -> None:
    hostile = "</text><script>alert('1')</script>\x00\x1b&\"'"
    pipeline = (
        Pipeline(hostile)
        .source(Queue(hostile))
        .transform(hostile, lambda record: record)
        .to(print, name="sink")
    )
    picture = drawn(pipeline)
    assert not list(picture.iter(f"{SVG}script"))
    shown = "".join(picture.itertext())
    assert "<script>" in shown
    assert "\x00" not in shown
    json.loads(pipeline.describe("json"))


def test_a_picture_knows_light_and_dark() -> None:
    picture = Pipeline("p").source(Memory([1])).to(print).describe("svg")
    assert "prefers-color-scheme: dark" in picture
    assert 'role="img"' in picture or "role='img'" in picture


def test_a_look_up_before_state_has_a_note() -> None:
    rows = Pipeline("notes").source(Queue("events"), name="in")
    users = Queue("users")
    before = rows.lookup(users, on="id", into="user", name="who").deduplicate("id", within="1h", name="once")
    assert "Note: who looks up values before once, which keeps state." in before.to(print).describe()
    assert len(json.loads(before.to(print).describe("json"))["notes"]) == 1
    after = rows.deduplicate("id", within="1h", name="once").lookup(users, on="id", into="user", name="who")
    assert "Note" not in after.to(print).describe()
