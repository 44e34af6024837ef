"""Prepared batches: what the tasks have staged of a batch, stored in the checkpoint before it is written.

    prepared/0000000007/               what the tasks staged, or the folders of Spark with pieces of it
    prepared/0000000007/batch.json     the CRC-32 of the next line, and the batch as JSON: from here on it is
                                       delivered as it stands there
    prepared/0000000007/delivered      the sinks that have it, if what others were to get was lost
    prepared/0000000007/done           all sinks have it

A batch stays until the next one is prepared: Spark may ask for it again until it has noted that it is done.

A sink may be written in two ways: tasks put rows into the storage of a queue if its database is known, and
else push them through the broker. Each way knows only its own batches again. So the batch says which way it
goes, and goes the same way after a restart, whatever is known then.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection

import msgspec

from queenstream.engines.spark.sinks.stage import Receipt
from queenstream.engines.spark.sinks.storage import SmallFiles
from queenstream.errors import CheckpointError

FOLDER = "prepared"
_RECEIPTS, _DELIVERED, _DONE = "batch.json", "delivered", "done"


class PreparedBatch(msgspec.Struct):
    """What is staged of a batch.

    ``stored``: the sinks whose rows go from files of the checkpoint into the sink's own storage; those of the
    others go by the sink's writer. None: it is not known (an earlier version prepared the batch).
    """

    receipts: list[Receipt]
    stored: list[str] | None = None


class PreparedBatches:
    """The batches of a run that are staged."""

    def __init__(self, storage: SmallFiles) -> None:
        self._storage = storage

    def folder(self, batch: int) -> str:
        """Where the tasks stage a batch."""
        return f"{FOLDER}/{batch:010}"

    def find(self, batch: int) -> PreparedBatch | None:
        """A batch that is prepared; None: it is not."""
        path = f"{self.folder(batch)}/{_RECEIPTS}"
        data = self._storage.read(path)
        if data is None:
            return None
        try:
            checksum, _, receipts = data.partition(b"\n")
            if checksum != _checksum(receipts):
                raise ValueError("its checksum is another one")
            found = msgspec.json.decode(receipts, type=PreparedBatch | list[Receipt])
            return PreparedBatch(found) if isinstance(found, list) else found
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
            if not name.isdecimal() or int(name) < batch:
                self._storage.delete(f"{FOLDER}/{name}")
        self._clear(batch)

    def _clear(self, batch: int) -> None:
        """Delete what is staged of a batch; which sinks have it stays known."""
        folder = self.folder(batch)
        names = self._storage.names(folder)
        for name in sorted(names, key=lambda name: name != _RECEIPTS):  # first what says that it is prepared
            if name != _DELIVERED:
                self._storage.delete(f"{folder}/{name}")

    def write(self, batch: int, prepared: PreparedBatch) -> None:
        """A batch is staged: from now on it will be delivered as it is."""
        data = msgspec.json.encode(prepared)
        self._storage.write(f"{self.folder(batch)}/{_RECEIPTS}", _checksum(data) + b"\n" + data)

    def is_done(self, batch: int) -> bool:
        """Whether all sinks have the batch."""
        return _DONE in self._storage.names(self.folder(batch))

    def finish(self, batch: int) -> None:
        """All sinks have it."""
        self._storage.write(f"{self.folder(batch)}/{_DONE}", b"")

    def discard(self, batch: int, delivered: Collection[str]) -> None:
        """What was staged is lost: it is to be staged again, for the sinks that do not have it yet."""
        if delivered:
            self._storage.write(f"{self.folder(batch)}/{_DELIVERED}", msgspec.json.encode(sorted(delivered)))
        self._clear(batch)

    def delivered(self, batch: int) -> set[str]:
        """The sinks that have a batch of which other parts were lost."""
        data = self._storage.read(f"{self.folder(batch)}/{_DELIVERED}")
        return set() if data is None else msgspec.json.decode(data, type=set[str])


def _checksum(data: bytes) -> bytes:
    return f"{zlib.crc32(data):08x}".encode()
