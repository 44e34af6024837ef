"""Going back to an older batch of a checkpoint: what came after it is moved aside.

Of a query Spark keeps, by the number of the batch, how far each went (``offsets``), that it is done
(``commits``), and what the steps with state remember, whose version after batch n is n + 1. Without the newer
ones it goes on after the older batch as it did the first time. Newer state must not stay: a version that is
made anew is built on the last snapshot before it, and that might be one of what was taken back.

What the driver has read stays where it is (``feed``), as does Spark's list of these files: the query takes
them again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from queenstream.engines.spark.checkpoints.partitions import partitions_of
from queenstream.errors import CheckpointError

ASIDE = "rewound"
"""The folder of a home with what the last rewind took back; the next one, or somebody, deletes it."""

_BATCH = re.compile(r"\.?(\d+)(?:\.crc)?")  # of a log: 7, and .7.crc beside it
_VERSION = re.compile(r"\.?(\d+)(?:_[^.]*)?\.(zip|changelog|delta|snapshot)(?:\.crc)?")
_PREPARED = re.compile(r"(\d+)")


def check(home: Path, batch: int) -> None:
    """See that all is there that is needed to go on after a batch; ``CheckpointError`` says what is not."""
    spark = home / "spark"
    missing = [spark / kind / str(batch) for kind in ("offsets", "commits")]
    missing = [each for each in missing if not each.is_file()]
    if not missing:
        _check_partitions(spark, batch)
    stores = {path.parent for path in (spark / "state").rglob("*") if _VERSION.fullmatch(path.name)}
    if not missing:
        stores = set(_used(stores, spark, batch))
    missing += [store / f"{batch + 1}.changelog" for store in sorted(stores) if not _has(store, batch + 1)]
    if missing:
        raise CheckpointError(
            f"the checkpoint of batch {batch} is damaged: {missing[0]} is not there, or what it builds on; "
            "put a copy back, or go back to another one"
        )


def _used(stores: Iterable[Path], spark: Path, batch: int) -> Iterator[Path]:
    """Those of the partitions that there are: a rescale to fewer leaves the others as they were."""
    partitions = partitions_of((spark / "offsets" / str(batch)).read_text())
    for store in stores:
        partition = store.relative_to(spark / "state").parts[1]
        if partitions is None or not partition.isdecimal() or int(partition) < partitions:
            yield store


def _check_partitions(spark: Path, batch: int) -> None:
    """Going back over a rescale is refused: what Spark notes of its operators is not kept by batch."""
    last = max(int(each.name) for each in (spark / "offsets").iterdir() if each.name.isdecimal())
    now, then = (partitions_of((spark / "offsets" / str(each)).read_text()) for each in (last, batch))
    if now != then:
        raise CheckpointError(
            f"batch {batch} had its state in {then} partitions, and the checkpoint was rescaled to {now} "
            "since then; go back to a batch after that, or begin from a savepoint of before"
        )


def _has(store: Path, version: int) -> bool:
    """Whether a version of the state can be loaded: from a snapshot, and the changes since."""
    there = {path.name for path in store.iterdir()}
    while version > 0 and not {f"{version}.zip", f"{version}.snapshot"} & there:
        if not {f"{version}.changelog", f"{version}.delta"} & there:
            return False
        version -= 1
    return True


def take_back(home: Path, batch: int, name: str) -> None:
    """Move aside all that came after a batch. Done twice, it does the rest of what was not done."""
    aside = home / ASIDE
    for other in aside.iterdir() if aside.is_dir() else ():
        if other.name != name:
            shutil.rmtree(other)
    for path in list(_newer(home, batch)):
        kept = aside / name / path.relative_to(home)
        kept.parent.mkdir(parents=True, exist_ok=True)
        path.rename(kept)


def _newer(home: Path, batch: int) -> Iterator[Path]:
    spark = home / "spark"
    for path in (spark / "state").rglob("*"):
        found = _VERSION.fullmatch(path.name)
        if found is not None and int(found[1]) > batch + 1:
            yield path
    for log in ((spark / "state").glob("*/_metadata/v2"), [spark / "offsets", spark / "commits"]):
        for folder in log:
            yield from _after(folder, _BATCH, batch)
    yield from _after(home / "prepared", _PREPARED, batch)


def _after(folder: Path, named: re.Pattern[str], batch: int) -> Iterator[Path]:
    for path in folder.iterdir() if folder.is_dir() else ():
        found = named.fullmatch(path.name)
        if found is not None and int(found[1]) > batch:
            yield path
