"""The watermark in Spark's logs: plans the batch that closes what was due when a run ended.

At the end of a batch Spark stores the new watermark in the batch's commit. The next batch, which may have no
data, closes what this watermark makes due. A query that was stopped in between has forgotten that: after a
restart Spark plans no batch without data until a record has come.

So the batch is written into the log before the query starts, exactly as Spark itself would have written it.
Spark finds it there and runs it first.
"""

from __future__ import annotations

import json
import time
from typing import Any

from queenstream.engines.spark.sinks.storage import SmallFiles

_OFFSETS, _COMMITS = "spark/offsets", "spark/commits"
_WATERMARK, _NEXT_WATERMARK, _PLANNED_AT = "batchWatermarkMs", "nextBatchWatermarkMs", "batchTimestampMs"


def plan_due_batch(storage: SmallFiles) -> int | None:
    """Plan the batch that closes what is due; gives its number, or None if nothing is due.

    ``storage``: the home of the run. Call it for queries with state only, before they start.
    """
    last = _last(storage, _OFFSETS)
    if last is None or last != _last(storage, _COMMITS):
        return None  # Spark runs the last batch of the log again
    planned, done = _entry(storage, f"{_OFFSETS}/{last}"), _entry(storage, f"{_COMMITS}/{last}")
    if planned is None or done is None:
        return None  # Spark says what is wrong with them
    version, metadata, *positions = planned
    about = json.loads(metadata)
    reached = int(json.loads(done[1]).get(_NEXT_WATERMARK, 0))
    if reached <= int(about.get(_WATERMARK, 0)):
        return None
    about |= {_WATERMARK: reached, _PLANNED_AT: round(time.time() * 1_000)}
    text = "\n".join([version, json.dumps(about, separators=(",", ":")), *positions])
    storage.delete(f"{_OFFSETS}/.{last + 1}.crc")  # of an entry that is gone: Hadoop would compare it
    storage.write(f"{_OFFSETS}/{last + 1}", text.encode())
    return last + 1


def last_batch(storage: SmallFiles) -> int | None:
    """The last batch that Spark has planned; None: there is none."""
    return _last(storage, _OFFSETS)


def positions(storage: SmallFiles, batch: int) -> list[Any]:
    """How far each source is read in a batch, in the order in which the query has them."""
    planned = _entry(storage, f"{_OFFSETS}/{batch}")
    return [] if planned is None else [_offset(line) for line in planned[2:]]


def _offset(line: str) -> Any:
    """An offset: JSON for all sources but Spark's oldest ones."""
    try:
        return json.loads(line)
    except ValueError:
        return line


def _last(storage: SmallFiles, log: str) -> int | None:
    return max((int(name) for name in storage.names(log) if name.isdecimal()), default=None)


def _entry(storage: SmallFiles, path: str) -> list[str] | None:
    """The lines of an entry: a version, what is about the batch itself, and one for each source."""
    found = storage.read(path)
    lines = [] if found is None else found.decode().splitlines()
    return lines if len(lines) > 1 and _is_object(lines[1]) else None


def _is_object(text: str) -> bool:
    try:
        found: Any = json.loads(text)
    except ValueError:
        return False
    return isinstance(found, dict)
