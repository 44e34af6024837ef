"""What docs/tables.md and docs/lookups.md show is a pipeline that can run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from queenstream.core.schemas import Schema
from queenstream.pipeline.endpoints import Postgres
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.planner import Plan

DOCS = Path(__file__).parents[3] / "docs"


def plan_of(page: str) -> Plan:
    """The pipeline of a page, checked and not run."""
    [code] = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert code.endswith("    .run()\n)\n")
    imports, _, chain = code.partition("\n(\n")
    names: dict[str, Plan] = {}
    ended = chain.removesuffix(".run()\n)\n")
    exec(f"{imports}\nplan = (\n{ended}.plan()\n)", names)  # our own page
    return names["plan"]


def test_tables() -> None:
    plan = plan_of("tables.md")
    [table] = [write.sink for write in plan.sinks if isinstance(write.sink, Postgres)]
    known = "window_start timestamp, window_end timestamp, shop string, n bigint"
    assert table.schema == Schema.of(known), "it is made of the fields that reach it"


def test_lookups() -> None:
    kinds = [type(node) for node in plan_of("lookups.md").nodes]
    assert kinds == [nodes.Read, nodes.Lookup, nodes.Filter, nodes.Lookup, nodes.Write]


@pytest.mark.parametrize("page", ["tables.md", "lookups.md"])
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", (DOCS / page).read_text("utf-8")):
        assert (DOCS / link).exists(), link
