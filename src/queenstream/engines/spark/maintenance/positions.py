"""Positions of sources in a savepoint of the local engine, for a run on Spark that begins there.

``positions.json`` in the savepoint has the positions by step, the facts of the plan, the id by which sinks
know the checkpoint, and how many epochs may not have been delivered. Of a queue the local engine knows a
message for each partition, and Spark one id for the whole queue.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from queenstream.engines.spark.datasource.database import connected
from queenstream.errors import CheckpointError
from queenstream.pipeline.endpoints import Kafka, Queue
from queenstream.pipeline.plan import fingerprints
from queenstream.pipeline.plan.planner import Plan

Positions: TypeAlias = Mapping[str, Any]
"""Of one source: by the name of a partition, where it was read to."""

FILE = "positions.json"


def positions_of(savepoint: Path, plan: Plan) -> dict[str, dict[str, Any]]:
    """Where the sources of a plan were, if it can begin there on Spark."""
    saved = json.loads((savepoint / FILE).read_text())
    kept = [node for node in plan.nodes if node.keeps_state]
    if kept:
        raise CheckpointError(
            f"{kept[0].name} ({kept[0].where}) has state, and {savepoint} is a savepoint of the local "
            "engine, whose state Spark does not read; go on with engine='local', or begin anew"
        )
    changes = fingerprints.compare(saved["facts"], plan.state)
    broken = [f"{change.step}: {change.why}" for change in changes if change.verdict != "kept"]
    if broken:
        raise CheckpointError(f"the plan does not fit the savepoint {savepoint}: {'; '.join(broken)}")
    if saved["undelivered"]:
        raise CheckpointError(
            f"{savepoint} has rows of {saved['undelivered']} epochs that may not have been delivered; "
            "stop the run of the local engine, and take a savepoint then"
        )
    for read in plan.sources:
        if not isinstance(read.source, Queue | Kafka):
            raise CheckpointError(
                f"{read.name} ({read.where}) is neither a queue nor a topic, and Spark cannot begin where "
                "the local engine was; go on with engine='local', or begin anew"
            )
    found: dict[str, dict[str, Any]] = saved["positions"]
    return {read.name: found[read.name] for read in plan.sources if found.get(read.name)}


def checkpoint_id_of(savepoint: Path) -> str:
    """The id of the checkpoint that a savepoint is of: sinks that it has written take the new run, too."""
    found: str = json.loads((savepoint / FILE).read_text())["checkpoint_id"]
    return found


def queue_start(source: Queue, url: str, positions: Positions) -> int:
    """The id up to which all messages of a queue were read.

    ``CheckpointError``, if the last message that was read has others before it that were not.
    """
    last = max(int(id) for id, _ in positions.values())
    with connected(url) as database:
        found = database.rows(
            "select p.name, s.last_id from queen.queues q "
            "cross join lateral queen.span(q.id, 0, $2) s join queen.partitions p on p.id = s.partition_id "
            "where q.name = $1",
            source.name,
            last,
        )
    behind = [
        name
        for name, id in found
        if source.partition in (None, name) and (name not in positions or int(positions[name][0]) < id)
    ]
    if behind:
        raise CheckpointError(
            f"queue {source.name} has messages that the local engine had not read, of partition {behind[0]}, "
            "before others that it had; run it there with until='caught_up', and take a savepoint then"
        )
    return last


def kafka_start(positions: Positions) -> dict[str, dict[int, int]]:
    """The next offset of each partition, as the option ``start`` of a topic has it.

    >>> kafka_start({"clicks/0": 7, "clicks/1": 9})
    {'clicks': {0: 7, 1: 9}}
    """
    found: dict[str, dict[int, int]] = {}
    for name, offset in positions.items():
        topic, _, partition = name.rpartition("/")
        if offset is not None:
            found.setdefault(topic, {})[int(partition)] = int(offset)
    return found
