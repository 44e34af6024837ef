"""Buckets: parts of a sink's rows that several tasks write at once, while rows of one key stay in order.

A sink such as Kafka or Cassandra keeps the order of rows that have one key, and only of those. All rows of a
key are in one bucket, whichever task computes them, and one task writes a bucket in the order of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from zlib import crc32

from queenstream.connectors.base import RowKey
from queenstream.runtime.encoding import decode


class Buckets:
    """Chooses the buckets of the rows that a task stages. ``keys``: of the sinks that have several."""

    def __init__(self, keys: Mapping[str, RowKey], number: int, task: int) -> None:
        self._readers: dict[str, Callable[[Any], bytes | None]] = {
            sink: key.reader() for sink, key in keys.items()
        }
        self._number = number
        self._task = task % number

    def bucket_of(self, sink: str, record: Any, data: bytes) -> int:
        """The bucket of a row. ``data`` is the row encoded, in case that ``record`` is None.

        Rows without a key are in the bucket of their task: there they keep the order in which it made them.
        """
        reader = self._readers.get(sink)
        if reader is None:
            return 0
        try:
            key = reader(decode(data) if record is None else record)
        except Exception:  # noqa: BLE001 - the sink will refuse the row, and say why
            return self._task
        return self._task if key is None else crc32(key) % self._number

    def numbers(self) -> dict[str, int]:
        """By sink the number of its buckets."""
        return dict.fromkeys(self._readers, self._number)
