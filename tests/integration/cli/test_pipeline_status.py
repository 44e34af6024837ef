"""``queen pipeline ls`` and ``status``: pipelines as the broker knows them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.cli.running import Queen

JOB = """
from queenstream import Memory, Pipeline

totals = Pipeline("totals").source(Memory([{"n": 1}, {"n": 0}]), name="in").transform(
    "divide", lambda row: {"n": 1 / row["n"]}, on_error="skip"
).to(print)
"""


async def test_what_has_run_is_listed_and_shown(queen: Queen, tmp_path: Path) -> None:
    async with queen.terminal("pipeline", "ls") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines[0] == "no pipeline has told of itself; `queen pipeline run` runs one"
    (await queen("pipeline", "status", "totals")).failed(5, "no run of a pipeline totals")

    job = tmp_path / "jobs.py"
    job.write_text(JOB)
    assert (await queen("pipeline", "run", str(job), "--engine", "local")).code == 0
    listed = (await queen("pipeline", "ls")).row
    assert (listed["name"], listed["state"], listed["engine"]) == ("totals", "stopped", "local")
    shown = (await queen("pipeline", "status", "totals")).row
    assert shown["stats"]["messages"] == 2
    [divide] = [step for step in shown["steps"] if step["step"] == "divide"]
    assert divide | {"taken": 2, "given": 1, "failed": 1, "late": 0} == divide
    [sink] = shown["sinks"]
    assert sink | {"sink": "function:print", "rows": 1, "last_batch_rows": 1} == sink
    assert [each["phase"] for each in shown["phases"]] == ["read", "compute", "commit"]
    assert sum(each["share"] for each in shown["phases"]) == pytest.approx(1)
    said = (await queen("pipeline", "status", "totals", "-o", "yaml")).out
    assert "sinks:\n- sink: function:print\n" in said
    assert [node["name"] for node in shown["plan"]["nodes"]][:2] == ["in", "divide"]

    async with queen.terminal("pipeline", "ls") as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines[0].split()[:3] == ["PIPELINE", "STATE", "ENGINE"]
    assert terminal.lines[1].split()[:3] == ["totals", "stopped", "local"]
    async with queen.terminal("pipeline", "status", "totals") as terminal:
        assert await terminal.ended() == 0
    assert "state             stopped" in terminal.lines
    assert "errors            1" in terminal.lines
    assert any(line.split()[:5] == ["divide", "2", "1", "1", "0"] for line in terminal.lines)
    sinks = terminal.lines.index("sinks")
    assert terminal.lines[sinks + 1].split()[:4] == ["SINK", "ROWS", "ROWS/S", "BYTES"]
    assert terminal.lines[sinks + 2].split()[:2] == ["function:print", "1"]
    phases = terminal.lines.index("phases")
    assert terminal.lines[phases + 1].split() == ["PHASE", "TIME", "SHARE", "LAST", "BATCH"]
    assert [line.split()[0] for line in terminal.lines[phases + 2 : phases + 5]] == [
        "read",
        "compute",
        "commit",
    ]
