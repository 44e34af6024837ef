"""Repartitions the state of a checkpoint, with Spark's own code for that (Spark 4.2 and newer).

Spark adds a batch to the checkpoint that reads nothing: it has the offsets of the batch before, another
number of partitions, and a new version of the state, which tasks write. Older versions stay as they are. If
it is killed in the middle, the batch is there without its commit: ``rescale`` with the same number completes
it, and a run is refused until then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from queenstream.engines.spark.checkpoints.directory import reserved
from queenstream.engines.spark.checkpoints.partitions import (
    check_rescaled,
    interrupted_rescale,
    kept_partitions,
    last_batch,
)
from queenstream.engines.spark.session.factory import query_session
from queenstream.engines.spark.sinks.owner import take_ownership
from queenstream.engines.spark.sinks.storage import SmallFiles, folder_at
from queenstream.engines.spark.versions import state_repartition
from queenstream.errors import CheckpointError, ConfigError

_STATE, _OFFSETS = "spark/state", "spark/offsets"


@dataclass(frozen=True)
class Rescaled:
    """In how many partitions the state was, and is. ``batch``: the last batch of the checkpoint."""

    pipeline: str
    before: int
    partitions: int
    batch: int


def rescale(checkpoint: str, pipeline: str, partitions: int, *, master: str | None = None) -> Rescaled:
    """Keep the state of a checkpoint in another number of partitions. No run may use it meanwhile.

    >>> rescale("state/", "totals", 8)  # doctest: +SKIP
    Rescaled(pipeline='totals', before=4, partitions=8, batch=42)
    """
    if partitions < 1:
        raise ConfigError(f"partitions is {partitions}; write a whole number from 1 on")
    session = query_session(f"{pipeline} rescale", master)
    with reserved(session, checkpoint, pipeline) as root:
        storage = folder_at(session, root)
        before = _kept(storage, pipeline, partitions)
        if before != partitions:
            take_ownership(storage)  # a run on another machine must not add a batch meanwhile
            _repartition(session, f"{root}/spark", partitions)
        return Rescaled(pipeline, before, partitions, last_batch(storage) or 0)


def _kept(storage: SmallFiles, pipeline: str, partitions: int) -> int:
    """In how many partitions the state is, or was before an interrupted rescale to the same number."""
    done, kept = last_batch(storage), None
    if done is not None:
        kept = kept_partitions(storage, done)
    if done is None or kept is None:
        raise CheckpointError(
            f"no batch of {pipeline!r} is done in {storage.root}; let the pipeline run first"
        )
    if not storage.names(_STATE):
        raise CheckpointError(
            f"the checkpoint {storage.root} has no state; run the pipeline with "
            f"partitions={partitions} instead"
        )
    begun = interrupted_rescale(storage)
    if begun not in (None, partitions):
        check_rescaled(storage)
    if begun is None and last_batch(storage, _OFFSETS) != done:
        raise CheckpointError(
            f"batch {last_batch(storage, _OFFSETS)} of {pipeline!r} is not done; run the pipeline once with "
            "until='caught_up', and rescale then"
        )
    return kept


def _repartition(spark: SparkSession, root: str, partitions: int) -> None:
    runner = state_repartition(spark)
    if runner is None:
        raise CheckpointError(
            "this version of Spark cannot repartition state; run the command with Spark 4.2 or newer "
            "(pip install 'pyspark>=4.2')"
        )
    of_java: Any = spark
    try:
        runner(of_java._jsparkSession, root, partitions, True).run()
    except Py4JError as error:
        cause = str(getattr(error, "java_exception", error)).splitlines()[0]
        raise CheckpointError(
            f"Spark could not repartition the state in {root}: {cause}; the state before is unchanged, "
            "run the command again"
        ) from error
