"""What a checkpoint store asks of the place it lives in: SQL in transactions, and a lock."""

from __future__ import annotations

import os
import platform
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol, TypeAlias

from queenstream.errors import CheckpointError

PAGE = 10_000  # rows in hand at once when much is read

# The same text for both homes: SQLite takes the names of PostgreSQL's types. ``items`` has the positions of
# sources and the state of steps, each value under the epoch that set it (null: gone since then); which
# source or step it is, says its ``part``. ``changed``: the keys that an epoch set, to forget versions by.
SCHEMA = (
    """create table if not exists pipelines (
        name text primary key, format bigint not null, generation text not null, epoch bigint not null,
        delivered bigint not null, rewound bigint not null, holder text not null)""",
    # Stays when a run goes back to an older checkpoint, which makes a new generation.
    """create table if not exists checkpoint_ids (pipeline text primary key, id text not null)""",
    """create table if not exists plans (
        pipeline text not null, fingerprint text not null, facts bytea not null,
        primary key (pipeline, fingerprint))""",
    """create table if not exists epochs (
        pipeline text not null, epoch bigint not null, generation text not null, committed_us bigint not null,
        clean bigint not null, fingerprint text not null, watermarks bytea not null, changed bytea not null,
        primary key (pipeline, epoch))""",
    """create table if not exists parts (
        id bigint primary key, pipeline text not null, kind text not null, node text not null)""",
    """create table if not exists items (
        part bigint not null, key bytea not null, epoch bigint not null, value bytea,
        primary key (part, key, epoch))""",
    """create table if not exists outbox (
        pipeline text not null, epoch bigint not null, generation text not null, sink text not null,
        rows bytea not null, primary key (pipeline, epoch, sink))""",
)


class Superseded(Exception):
    """A statement that had to change a row found none."""


@dataclass(frozen=True, slots=True)
class Step:
    """A statement of a transaction. ``must``: it has to change something."""

    sql: str
    arguments: Sequence[Any]
    must: bool = False


@dataclass(frozen=True, slots=True)
class Insert:
    """Many new rows of a table."""

    table: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Forget:
    """The versions of many keys of a part after one epoch and up to another."""

    part: int
    keys: Sequence[bytes]
    after: int
    until: int


Action: TypeAlias = Step | Insert | Forget
"""What a transaction is made of."""

Query: TypeAlias = tuple[Any, ...]
"""A text, and what its parameters are."""


class Home(Protocol):
    """A database with our tables in it. Parameters are written ``$1``, ``$2`` …"""

    where: str

    async def open(self) -> bool:
        """Connect; whether there is a store (nothing is made)."""
        ...

    async def create(self) -> None:
        """Make the tables that are not there yet."""
        ...

    async def lock(self, holder: str) -> None:
        """Take the pipeline's lock for as long as this process lives, or say who has it."""
        ...

    async def fetch(self, sql: str, *arguments: Any) -> list[Sequence[Any]]:
        """All rows of a query."""
        ...

    def pages(self, sql: str, *arguments: Any) -> AsyncGenerator[list[Sequence[Any]], None]:
        """The same in parts, for what may be large."""
        ...

    async def transact(self, actions: Sequence[Action], done: Query | None = None) -> None:
        """All of it or nothing, on the disk when it returns; ``Superseded`` if a ``must`` changed nothing.

        ``done`` gives a row if it was done: asked when the connection broke before the answer came.
        """
        ...

    async def close(self) -> None:
        """Let go of the lock and the connection."""
        ...


def holder_text() -> str:
    """Who this process is, for somebody who finds the lock taken."""
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"process {os.getpid()} on {platform.node() or 'this machine'}, since {now}"


def in_use(pipeline: str, holder: str) -> CheckpointError:
    """What a second run is told."""
    return CheckpointError(
        f"the pipeline {pipeline!r} is running already ({holder}); stop it first, or give this run "
        "another name or another checkpoint"
    )


def damaged(where: str, why: object) -> CheckpointError:
    """What a run is told whose checkpoint is not what was written."""
    said = " ".join(str(why).split())
    return CheckpointError(
        f"the checkpoint in {where} is damaged ({said}); restore it from a backup, or start afresh with "
        "another checkpoint"
    )
