"""Savepoints: copies of a checkpoint as it was after a batch, from which pipelines start.

A savepoint is a folder like a checkpoint's, with ``savepoint.json`` in it. It is never written to: a pipeline
that starts from it gets a copy in its own checkpoint folder. That copy has a generation of its own, so sinks
take what it delivers as new.
"""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queenstream.engines.spark.checkpoints import rewind
from queenstream.errors import CheckpointError, ConfigError

NOTE = "savepoint.json"
_LEFT_OUT = frozenset({"lock", "owners", "prepared", rewind.ASIDE})
_TABLES = "SSTs"  # RocksDB's files, to which the versions of the state refer
_TRIES = 3  # of copying what a run changes meanwhile


def save(home: Path, to: Path) -> int:
    """Copy the checkpoint of a pipeline as it is after its last batch, which is returned; a run may go on.

    >>> save(Path("state/totals"), Path("before-the-change"))  # doctest: +SKIP
    42
    """
    if to.exists() and any(to.iterdir()):
        raise ConfigError(f"{to} is not empty; name a new folder for the savepoint")
    plan = json.loads((home / "run.json").read_text())
    if "rewind" in plan:
        raise CheckpointError(
            f"the checkpoint {home} is going back to an older batch; run the pipeline once first"
        )
    unfinished = to.with_name(f".{to.name}.{secrets.token_hex(4)}")
    try:
        batch = _copied(home, unfinished / home.name)
        note = {"pipeline": plan["pipeline"], "batch": batch, "root": str(home.absolute()), "engine": "spark"}
        (unfinished / NOTE).write_text(json.dumps(note))
        if to.exists():
            to.rmdir()
        unfinished.rename(to)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
    return batch


def _copied(home: Path, to: Path) -> int:
    for tried in range(1, 1 + _TRIES):
        done = [int(each.name) for each in (home / "spark" / "commits").glob("*") if each.name.isdecimal()]
        if not done:
            raise CheckpointError(f"no batch is done in {home}; let the pipeline run first")
        shutil.rmtree(to, ignore_errors=True)
        _copy(home, to)
        rewind.take_back(to, max(done), "later")  # what a run has added meanwhile, and batches not done
        shutil.rmtree(to / rewind.ASIDE, ignore_errors=True)
        try:
            rewind.check(to, max(done))
        except CheckpointError:
            if tried == _TRIES:
                raise
        else:
            return max(done)
    raise AssertionError("unreachable")


def _copy(home: Path, to: Path) -> None:
    """Copy all files; those that a run deletes meanwhile are none that its last batches need."""
    # Versions of state refer to tables that are there before them, so tables come last.
    for path in sorted(_files(home), key=lambda each: _TABLES in each.parts):
        copy = to / path.relative_to(home)
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            shutil.copy2(path, copy)
        except FileNotFoundError:
            continue


def _files(home: Path) -> Iterator[Path]:
    for entry in home.iterdir():
        if entry.name not in _LEFT_OUT:
            yield from (path for path in ([entry] if entry.is_file() else entry.rglob("*")) if path.is_file())


def is_savepoint(where: str) -> bool:
    """Whether this names a savepoint, and not a batch of a checkpoint."""
    return (Path(where.removeprefix("file://")) / NOTE).is_file()


def is_of_spark(savepoint: str) -> bool:
    """Whether Spark has made it; else the local engine has."""
    note = json.loads((Path(savepoint.removeprefix("file://")) / NOTE).read_text())
    return bool(note.get("engine") == "spark")


def restore(savepoint: str, folder: Path) -> None:
    """Begin the checkpoint of a pipeline with a copy of a savepoint. It can be done again after a kill."""
    saved = Path(savepoint.removeprefix("file://"))
    note: dict[str, Any] = json.loads((saved / NOTE).read_text())
    source = saved / Path(note["root"]).name
    if source.name != folder.name:
        raise CheckpointError(
            f"{savepoint} is a savepoint of {note['pipeline']!r}; start that pipeline from it"
        )
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name == "run.json":
            raise CheckpointError(
                f"{folder} has a checkpoint already; take another checkpoint folder to start from a savepoint"
            )
        if entry.name != "lock":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    for path in _files(source):
        if path.name != "run.json":
            copy = folder / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, copy)
    _move(folder, Path(note["root"]).as_uri(), folder.absolute().as_uri())
    plan = json.loads((source / "run.json").read_text())
    unfinished = folder / "run.json.new"
    unfinished.write_text(json.dumps({**plan, "generation": secrets.token_hex(8)}))
    unfinished.rename(folder / "run.json")


def _move(folder: Path, before: str, after: str) -> None:
    """Let Spark's lists of fed files name these in the copy."""
    for log in [*(folder / "spark" / "sources").rglob("*"), *(folder / "feed").rglob("_spark_metadata/*")]:
        if not log.is_file() or log.suffix == ".crc":
            continue
        text = log.read_text()
        if before in text:
            log.write_text(text.replace(f"{before}/", f"{after}/"))
            (log.parent / f".{log.name}.crc").unlink(missing_ok=True)
