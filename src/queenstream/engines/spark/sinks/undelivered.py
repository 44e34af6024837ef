"""A batch that an earlier plan has prepared, and that not all of its sinks have yet."""

from __future__ import annotations

from collections.abc import Mapping

from queenstream.engines.spark.sinks.prepared import PreparedBatch, PreparedBatches
from queenstream.errors import CheckpointError


def check_undelivered(
    prepared: PreparedBatches, before: Mapping[str, str] | None, now: Mapping[str, str]
) -> None:
    """Refuse a plan that would not write all rows that are prepared: its sinks are other ones.

    ``before`` and ``now`` are the addresses of the sinks by name.
    """
    for batch in prepared.undelivered():
        for name in sorted(_names(prepared.find(batch))):
            if name not in now or (before is not None and before.get(name, now[name]) != now[name]):
                raise CheckpointError(
                    f"batch {batch} has rows for {name} that are not written yet, and the plan no longer "
                    "writes there; run the plan of before once, with until='caught_up', and change it then, "
                    "or start from a savepoint, where that batch is computed anew for all sinks"
                )


def _names(batch: PreparedBatch | None) -> set[str]:
    receipts = [] if batch is None else batch.receipts
    names = {name for each in receipts for name, part in each.parts.items() if part.rows}
    return names | {
        name for each in receipts if each.file is not None for name, rows in each.file.rows.items() if rows
    }
