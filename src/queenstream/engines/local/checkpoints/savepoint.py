"""Savepoints of the local engine: copies of a pipeline's checkpoints, from which pipelines start.

A savepoint is a folder like a checkpoint's, with ``savepoint.json`` in it. A pipeline that starts from it
gets a copy, and leaves the savepoint as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path

from queenstream.engines.local.checkpoints.sqlite import checkpoint_file
from queenstream.engines.local.checkpoints.store import Contents, new_generation, open_store
from queenstream.errors import CheckpointError, ConfigError

NOTE, POSITIONS = "savepoint.json", "positions.json"


def save(folder: Path, pipeline: str, to: Path) -> str:
    """Copy the checkpoints of a pipeline, whose newest one is returned; the pipeline may go on."""
    source = checkpoint_file(folder, pipeline)
    if not source.exists():
        raise ConfigError(f"there are no checkpoints of {pipeline!r} in {folder}; name the folder of its run")
    if to.exists() and any(to.iterdir()):
        raise ConfigError(f"{to} is not empty; name a new folder for the savepoint")
    to.mkdir(parents=True, exist_ok=True)
    copy = checkpoint_file(to, pipeline)
    _copy(source, copy)
    newest = asyncio.run(_newest(to, pipeline))
    known: dict[str, object] = {"positions": newest.positions, "facts": newest.facts}
    known |= {"undelivered": _undelivered(copy), "checkpoint_id": _checkpoint_id(copy)}
    (to / POSITIONS).write_text(json.dumps(known))
    (to / NOTE).write_text(
        json.dumps({"pipeline": pipeline, "checkpoint": newest.info.id, "engine": "local"})
    )
    return newest.info.id


def _undelivered(store: Path) -> int:
    """How many epochs have rows that are not known to be delivered."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        query = "select count(distinct o.epoch) from outbox o, pipelines p where o.epoch > p.delivered"
        [[found]] = connection.execute(query).fetchall()
    return int(found)


def _checkpoint_id(store: Path) -> str:
    """The id by which sinks know the checkpoint."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        [[found]] = connection.execute("select id from checkpoint_ids").fetchall()
    return str(found)


async def _newest(folder: Path, pipeline: str) -> Contents:
    store = open_store(folder, pipeline)
    try:
        if await store.checkpoints():
            return await store.inspect()
    finally:
        await store.close()
    raise CheckpointError(f"{pipeline!r} has no checkpoint yet; let it run a while")


def is_savepoint(where: str) -> bool:
    """Whether this names a savepoint, and not the id of a checkpoint."""
    return (Path(where) / NOTE).is_file()


def restore(savepoint: str, checkpoint: str, pipeline: str) -> None:
    """Begin the checkpoints of a pipeline with a copy of a savepoint.

    The copy has a generation of its own, so sinks take what it delivers as new, and queues are moved back.
    """
    source = checkpoint_file(Path(savepoint), pipeline)
    if not source.exists():
        raise CheckpointError(f"{savepoint} is no savepoint of {pipeline!r} on the local engine")
    if checkpoint.startswith(("postgresql://", "postgres://")):
        raise ConfigError("a savepoint is copied into a folder; write checkpoint='folder'")
    copy = checkpoint_file(Path(checkpoint), pipeline)
    if copy.exists():
        raise CheckpointError(
            f"{checkpoint} has checkpoints of {pipeline!r} already; take another checkpoint folder to start "
            "from a savepoint"
        )
    copy.parent.mkdir(parents=True, exist_ok=True)
    unfinished = copy.with_name(f"{copy.name}.copy")
    unfinished.unlink(missing_ok=True)
    _copy(source, unfinished)
    with contextlib.closing(sqlite3.connect(unfinished)) as connection:
        connection.execute("update pipelines set generation = ?, rewound = 1", (new_generation(),))
        connection.commit()
    unfinished.rename(copy)


def _copy(source: Path, to: Path) -> None:
    """Copy a database as it is between two transactions."""
    with (
        contextlib.closing(sqlite3.connect(source)) as held,
        contextlib.closing(sqlite3.connect(to)) as copy,
    ):
        held.backup(copy)
        copy.execute("pragma journal_mode = delete")  # one file, with nothing beside it
