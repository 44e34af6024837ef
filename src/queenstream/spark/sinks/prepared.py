"""Prepared batches: what the tasks have staged of a batch, stored in the checkpoint before it is written.

    prepared/0000000007/               what the tasks staged, or the folders of Spark with pieces of it
    prepared/0000000007/batch.json     the CRC-32 of the next line, and the receipts as JSON: from here on the
                                       batch is delivered as it stands there
    prepared/0000000007/done           all sinks have it

A batch stays until the next one is prepared: Spark may ask for it again until it has noted that it is done.
"""

from __future__ import annotations

import zlib

import msgspec

from queenstream.errors import CheckpointError
from queenstream.spark.sinks.stage import Receipt
from queenstream.spark.sinks.storage import SmallFiles

FOLDER = "prepared"
_RECEIPTS, _DONE = "batch.json", "done"


class PreparedBatches:
    """The batches of a run that are staged."""

    def __init__(self, storage: SmallFiles) -> None:
        self._storage = storage

    def folder(self, batch: int) -> str:
        """Where the tasks stage a batch."""
        return f"{FOLDER}/{batch:010}"

    def find(self, batch: int) -> list[Receipt] | None:
        """The receipts of a batch that is prepared; None: it is not."""
        path = f"{self.folder(batch)}/{_RECEIPTS}"
        data = self._storage.read(path)
        if data is None:
            return None
        try:
            checksum, _, receipts = data.partition(b"\n")
            if checksum != _checksum(receipts):
                raise ValueError("its checksum is another one")
            return msgspec.json.decode(receipts, type=list[Receipt])
        except ValueError as error:  # and what msgspec raises
            raise CheckpointError(
                f"{self._storage.root}/{path} is damaged ({error}); put a copy back, or take another "
                "checkpoint folder to begin anew"
            ) from None

    def has_undelivered(self) -> bool:
        """Whether a batch is prepared that not all sinks have."""
        return bool(self.undelivered())

    def undelivered(self) -> list[int]:
        """The batches that are prepared and that not all sinks have."""
        batches = (int(name) for name in self._storage.names(FOLDER) if name.isdecimal())
        return [
            batch
            for batch in batches
            if _RECEIPTS in self._storage.names(self.folder(batch)) and not self.is_done(batch)
        ]

    def begin(self, batch: int) -> None:
        """Delete what older batches, and tries of this one that came to nothing, have left."""
        for name in self._storage.names(FOLDER):
            if not name.isdecimal() or int(name) <= batch:
                self._storage.delete(f"{FOLDER}/{name}")

    def write(self, batch: int, receipts: list[Receipt]) -> None:
        """A batch is staged: from now on it will be delivered as it is."""
        data = msgspec.json.encode(receipts)
        self._storage.write(f"{self.folder(batch)}/{_RECEIPTS}", _checksum(data) + b"\n" + data)

    def is_done(self, batch: int) -> bool:
        """Whether all sinks have the batch."""
        return _DONE in self._storage.names(self.folder(batch))

    def finish(self, batch: int) -> None:
        """All sinks have it."""
        self._storage.write(f"{self.folder(batch)}/{_DONE}", b"")

    def discard(self, batch: int) -> None:
        """What was staged is lost: it is to be staged again."""
        self._storage.delete(self.folder(batch))


def _checksum(data: bytes) -> bytes:
    return f"{zlib.crc32(data):08x}".encode()
