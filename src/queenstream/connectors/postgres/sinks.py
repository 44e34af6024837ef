"""The table ``queen_sinks`` beside a sink's table: which run owns a sink, and the last batch it has written.

A driver that another run has replaced must write nothing more, and a batch that is older than the last one
must not be taken for a new one, however long ago it was written. There is one row for each sink and
checkpoint; the run that owns the sink claims it when it starts.
"""

# ruff: noqa: S608 - names are from the catalogue and quoted, values are parameters

from __future__ import annotations

from typing import Any

import asyncpg

from queenstream.connectors.base import SinkClaim
from queenstream.connectors.postgres.catalog import quoted
from queenstream.errors import CheckpointError, OwnershipLost

_TABLE = "queen_sinks"
_CREATE = """
    create table if not exists {table} (
        sink text primary key, last_batch bigint not null default -1,
        owner_epoch bigint not null default 0, owner_token text not null default '',
        owner_name text not null default '', temporary boolean not null default false,
        written_at timestamptz not null default clock_timestamp()
    )
"""
_FORGET = "delete from {table} where temporary and written_at < clock_timestamp() - interval '7 days'"


class SinkTable:
    """The table of sinks in one schema. Each call belongs into a transaction of the caller's."""

    def __init__(self, schema: str) -> None:
        self._table = f"{quoted(schema)}.{quoted(_TABLE)}"

    @property
    def name(self) -> str:
        """The name of the table, for statements."""
        return self._table

    @property
    def statement(self) -> str:
        """What creates the table."""
        return _CREATE.format(table=self._table)

    async def claim(
        self, connection: asyncpg.Connection[Any], claim: SinkClaim, epoch: int, name: str, *, temporary: bool
    ) -> None:
        """Take a sink over from earlier runs; ``OwnershipLost`` if a newer run has it."""
        await connection.execute(_FORGET.format(table=self._table))
        await connection.execute(
            f"insert into {self._table} (sink, temporary) values ($1, $2) on conflict do nothing",
            claim.sink,
            temporary,
        )
        row = await self._locked(connection, claim)
        if row["owner_epoch"] > epoch or (
            row["owner_epoch"] == epoch and row["owner_token"] not in ("", claim.token)
        ):
            raise _lost(claim, row["owner_name"])
        await connection.execute(
            f"update {self._table} set owner_epoch = $2, owner_token = $3, owner_name = $4 where sink = $1",
            claim.sink,
            epoch,
            claim.token,
            name,
        )

    async def check(self, connection: asyncpg.Connection[Any], claim: SinkClaim) -> None:
        """``OwnershipLost`` if another run has claimed the sink. No run can claim it until the commit."""
        row = await self._locked(connection, claim, "for share")
        if row["owner_token"] != claim.token:
            raise _lost(claim, row["owner_name"])

    async def begin(self, connection: asyncpg.Connection[Any], claim: SinkClaim, batch: int) -> None:
        """Note that a batch is about to be written; ``CheckpointError`` if a later one was."""
        row = await self._locked(connection, claim)
        if row["owner_token"] != claim.token:
            raise _lost(claim, row["owner_name"])
        if batch < row["last_batch"]:
            raise CheckpointError(
                f"batch {batch} of {claim.sink} comes after batch {row['last_batch']}, which is written: the "
                "checkpoint is older than the table; continue from the newest checkpoint, or start over in "
                "another checkpoint folder, which writes everything again"
            )
        await connection.execute(
            f"update {self._table} set last_batch = $2, written_at = clock_timestamp() where sink = $1",
            claim.sink,
            batch,
        )

    async def forget(self, connection: asyncpg.Connection[Any], claim: SinkClaim) -> None:
        """Delete the row of a sink to which nothing comes back."""
        await connection.execute(f"delete from {self._table} where sink = $1", claim.sink)

    async def _locked(
        self, connection: asyncpg.Connection[Any], claim: SinkClaim, lock: str = "for update"
    ) -> asyncpg.Record:
        query = f"select last_batch, owner_epoch, owner_token, owner_name from {self._table} where sink = $1"
        row: asyncpg.Record | None = await connection.fetchrow(f"{query} {lock}", claim.sink)
        if row is None:
            raise _lost(claim, "somebody who has deleted its row in queen_sinks")
        return row


def _lost(claim: SinkClaim, name: str) -> OwnershipLost:
    return OwnershipLost(
        f"{name or 'another run'} has taken over the sink {claim.sink}, so this run ends without writing "
        "more; keep one of the two runs, and give the other a checkpoint folder of its own"
    )
