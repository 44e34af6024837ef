"""Looking into a pipeline's checkpoint on Spark: its batches, and what its steps remember.

>>> [each.id for each in batches("state/", "totals")]  # doctest: +SKIP
[7, 6, 5]
>>> [held.entry for held in entries(spark, "state/", "totals", keys=['"u1"'])]  # doctest: +SKIP
[['u1', 0, [2]]]

A batch that is done can be gone back to: ``run(checkpoint="state/", from_checkpoint="5")``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as f

from queenstream.core.records import moment
from queenstream.core.windows import to_us
from queenstream.engines.spark.checkpoints.directory import slug
from queenstream.engines.spark.keyed.base import FOREVER
from queenstream.engines.spark.keyed.join import MATCHED, ROW, SIDES
from queenstream.engines.spark.keyed.store import PAGES, VALUE, KeyState, restored
from queenstream.engines.spark.native.frames import Clock
from queenstream.engines.spark.tasks import rows as flow
from queenstream.errors import CheckpointError
from queenstream.pipeline.plan import fingerprints
from queenstream.pipeline.plan.fingerprints import Facts
from queenstream.pipeline.plan.nodes import Aggregation, Deduplicate, Join, Stateful
from queenstream.runtime.keys import key_text
from queenstream.runtime.state_view import described

_WITH_STATE = {each.kind for each in (Aggregation, Deduplicate, Join, Stateful)}
_IN_PYTHON, _WINDOWS = "transformWithStateInPySparkExec", "stateStoreSave"


@dataclass(frozen=True, slots=True)
class BatchInfo:
    """A batch that is done. ``watermark``: how far event time was when it began, if it goes by that.

    ``positions``: how far each source was read, in the order in which the query has them.
    """

    id: int
    at: datetime
    watermark: datetime | None
    positions: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Held:
    """What a step remembers: an entry as the local engine has it, or what Spark itself keeps of a window."""

    step: str
    entry: list[Any] | dict[str, Any]


def batches(checkpoint: str | Path, pipeline: str) -> list[BatchInfo]:
    """The batches that a checkpoint knows, the newest first."""
    home = _home(checkpoint, pipeline)
    clock = _clock(home)
    done = [each for each in (home / "spark" / "commits").glob("*") if each.name.isdecimal()]
    found = [_info(each, home / "spark" / "offsets" / each.name, clock) for each in done]
    return sorted(found, key=lambda each: each.id, reverse=True)


def facts(checkpoint: str | Path, pipeline: str) -> Facts:
    """What the state of each step depends on, as ``plan.state`` has it."""
    found: Facts = _run(_home(checkpoint, pipeline))["facts"]
    return found


def fingerprint(checkpoint: str | Path, pipeline: str) -> str:
    """The fingerprint of the plan."""
    return fingerprints.fingerprint(facts(checkpoint, pipeline))


def entries(
    spark: SparkSession,
    checkpoint: str | Path,
    pipeline: str,
    *,
    step: str | None = None,
    keys: Collection[str] | None = None,
    batch: int | None = None,
    limit: int = 1_000,
) -> list[Held]:
    """What the steps, or one of them, remember after a batch, by default the last.

    ``keys``: the texts of keys (``key_text``), by default all; ``limit``: at most so many keys of each step.
    """
    home = _home(checkpoint, pipeline)
    root = str(home / "spark")
    known = facts(checkpoint, pipeline)
    found: list[Held] = []
    if not (home / "spark" / "state").is_dir():
        return found
    for operator in (
        spark.read.format("state-metadata").load(root).select("operatorId", "operatorName").collect()
    ):
        reader = (
            spark.read.format("statestore").option("path", root).option("operatorId", operator.operatorId)
        )
        if batch is not None:
            reader = reader.option("batchId", batch)
        if operator.operatorName == _IN_PYTHON:
            found += _staged(reader, known, step, keys, limit)
        elif operator.operatorName == _WINDOWS:
            [name] = [name for name, told in known.items() if told["kind"] == "aggregate"]
            if step in (None, name):
                found += _native(reader.load(), name, _clock(home), keys, limit)
    return found


def shown_entries(
    spark: SparkSession,
    checkpoint: str | Path,
    pipeline: str,
    *,
    step: str | None = None,
    keys: Collection[str] | None = None,
    batch: int | None = None,
    limit: int = 1_000,
) -> list[dict[str, Any]]:
    """The same as people read it: the parts of an entry by their names, with the step's."""
    known = facts(checkpoint, pipeline)
    found = entries(spark, checkpoint, pipeline, step=step, keys=keys, batch=batch, limit=limit)
    return [
        {
            "step": held.step,
            **(held.entry if isinstance(held.entry, dict) else described(known[held.step], held.entry)),
        }
        for held in found
    ]


def state(spark: SparkSession, checkpoint: str | Path, pipeline: str, step: str, key: Any) -> list[Any]:
    """What a step remembers of a key after the last batch: its entries; of no key, ``key`` is None."""
    found = entries(spark, checkpoint, pipeline, step=step, keys=[key_text(key)])
    return [each.entry for each in found]


# State of steps in Python


