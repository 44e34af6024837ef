"""From what a test sends to what a source's reader would have given: message, event time and schema."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from queenstream.connectors.validation import fit, schema_of
from queenstream.core.batches import Batch
from queenstream.core.windows import from_us, to_us
from queenstream.errors import ConfigError
from queenstream.pipeline.endpoints import Kafka, Queue, Source, Stream
from queenstream.pipeline.plan.nodes import WINDOW_START, Read


class Feed:
    """Stands where a source's reader would be."""

    def __init__(self, node: Read) -> None:
        self.name = node.name
        self.source: Source[Any] = node.source
        self._schema = schema_of(getattr(node.source, "schema", None))
        self._envelope = bool(getattr(node.source, "envelope", False))
        self._sent = 0

    def batch(
        self, records: Sequence[Any], time: datetime | str | None, key: str | None, now: datetime
    ) -> Batch:
        """The records as a reader gives them; those that do not fit the source's schema apart."""
        if key is not None and not self._envelope:
            raise ConfigError(
                f"the records of {self.source.title} are payloads alone, without a key; put it into the "
                "records, or read whole messages with envelope=True"
            )
        given = [copy.deepcopy(record) for record in records]
        batch = fit(self._schema, given, self._times(given, time, now))
        if self._envelope and batch.times is not None:
            pairs = zip(batch.records, batch.times, strict=True)
            batch.records = [self._message(record, at, key) for record, at in pairs]
        return batch

    def _times(self, records: Sequence[Any], given: datetime | str | None, now: datetime) -> list[int] | None:
        """When the records are from, in µs; None: the source says nothing about it."""
        if not self.source.has_time:
            if given is None:
                return None
            raise ConfigError(
                f"{self.source.title} has no time of its own; put the time into the records, "
                "and name its field with .event_time('field')"
            )
        if given is None and isinstance(self.source, Stream):  # a record is a window, and is from its start
            return [to_us(as_datetime(record[WINDOW_START])) for record in records]
        return [to_us(now if given is None else as_datetime(given))] * len(records)

    def _message(self, payload: Any, time: int, key: str | None) -> dict[str, Any]:
        self._sent += 1
        number, moment = self._sent, from_us(time)
        if isinstance(self.source, Kafka):
            return {
                "topic": self.source.label,
                "partition": 0,
                "offset": number - 1,
                "timestamp": moment,
                "key": key,
                "headers": {},
                "value": payload,
            }
        assert isinstance(self.source, Queue), "only messages have an envelope"
        return {
            "id": str(number),
            "transaction_id": f"test-{number}",
            "queue": self.source.name,
            "partition": key or self.source.partition or "Default",
            "created_at": moment,
            "data": payload,
        }


def as_datetime(moment: datetime | str) -> datetime:
    """An instant from a datetime or ISO 8601 text; one without a zone is refused.

    >>> as_datetime("2026-01-31T12:00:00Z").hour
    12
    """
    try:
        found = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
    except ValueError:
        raise ConfigError(f"{moment!r} is no time; write ISO 8601, such as 2026-01-31T12:00:00Z") from None
    if found.utcoffset() is None:
        raise ConfigError(f"{moment!s} has no time zone; write it with one, such as 2026-01-31T12:00:00Z")
    return found
