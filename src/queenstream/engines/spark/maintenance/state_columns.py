"""Checks that a plan without Python keeps the same columns in its state as the checkpoint has.

<checkpoint>/<pipeline>/state.json     the columns, and the version of Spark that chose them
"""

from __future__ import annotations

import msgspec
import pyspark

from queenstream.engines.spark.native.planner import Native
from queenstream.engines.spark.native.state import state_columns
from queenstream.engines.spark.sinks.storage import SmallFiles
from queenstream.pipeline.plan.fingerprints import Change

_FILE = "state.json"


class _Stored(msgspec.Struct):
    spark: str
    columns: list[str]


def note_state_columns(storage: SmallFiles, plan: Native) -> None:
    """Note the columns of a plan that begins, or goes on from the checkpoint."""
    data = msgspec.json.encode(_Stored(pyspark.__version__, state_columns(plan.rows)))
    if storage.read(_FILE) != data:
        storage.write(_FILE, data)


def change_of_columns(storage: SmallFiles, plan: Native) -> Change | None:
    """What is another one in the state of a plan; None: nothing, or it is not known.

    Another version of Spark may choose other columns for the same plan: what these are, Spark itself checks.
    """
    step = plan.with_state
    found = storage.read(_FILE) if step is not None and storage.names("spark/state") else None
    stored = None if found is None else msgspec.json.decode(found, type=_Stored)
    if step is None or stored is None or stored.spark != pyspark.__version__:
        return None
    now = state_columns(plan.rows)
    if now == stored.columns:
        return None
    had = "; ".join(each for each in stored.columns if each not in now)
    has = "; ".join(each for each in now if each not in stored.columns)
    return Change(
        step.name,
        "changed",
        f"Spark keeps {had} for it, and would keep {has}, since steps before or behind it read other fields; "
        "undo that, or take another checkpoint folder to begin anew",
    )