def _staged(
    reader: DataFrameReader, known: Facts, step: str | None, keys: Collection[str] | None, limit: int
) -> Iterator[Held]:
    rows = reader.option("stateVarName", VALUE).load()
    if step is not None:
        rows = rows.where(f.col("key.node") == step)
    if keys is not None:
        rows = rows.where(f.col("key.grp").isin(*keys))
    with_state = [name for name, told in known.items() if told["kind"] in _WITH_STATE]
    for name in with_state if step is None else [step]:
        some = rows.where(f.col("key.node") == name).orderBy("key.grp").limit(limit)
        kept = some.select("key.grp", "value.text").collect()
        pages = _StoredPages(reader, name, [row.grp for row in kept])
        for row in kept:
            for entry in _entries(restored(row.text, pages.of(row.grp))):
                yield Held(name, entry)


class _StoredPages:
    """The pages of some keys of a step, all read when the first one is needed."""

    def __init__(self, reader: DataFrameReader, step: str, groups: list[str]) -> None:
        self._reader = reader
        self._step = step
        self._groups = groups
        self._texts: dict[tuple[str, str, int], str] | None = None

    def of(self, group: str) -> _KeyPages:
        """Those of one key."""
        return _KeyPages(self, group)

    def text(self, group: str, name: str, page: int) -> str:
        """The text of a page."""
        if self._texts is None:
            rows = self._reader.option("stateVarName", PAGES).load()
            rows = rows.where((f.col("key.node") == self._step) & f.col("key.grp").isin(*self._groups))
            found = rows.select("key.grp", "user_map_key.*", "user_map_value.text").collect()
            self._texts = {(row.grp, row["map"], row.page): row.text for row in found}
        return self._texts[group, name, page]


@dataclass(frozen=True)
class _KeyPages:
    """As ``PageReader``."""

    pages: _StoredPages
    group: str

    def read(self, name: str, page: int) -> str:
        """The text of a page."""
        return self.pages.text(self.group, name, page)


def _entries(state: KeyState) -> Iterator[list[Any]]:
    """What a step holds of a key (``keyed``), entry by entry as the local engine's checkpoints have it."""
    key, held = state.key, state.held
    if "left" in held:
        for side, name in enumerate(SIDES):
            for time, rows in held[name].items():
                for waiting in rows:
                    yield [side, key, time, 0, waiting[ROW], waiting[MATCHED]]
    elif "passed" in held:
        yield [key, [time for time, _ in held["passed"].items()]]
    elif "sessions" in held:
        for start, (end, states) in held["sessions"].items():
            yield [key, 0, start, end, states]
    elif "position" in held:
        yield [key, held["position"], held["windows"]]
    elif "windows" in held:
        for start, states in held["windows"].items():
            yield [key, start, states]
    else:
        yield [key, held["values"], held["timers"], held["touched"]]


# Windows of Spark's own


def _native(
    rows: DataFrame, step: str, clock: Clock | None, keys: Collection[str] | None, limit: int
) -> Iterator[Held]:
    """What is kept of a window is Spark's: the sums that its aggregates need, under its names for them."""
    shift_us = 0 if clock is None else clock.shift_us
    names = [name for name in rows.select("key.*").columns if name != "window"]
    left = limit
    for row in rows.orderBy("key").toLocalIterator():
        parts = tuple(row.key[name] for name in names)
        key = None if not parts else parts[0] if len(parts) == 1 else parts
        if keys is not None and key_text(key) not in keys:
            continue
        if left == 0:
            return
        left -= 1
        yield Held(
            step,
            {
                "key": key,
                "window_start": _unshifted(row.key.window.start, shift_us),
                "window_end": _unshifted(row.key.window.end, shift_us),
                "aggregates": row.value.asDict(recursive=True),
            },
        )


def _unshifted(shown: datetime, shift_us: int) -> datetime:
    return moment(to_us(shown.astimezone(UTC)) - shift_us)


# How it is stored


def _home(checkpoint: str | Path, pipeline: str) -> Path:
    home = Path(str(checkpoint).removeprefix("file://")) / slug(pipeline)
    if not (home / "spark" / "commits").is_dir():
        raise CheckpointError(
            f"there is no checkpoint of {pipeline!r} in {checkpoint}; run the pipeline once, or check "
            "its name and the place"
        )
    return home


def _run(home: Path) -> dict[str, Any]:
    try:
        told: dict[str, Any] = json.loads((home / "run.json").read_text())
    except (OSError, ValueError):
        raise CheckpointError(f"{home}/run.json is damaged or gone; put a copy back") from None
    return told


def _clock(home: Path) -> Clock | None:
    told = _run(home).get("clock")
    return None if told is None else Clock(**told)


def _info(commit: Path, offsets: Path, clock: Clock | None) -> BatchInfo:
    written = datetime.fromtimestamp(commit.stat().st_mtime, UTC)
    if not offsets.exists():
        return BatchInfo(int(commit.name), written, None)
    # A version, what is about the batch itself, and a line for each source.
    _, about, *positions = offsets.read_text().splitlines()
    ms = int(json.loads(about).get("batchWatermarkMs", 0))
    reached = flow.from_watermark(ms)
    if reached is not None and clock is not None and reached != FOREVER:
        reached = clock.time_of(ms * 1_000)
    at = None if reached is None else moment(reached)
    return BatchInfo(int(commit.name), written, at, tuple(map(_position, positions)))


def _position(line: str) -> Any:
    return None if line == "-" else json.loads(line)
