"""In how many partitions a checkpoint keeps the state of its query."""

from __future__ import annotations

import json
from typing import Any

from queenstream.errors import CheckpointError
from queenstream.spark.sinks.storage import SmallFiles

_OFFSETS = "spark/offsets"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def check_partitions(storage: SmallFiles, asked: int) -> None:
    """Refuse a number of partitions that is not the one of a checkpoint, if there is one yet.

    Spark goes on with the number of the checkpoint, whatever it is told.
    """
    kept = kept_partitions(storage)
    if kept is not None and kept != asked:
        raise CheckpointError(
            f"the checkpoint {storage.root} keeps its state in {kept} partitions, and partitions is {asked}; "
            f"leave partitions out or write partitions={kept} to go on, or take another checkpoint folder to "
            "begin anew"
        )


def kept_partitions(storage: SmallFiles) -> int | None:
    """The number with which the last batch of a checkpoint was planned; None: there was no batch."""
    batches = [int(each) for each in storage.names(_OFFSETS) if each.isdecimal()]
    if not batches:
        return None
    lines = (storage.read(f"{_OFFSETS}/{max(batches)}") or b"").decode().splitlines()
    # A version, what is about the batch itself, and a line for each source.
    about: dict[str, Any] = json.loads(lines[1])
    found = about.get("conf", {}).get(_SHUFFLE_PARTITIONS)
    return None if found is None else int(found)
