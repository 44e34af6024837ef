"""Says in advance what a run of a changed plan would do with a checkpoint; nothing is changed."""

from __future__ import annotations

import tempfile
from pathlib import Path

from queenstream.engines.spark.checkpoints.directory import Home, root_of, stored_layout
from queenstream.engines.spark.compile import check as check_plan
from queenstream.engines.spark.compile import clock_groups, query_order
from queenstream.engines.spark.maintenance.changes import Layout, changes_between, chosen, layout_of
from queenstream.engines.spark.maintenance.state_columns import change_of_columns
from queenstream.engines.spark.native.planner import Native, native_or_reason
from queenstream.engines.spark.session.factory import query_session
from queenstream.engines.spark.sinks.storage import SmallFiles, folder_at
from queenstream.engines.spark.sources.load import Sources
from queenstream.engines.spark.sources.sources import is_fed
from queenstream.engines.spark.watermarks.idle import check_sources, has_idle
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.plan.fingerprints import Change
from queenstream.pipeline.plan.planner import Plan


def changes_of(plan: Plan, checkpoint: str, options: RunOptions) -> list[Change]:
    """What becomes of each step's part of a checkpoint, and which sinks are new, gone or changed."""
    check_plan(plan)
    spark = query_session(f"{plan.name} check", options.master)
    stored = stored_layout(spark, checkpoint, plan.name)
    sources = Sources(spark, plan, options)
    found = native_or_reason(plan, sources.rows)
    layout = chosen(stored, *layouts_of(plan, found))
    changes = changes_between(stored, layout)
    if not all(each.harmless for each in changes):
        return changes
    storage, groups = folder_at(spark, root_of(checkpoint, plan.name)), clock_groups(plan)
    check_sources(storage, groups)
    if layout.native and layout.has_state and not has_idle(groups):
        changed = _change_of_columns(plan, sources, storage)
        changes = [each if changed is None or each.step != changed.step else changed for each in changes]
    return changes


def _change_of_columns(plan: Plan, sources: Sources, storage: SmallFiles) -> Change | None:
    """Compare the columns of state, of a plan whose checkpoint is a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="queenstream-") as folder:
        home = sources.home = Home(folder, Path(folder), "", temporary=True)
        for read in plan.sources:
            if is_fed(read.source):
                home.feed(read.name).mkdir(parents=True)
        sources.open_files(home)
        found = native_or_reason(plan, sources.rows)
        return change_of_columns(storage, found) if isinstance(found, Native) else None


def layouts_of(plan: Plan, found: Native | str) -> tuple[Layout, Layout]:
    """The layout of a plan, and that in Python. ``found``: the plan without Python, or what needs it."""
    in_python = layout_of(plan, query_order(plan), python="the plan of before")
    if isinstance(found, Native):
        return layout_of(plan, found.order), in_python
    in_python = layout_of(plan, query_order(plan), python=found)
    return in_python, in_python
