"""Checkpoints of pipelines that run on Spark: which there are in a folder, and what is in them."""

from __future__ import annotations

import importlib
import json
from collections.abc import Collection
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from queenstream.errors import CheckpointError, ConfigError, NotFound

if TYPE_CHECKING:
    from queenstream.pipeline.plan.fingerprints import Change
    from queenstream.pipeline.plan.planner import Plan


def pipelines_in(where: str) -> list[str]:
    """The names of the pipelines that have checkpoints of Spark in a folder; Spark is not asked."""
    found = []
    for path in Path(where.removeprefix("file://")).glob("*/run.json"):
        try:
            found.append(str(json.loads(path.read_text())["pipeline"]))
        except (ValueError, KeyError, TypeError):
            continue  # damaged, or somebody else's
    return sorted(found)


def listed(where: str, pipeline: str) -> list[dict[str, Any]]:
    """The batches that can be gone back to, the newest first."""
    checkpoints = _checkpoints()
    plan = checkpoints.fingerprint(where, pipeline)
    return [_summary(pipeline, each, plan) for each in checkpoints.batches(where, pipeline)]


def shown(where: str, pipeline: str, id: str) -> dict[str, Any]:
    """What is in a checkpoint: steps, positions, the watermark."""
    checkpoints = _checkpoints()
    batch = _find(checkpoints.batches(where, pipeline), pipeline, id)
    known = checkpoints.facts(where, pipeline)
    steps = [{"step": step, "kind": told["kind"], "facts": dict(told)} for step, told in known.items()]
    reads = [step for step, told in known.items() if told["kind"] == "read"]
    # Of several sources only Spark knows the order.
    names = reads if len(reads) == 1 else [f"source {number}" for number in range(len(batch.positions))]
    positions = [
        {"source": name, "of": "query", "position": position}
        for name, position in zip(names, batch.positions, strict=False)
    ]
    watermarks = [{"step": "query", "watermark": batch.watermark}] if batch.watermark is not None else []
    plan = checkpoints.fingerprint(where, pipeline)
    return {
        **_summary(pipeline, batch, plan),
        "steps": steps,
        "positions": positions,
        "watermarks": watermarks,
    }


def entries(
    where: str, pipeline: str, step: str | None, id: str | None, keys: Collection[str] | None, limit: int
) -> list[dict[str, Any]]:
    """What steps remember, of all keys or of some. Spark has to be started for that."""
    checkpoints = _checkpoints()
    known = checkpoints.facts(where, pipeline)
    if step is not None and step not in known:
        raise NotFound(f"there is no step {step} in that checkpoint; there are {', '.join(known)}")
    batch = _find(checkpoints.batches(where, pipeline), pipeline, id)
    found: list[dict[str, Any]] = checkpoints.shown_entries(
        _session(), where, pipeline, step=step, keys=keys, batch=batch.id, limit=limit
    )
    return found


def rescale(where: str, pipeline: str, partitions: int, master: str | None) -> Any:
    """Keep state in another number of partitions."""
    return _module("maintenance.rescale").rescale(where, pipeline, partitions, master=master)


def changes(plan: Plan, where: str, master: str | None, url: str | None) -> list[Change]:
    """What a run of a plan would make of a checkpoint."""
    from queenstream.pipeline.engine_api import RunOptions

    options = RunOptions.of({"master": master, "url": url})
    found: list[Change] = _module("maintenance.check").changes_of(plan, where, options)
    return found


def save(where: str, pipeline: str, to: Path) -> int:
    """Copy a checkpoint; gives its last batch."""
    home = Path(where.removeprefix("file://")) / _module("checkpoints.directory").slug(pipeline)
    batch: int = _module("maintenance.savepoint").save(home, to)
    return batch


def _checkpoints() -> ModuleType:
    return _module("checkpoints.inspection")


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(f"queenstream.engines.spark.{name}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"these checkpoints are Spark's, and {error.name} is missing; pip install 'queenstream[spark]'"
        ) from None


def _session() -> Any:
    from pyspark.sql import SparkSession

    from queenstream.engines.spark import session

    return SparkSession.getActiveSession() or session("queen pipeline state", "local[1]")


def _find(batches: list[Any], pipeline: str, id: str | None) -> Any:
    for batch in batches:
        if id is None or str(batch.id) == id:
            return batch
    if not batches:
        raise CheckpointError(f"no batch of {pipeline!r} is done; let the pipeline run a while")
    ids = ", ".join(str(batch.id) for batch in batches)
    raise CheckpointError(f"there is no checkpoint {id!r} of {pipeline!r}; name one of {ids}")


def _summary(pipeline: str, batch: Any, plan: str) -> dict[str, Any]:
    """As of the local engine's; how many keys there are is not counted, as Spark would have to be started."""
    return {
        "id": str(batch.id),
        "pipeline": pipeline,
        "committed_at": batch.at,
        "epoch": batch.id,
        "keys": None,
        "bytes": None,
        "clean": None,
        "fingerprint": plan,
    }
