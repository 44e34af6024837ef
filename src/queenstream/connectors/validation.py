"""Records of a source made to fit its schema, the bad ones apart."""

from __future__ import annotations

from typing import Any

from queenstream.core.batches import Batch
from queenstream.core.schemas import Definition, Schema
from queenstream.errors import PayloadInvalid


def schema_of(definition: Definition | None) -> Schema | None:
    """The schema that an endpoint names, if it names one."""
    return None if definition is None else Schema.of(definition)


def fit(schema: Schema | None, records: list[Any], times: list[int] | None = None) -> Batch:
    """A batch of the records that fit; the others are its failures.

    >>> fit(Schema.of("n int"), [{"n": "1"}, {"n": "x"}]).records
    [{'n': 1}]
    """
    if schema is None:
        return Batch(records, times)
    batch = Batch([], None if times is None else [])
    coerce, good, kept = schema.coerce, batch.records, batch.times
    for index, record in enumerate(records):
        try:
            good.append(coerce(record))
        except PayloadInvalid as error:
            batch.failures.append((record, error))
            continue
        if times is not None and kept is not None:
            kept.append(times[index])
    return batch
