"""Looking into a pipeline's checkpoints, also while it runs."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Any, cast

import msgspec

from queenstream.core.windows import from_us
from queenstream.engines.local.checkpoints.backend import Home, damaged
from queenstream.engines.local.checkpoints.snapshots import (
    CheckpointInfo,
    Contents,
    Delivery,
    StateKey,
    epoch_id,
)
from queenstream.errors import CheckpointError
from queenstream.pipeline.plan.fingerprints import Facts
from queenstream.runtime import encoding
from queenstream.runtime.keys import META

POSITION, STATE = "p", "s"  # kinds of items


class CheckpointReader:
    """The checkpoints of one pipeline, to look at."""

    def __init__(self, home: Home, pipeline: str) -> None:
        self._home = home
        self._pipeline = pipeline

    async def checkpoints(self) -> list[CheckpointInfo]:
        """Those that can be gone back to, the newest first."""
        if not await self._home.open():
            return []
        rows = await self._home.fetch(
            "select generation, epoch, committed_us, clean, fingerprint from epochs "
            "where pipeline = $1 order by epoch desc",
            self._pipeline,
        )
        return [
            CheckpointInfo(epoch_id(generation, epoch), epoch, from_us(at), bool(clean), fingerprint)
            for generation, epoch, at, clean, fingerprint in rows
        ]

    async def inspect(self, checkpoint_id: str | None = None) -> Contents:
        """What is in a checkpoint, by default the newest."""
        info = await self._find(checkpoint_id)
        counts = await self._home.fetch(
            "select p.node, count(*) filter (where i.key <> $4), sum(length(i.value)) "
            "from parts p join items i on i.part = p.id "
            "where p.pipeline = $1 and p.kind = $2 and i.epoch <= $3 and i.value is not null and not exists ("
            " select 1 from items x where x.part = i.part and x.key = i.key"
            " and x.epoch > i.epoch and x.epoch <= $3) group by p.node order by p.node",
            self._pipeline,
            STATE,
            info.epoch,
            key_bytes(META),
        )
        return Contents(
            info=info,
            facts=await self._facts(info.fingerprint),
            positions=await self._positions(info.epoch),
            keys={node: int(keys) for node, keys, _ in counts},
            bytes={node: int(size) for node, _, size in counts},
            watermarks=await self._watermarks(info.epoch),
        )

    async def state(self, node: str, key: StateKey, checkpoint_id: str | None = None) -> Any:
        """What a step remembers of a key, by default now; None: nothing."""
        info = await self._find(checkpoint_id)
        rows = await self._home.fetch(
            "select value from items where part = $1 and key = $2 and epoch <= $3 "
            "order by epoch desc limit 1",
            part_id(self._pipeline, STATE, node),
            key_bytes(key),
            info.epoch,
        )
        return self._unpacked(rows[0][0]) if rows and rows[0][0] is not None else None

    async def find_state(
        self, node: str, prefix: StateKey = "", *, limit: int = 100, checkpoint_id: str | None = None
    ) -> list[tuple[StateKey, Any]]:
        """The keys of a step that begin so, in order, with what it remembers of each."""
        info = await self._find(checkpoint_id)
        first = key_bytes(prefix) if prefix else b""
        found: dict[bytes, bytes] = {}
        pages = self._versions(part_id(self._pipeline, STATE, node), first, info.epoch)
        async with contextlib.aclosing(pages):
            async for page in pages:
                whole = [(key, value) for key, value in page if key.startswith(first)]
                _apply(found, whole)
                if len(whole) < len(page) or len(found) > limit:
                    break
        return [(_key_of(key), self._unpacked(value)) for key, value in list(found.items())[:limit]]

    # How it is stored

    async def _find(self, checkpoint_id: str | None) -> CheckpointInfo:
        known = await self.checkpoints()
        if not known:
            raise CheckpointError(
                f"there is no checkpoint of {self._pipeline!r} in {self._home.where}; run the pipeline once, "
                "or check its name and the place"
            )
        for info in known:
            if checkpoint_id is None or info.id == checkpoint_id:
                return info
        ids = ", ".join(info.id for info in known)
        raise CheckpointError(
            f"there is no checkpoint {checkpoint_id!r} of {self._pipeline!r}; name one of {ids}"
        )

    async def _facts(self, fingerprint: str) -> Facts:
        return cast(Facts, await self._one("select facts from plans", "fingerprint", fingerprint))

    async def _watermarks(self, epoch: int) -> Any:
        return await self._one("select watermarks from epochs", "epoch", epoch)

    async def _one(self, sql: str, column: str, value: object) -> Any:
        rows = await self._home.fetch(f"{sql} where pipeline = $1 and {column} = $2", self._pipeline, value)
        if not rows:
            raise damaged(self._home.where, f"{column} {value} is not there")
        return self._unpacked(rows[0][0])

    def _versions(self, part: int, first: bytes, epoch: int) -> AsyncGenerator[list[Sequence[Any]], None]:
        """The versions of keys, from one key on, up to an epoch: the last one of each is what holds."""
        return self._home.pages(
            "select key, value from items where part = $1 and key >= $2 and epoch <= $3 order by key, epoch",
            part,
            first,
            epoch,
        )

    async def _items(self, epoch: int, kind: str) -> dict[str, dict[StateKey, Any]]:
        """Positions or state as they were after an epoch."""
        parts = await self._home.fetch(
            "select id, node from parts where pipeline = $1 and kind = $2 order by node", self._pipeline, kind
        )
        items: dict[str, dict[StateKey, Any]] = {}
        for part, node in parts:
            found: dict[bytes, bytes] = {}
            async for page in self._versions(part, b"", epoch):
                _apply(found, page)
            if found:
                items[node] = {_key_of(key): self._unpacked(value) for key, value in found.items()}
        return items

    async def _positions(self, epoch: int) -> dict[str, dict[str, Any]]:
        return cast(dict[str, dict[str, Any]], await self._items(epoch, POSITION))

    async def _outbox(self, delivered: int) -> list[Delivery]:
        rows = await self._home.fetch(
            "select generation, epoch, sink, rows from outbox where pipeline = $1 and epoch > $2 "
            "order by epoch, sink",
            self._pipeline,
            delivered,
        )
        return [
            Delivery(epoch_id(generation, epoch), epoch, sink, self._unpacked(packed))
            for generation, epoch, sink, packed in rows
        ]

    def _unpacked(self, data: bytes) -> Any:
        try:
            return encoding.unpack(data)
        except (ValueError, LookupError, msgspec.MsgspecError) as error:
            raise damaged(self._home.where, error) from error


def part_id(pipeline: str, kind: str, node: str) -> int:
    """The number of a step's state, or of a source's positions: 63 bits of a digest, the same everywhere."""
    name = "\0".join((pipeline, kind, node))
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") >> 1


def key_bytes(key: StateKey) -> bytes:
    """A key as it is stored: text and bytes are told apart.

    >>> key_bytes("ann"), key_bytes(b"ann")
    (b'sann', b'bann')
    """
    return b"s" + key.encode() if isinstance(key, str) else b"b" + key


def _key_of(stored: bytes) -> StateKey:
    return stored[1:].decode() if stored[:1] == b"s" else stored[1:]


def _apply(found: dict[bytes, bytes], versions: Iterable[Sequence[Any]]) -> None:
    """The newest version of each key, of versions in the order of their epochs."""
    for key, value in versions:
        if value is None:
            found.pop(key, None)
        else:
            found[key] = value
