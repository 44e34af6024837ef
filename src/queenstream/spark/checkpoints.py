"""Looking into a pipeline's checkpoint on Spark: its batches, and what a step remembers of a key.

>>> [each.id for each in batches("state/", "totals")]  # doctest: +SKIP
[7, 6, 5]
>>> state(spark, "state/", "totals", "aggregate", "u1")  # doctest: +SKIP
{'arrived': 2, 'windows': {0: [2]}}
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from queenstream.errors import ConfigError
from queenstream.pipeline.keys import key_text
from queenstream.pipeline.records import moment
from queenstream.spark import flow
from queenstream.spark.homes import slug
from queenstream.spark.packing import unpack


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch that is done. ``watermark``: how far event time was when it began, if it goes by that."""

    id: int
    at: datetime
    watermark: datetime | None


def batches(checkpoint: str | Path, pipeline: str) -> list[BatchInfo]:
    """The batches that a checkpoint knows, the newest first."""
    root = _root(checkpoint, pipeline)
    done = [each for each in (root / "commits").glob("*") if each.name.isdecimal()]
    found = [_info(each, root / "offsets" / each.name) for each in done]
    return sorted(found, key=lambda each: each.id, reverse=True)


def state(spark: SparkSession, checkpoint: str | Path, pipeline: str, step: str, key: Any) -> Any:
    """What a step remembers of a key, after the last batch; None: nothing.

    ``key`` is the value of a single key, a tuple of several, or None where there is none. The windows of a
    plan that runs without Python are Spark's own, and can be read with ``format("statestore")``.
    """
    root = str(_root(checkpoint, pipeline))
    operators = spark.read.format("state-metadata").load(root).select("operatorId", "operatorName").collect()
    for operator in operators:
        if operator.operatorName != "transformWithStateInPySparkExec":
            continue
        entries = (
            spark.read.format("statestore")
            .option("path", root)
            .option("operatorId", operator.operatorId)
            .option("stateVarName", "state")
            .load()
        )
        found = entries.where((f.col("key.node") == step) & (f.col("key.grp") == key_text(key)))
        row = found.select("value.text").first()
        if row is not None:
            return unpack(row.text)["held"]
    return None


def _root(checkpoint: str | Path, pipeline: str) -> Path:
    root = Path(checkpoint) / slug(pipeline) / "spark"
    if not (root / "commits").is_dir():
        raise ConfigError(
            f"there is no checkpoint of {pipeline!r} in {checkpoint}; run the pipeline once, or check "
            "its name and the place"
        )
    return root


def _info(commit: Path, offsets: Path) -> BatchInfo:
    written = datetime.fromtimestamp(commit.stat().st_mtime, UTC)
    return BatchInfo(int(commit.name), written, _watermark(offsets))


def _watermark(offsets: Path) -> datetime | None:
    """The second line of what Spark stores of a batch is about the batch itself."""
    if not offsets.exists():
        return None
    about = json.loads(offsets.read_text().splitlines()[1])
    reached = flow.from_watermark(int(about.get("batchWatermarkMs", 0)))
    return None if reached is None else moment(reached)
