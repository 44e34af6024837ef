"""Which files a source has, in which order they are read, and when it has ended.

Spark's file source takes what it has not seen in the order of modification times, and has no end. Our files
come in the order of their names, and at the end of all sources every window closes. So Spark does not look
at the source's folder, but at one in the checkpoint with a log of files, ``_spark_metadata``, as Spark's
own file sink leaves one. In that log the modification time is the number of the file. After the last file of
a source that does not grow comes a file of ours that says so: a new one whenever the query starts. For what
Spark closes at the end of time it closes in the batch after, and makes none if it was killed before that; nor
does it keep how far each of several sources was.

Spark keeps by itself which files a batch had. So a batch is the same after a kill at any point, and the end
comes after all files, however many batches these take.

    <checkpoint>/<pipeline>/feed/<step>/files.json        the files, and the place of each in the order
    <checkpoint>/<pipeline>/feed/<step>/_spark_metadata/  the same for Spark
    <checkpoint>/<pipeline>/feed/<step>/end-<number>      what comes last
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from queenstream.engines.spark.sources.files.storage import Found, Storage
from queenstream.errors import CheckpointError, ConfigError

FILE_BITS = 26
"""The bits of a file's place among the files of a source, in the number of a record."""

_BLOCK = 128 << 20
_LAST = (1 << FILE_BITS) - 1
_COMPACTED = (
    100  # batches until the next compacted entry of Spark's log, at most: 10, unless a session says more
)


class Manifest:
    """The files of one source. ``folder`` is where this is kept, ``place`` where the files are.

    ``grows``: there may be more later. ``end``: a file to be read after all others, if there is to be one.
    ``least_size``: what a file counts at least, for the bytes of a batch. The files are looked for in
    ``beside``, and the manifest lies in ``storage``.
    """

    def __init__(
        self,
        storage: Storage,
        beside: Storage,
        folder: str,
        place: str,
        *,
        grows: bool,
        end: bytes | None,
        least_size: int = 0,
    ) -> None:
        self._storage = storage
        self._beside = beside
        self.folder = folder
        self._place = place
        self._grows = grows
        self._end = end
        self._least_size = least_size
        self._files: dict[str, tuple[int, int]] = {}  # the size and the place in the order, by URI
        self._ends = 0  # that there were
        self.end_prefix: str | None = None
        self.next_place = 0
        self.since = 0

    def open(self) -> None:
        """Know what was there before, and look what is there now."""
        _refuse_feed(self.folder)
        known = self._storage.read(f"{self.folder}/files.json")
        told: dict[str, Any] = {} if known is None else json.loads(known)
        self._ends = told.get("ends", 0)
        self._files = {uri: (size, place) for uri, size, place in told.get("files", ())}
        found = self._look()
        new = [each for each in found if each.uri not in self._files]
        if told.get("ended"):
            if new or any(each.size != self._files[each.uri][0] for each in found):
                raise ConfigError(
                    "a source that had ended in this checkpoint has more: its windows are closed; take "
                    "another checkpoint folder, or write follow=True for a source that grows"
                )
        else:
            self._refuse_changed(found)
        first = 1 + max((place for _, place in self._files.values()), default=-1)
        for number, each in enumerate(new):
            self._files[each.uri] = (each.size, min(first + number, _LAST))
        self.next_place = first + len(new)
        self.since = int(time.time())
        if self._end is not None:
            self.end_prefix = self._storage.uri(f"{self.folder}/end-")
        if new or not told.get("ended"):
            self._save()
        self._tell_spark()

    def begin(self) -> None:
        """A query starts, for the first time or again: its source will end, if it does."""
        if self._end is not None:
            self._ends += 1
            self._storage.write(f"{self.folder}/end-{self._ends}", self._end)
            self._save()
            self._tell_spark()

    def look(self) -> bool:
        """Take in what has come since, if something has."""
        found = self._look()
        self._refuse_changed(found)
        new = [each for each in found if each.uri not in self._files]
        for each in new:
            # As the query counts those that it does not know by name: so a repeated batch is the same.
            place = self.next_place + max(0, each.seconds - self.since)
            self._files[each.uri] = (each.size, min(place, _LAST))
        if new:
            self._save()
            self._tell_spark()
        return bool(new)

    @property
    def places(self) -> dict[str, int]:
        """The place of each file in the order, by URI."""
        return {uri: place for uri, (_, place) in self._files.items()}

    @property
    def grows(self) -> bool:
        """Whether there may be more later."""
        return self._grows

    def _look(self) -> list[Found]:
        found = self._beside.find(self._place)
        if found is None and not self._grows:
            raise ConfigError(f"there is no file or folder {self._place}; check the path")
        return found or []

    def _refuse_changed(self, found: list[Found]) -> None:
        for each in found:
            size = self._files.get(each.uri, (each.size, 0))[0]
            if each.size != size:
                raise ConfigError(
                    f"{each.uri} has {each.size} bytes and had {size} when it was read: it was changed; put "
                    "it back and place what is new as a file of its own, or take another checkpoint folder"
                )

    def _save(self) -> None:
        files = [[uri, size, place] for uri, (size, place) in self._files.items()]
        told = {"files": files, "ended": not self._grows, "ends": self._ends}
        self._storage.write(f"{self.folder}/files.json", json.dumps(told).encode())

    def _tell_spark(self) -> None:
        sizes = {uri: max(size, self._least_size) for uri, (size, _) in self._files.items()}
        if self._end is not None and self._ends:
            sizes[f"{self.end_prefix}{self._ends}"] = 0
        lines = [_status(uri, size, number) for number, (uri, size) in enumerate(sizes.items(), 1)]
        self._storage.write(f"{self.folder}/_spark_metadata/0", "\n".join(["v1", *lines]).encode())


def _status(uri: str, size: int, number: int) -> str:
    """A file as Spark's sink notes it."""
    told = {"path": uri, "size": size, "isDir": False, "modificationTime": number}
    return json.dumps({**told, "blockReplication": 1, "blockSize": _BLOCK, "action": "add"})


def _refuse_feed(folder: str) -> None:
    if any(Path(folder).glob("0*.parquet")):
        raise CheckpointError(
            "the checkpoint was written by another version of queenstream, which has read these files on "
            f"the driver ({folder}); go on with that version, or take another checkpoint folder to begin anew"
        )


def files_of_batches(storage: Storage, log: str, after: int, upto: int) -> list[str]:
    """The files that Spark's source had in some of its own batches, by its log.

    An entry of the log has the files of one batch; one that Spark has compacted has those of all until then.
    """
    found: dict[str, int] = {}
    for batch in range(after + 1, upto + 1):
        if batch not in found.values():
            found |= _entry_of(storage, log, batch)
    return [uri for uri, batch in found.items() if after < batch <= upto]


def _entry_of(storage: Storage, log: str, batch: int) -> dict[str, int]:
    for name in (f"{batch}", *(f"{later}.compact" for later in range(batch, batch + _COMPACTED))):
        entry = storage.read(f"{log}/{name}")
        if entry is not None:
            lines = [json.loads(line) for line in entry.decode().splitlines()[1:]]
            return {each["path"]: each["batchId"] for each in lines}
    raise CheckpointError(f"{log} has no batch {batch}; put a copy back")
