"""Lines of JSON as messages: what ``queen push`` reads, checks and sends.

The transaction id of a line comes from its number and its content. So the same file can be pushed again after
whatever went wrong: what is stored is found, and not stored twice.

>>> line = Line.read(3, b'{"user": "ann"}', Rules(partition_key="user"))
>>> line.partition, line.transaction_id == Line.read(3, b'{"user": "ann"}', Rules()).transaction_id
('ann', True)
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from queenstream.core import paths
from queenstream.errors import QueenstreamError

if TYPE_CHECKING:
    from queenstream import Queen

MOST_LINES = 1000  # in one request
MOST_BYTES = 4 << 20  # the same
LONGEST = 255  # of a name or id


class BadLine(QueenstreamError):
    """A line that cannot be a message; ``number`` is its number, counted from 1."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}")
        self.number = number


@dataclass(frozen=True)
class Rules:
    """Where a message goes, and what tells it apart. Keys are paths into the payload."""

    partition: str = "Default"
    partition_key: str | None = None
    transaction_id_key: str | None = None
    anew: bool = False  # a new id for every line: nothing is found again


@dataclass(frozen=True, slots=True)
class Line:
    """A message to be: the payload as it was written, byte for byte."""

    number: int
    payload: msgspec.Raw
    partition: str
    transaction_id: str | None

    @classmethod
    def read(cls, number: int, text: bytes, rules: Rules) -> Line:
        """A checked line; ``BadLine`` says what is wrong with it."""
        try:
            value = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadLine(number, f"not JSON: {error}") from None
        partition, id = rules.partition, None
        if rules.partition_key is not None:
            partition = _named(number, value, rules.partition_key)
        if rules.transaction_id_key is not None:
            id = _named(number, value, rules.transaction_id_key)
        elif not rules.anew:
            id = hashlib.sha256(b"%d:%b" % (number, text)).hexdigest()[:40]
        return cls(number, msgspec.Raw(text), partition, id)


def _named(number: int, value: Any, path: str) -> str:
    """What stands at a path, as a name."""
    found = paths.getter(paths.strip(path))(value)
    if isinstance(found, bool) or not isinstance(found, str | int):
        raise BadLine(number, f"no text or whole number at {path}")
    name = str(found)
    if not 1 <= len(name) <= LONGEST or "\0" in name:
        raise BadLine(number, f"what is at {path} must have 1 to {LONGEST} characters")
    return name


@dataclass
class Tally:
    """What became of the lines so far."""

    lines: int = 0
    new: int = 0
    duplicates: int = 0
    bad: int = 0

    def count(self, results: list[dict[str, Any]]) -> None:
        """Add what the broker said of a batch."""
        new = sum(result["status"] == "queued" for result in results)
        self.lines += len(results)
        self.new += new
        self.duplicates += len(results) - new


def batches(lines: Iterable[Line]) -> Iterator[list[Line]]:
    """Lines in requests' worth. If a bad one ends them, those before it still come."""
    batch: list[Line] = []
    size = 0
    try:
        for line in lines:
            batch.append(line)
            size += len(bytes(line.payload))
            if len(batch) >= MOST_LINES or size >= MOST_BYTES:
                yield batch
                batch, size = [], 0
    except BadLine:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def stored(queen: Queen, queue: str, batch: list[Line]) -> list[dict[str, Any]]:
    """Store a batch, all or nothing; one result for each line."""
    by_partition: dict[str, list[Line]] = {}
    for line in batch:
        by_partition.setdefault(line.partition, []).append(line)
    transaction = queen.transaction()
    for partition, lines in by_partition.items():
        ids = [line.transaction_id for line in lines if line.transaction_id is not None]
        payloads = [line.payload for line in lines]
        chain = transaction.queue(queue).partition(partition)
        transaction = chain.push(payloads, transaction_ids=ids or None)
    results = transaction.commit().results
    numbers = [line.number for lines in by_partition.values() for line in lines]
    by_number = dict(zip(numbers, results, strict=True))
    return [by_number[line.number] for line in batch]
