"""In how many partitions a checkpoint keeps the state of its query."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from queenstream.errors import CheckpointError

if TYPE_CHECKING:
    from queenstream.engines.spark.sinks.storage import SmallFiles

_OFFSETS, _COMMITS = "spark/offsets", "spark/commits"
_SHUFFLE_PARTITIONS = "spark.sql.shuffle.partitions"


def check_partitions(storage: SmallFiles, asked: int) -> None:
    """Refuse a number of partitions that is not the one of a checkpoint, if there is one yet.

    Spark goes on with the number of the checkpoint, whatever it is told.
    """
    kept = kept_partitions(storage)
    if kept is not None and kept != asked:
        raise CheckpointError(
            f"the checkpoint {storage.root} keeps its state in {kept} partitions, and partitions is {asked}; "
            f"leave partitions out or write partitions={kept} to go on, or change the number with "
            f"`queen pipeline rescale CHECKPOINT --partitions {asked}`"
        )


def check_rescaled(storage: SmallFiles) -> None:
    """Refuse a checkpoint whose rescale was interrupted."""
    asked = interrupted_rescale(storage)
    if asked is not None:
        raise CheckpointError(
            f"a rescale of {storage.root} to {asked} partitions was interrupted; complete it with "
            f"`queen pipeline rescale CHECKPOINT --partitions {asked}`"
        )


def interrupted_rescale(storage: SmallFiles) -> int | None:
    """The number of partitions of a rescale that did not complete; None: there is none."""
    planned, done = last_batch(storage, _OFFSETS), last_batch(storage, _COMMITS)
    if done is None or planned == done:
        return None
    asked = kept_partitions(storage, planned)
    return asked if asked != kept_partitions(storage, done) else None


def last_batch(storage: SmallFiles, log: str = _COMMITS) -> int | None:
    """The number of the last batch that is done, or in another log of the checkpoint; None: there is none."""
    return max((int(each) for each in storage.names(log) if each.isdecimal()), default=None)


def kept_partitions(storage: SmallFiles, batch: int | None = None) -> int | None:
    """The number with which a batch, by default the last, was planned; None: there was no batch."""
    if batch is None:
        batch = last_batch(storage, _OFFSETS)
    lines = b"" if batch is None else storage.read(f"{_OFFSETS}/{batch}") or b""
    return None if not lines else partitions_of(lines.decode())


def partitions_of(offsets: str) -> int | None:
    """The number of partitions in the text of a batch's offsets; None: it is not noted there."""
    lines = offsets.splitlines()
    if len(lines) < 2:
        return None
    # A version, what is about the batch itself, and a line for each source.
    about: dict[str, Any] = json.loads(lines[1])
    found = about.get("conf", {}).get(_SHUFFLE_PARTITIONS)
    return None if found is None else int(found)
