"""Purchases of 100,000 users: a function in Python with a state for each user."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
from pyspark import cloudpickle
from pyspark.sql import Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.state import State
from scale_jobs import Job, Setup, stream_to_end

PURCHASES = "user string, n bigint, amount double"
REWARDS = "user string, purchases bigint, total double"
USERS = 100_000
FILES = 4  # of which a batch has one
EVERY = 2  # purchases of a user in each file, and for each reward


def make_purchases(spark: SparkSession, folder: Path, files: int, users: int) -> None:
    """Files that have two purchases of each user."""
    spark.range(files * users * EVERY, numPartitions=files).selectExpr(
        f"concat('user-', id % {users}) as user",
        "id as n",
        "double(id % 1000) + 0.5D as amount",
    ).write.parquet(str(folder))


def reward(user: str, purchase: dict[str, Any], state: State) -> dict[str, Any] | None:
    """A row for every second purchase of a user, with the sum so far."""
    purchases = state.get("purchases", 0) + 1
    total = state.get("total", 0.0) + purchase["amount"]
    state.set("purchases", purchases)
    state.set("total", total)
    return None if purchases % EVERY else {"user": user, "purchases": purchases, "total": total}


class Rewards(StatefulProcessor):
    """The same by hand."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """A task begins."""
        self._state = handle.getValueState("rewards", "purchases bigint, total double")

    def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: ARG002, N802, N803
        """The purchases of a user."""
        purchases, total = self._state.get() or (0, 0.0)
        for row in rows:
            purchases += 1
            total += row.amount
            if purchases % EVERY == 0:
                yield Row(user=key[0], purchases=purchases, total=total)
        self._state.update((purchases, total))

    def close(self) -> None:
        """A task ends."""


def jobs(setup: Setup) -> list[Job]:
    """Parquet → a stateful function of 100,000 keys → Parquet."""
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark, purchases = setup.spark, str(setup.base / "purchases")
    # The quick form has all users, too; what is smaller still has fewer of them.
    users = int(USERS * min(1, 10 * setup.scale))
    make_purchases(spark, setup.base / "purchases", max(2, setup.size(FILES)), users)

    def ours(folder: Path) -> None:
        source = Files(purchases, format="parquet", schema=PURCHASES, max_files=1)
        rows = Pipeline("rewards").source(source).key_by("user").stateful(reward)
        rows.to(Files(folder / "out", format="parquet", schema=REWARDS)).run()

    def by_hand(folder: Path) -> None:
        reader = spark.readStream.schema(PURCHASES).option("maxFilesPerTrigger", 1)
        rows = reader.parquet(purchases).groupBy("user")
        stream_to_end(
            rows.transformWithState(Rewards(), REWARDS, "append", "none"),
            folder,
            lambda writer: writer.format("parquet").option("path", str(folder / "out")),
        )

    return [Job("Parquet → stateful function → Parquet", 0.7, ours, by_hand, rewarded)]


def rewarded(folder: Path, way: str) -> tuple[int, int, int]:
    """How many rewards were given, and the sums of their purchases and totals."""
    del way
    table = ds.dataset(folder / "out", format="parquet").to_table()
    purchases, total = (pa.compute.sum(table.column(name)).as_py() for name in ("purchases", "total"))
    return table.num_rows, purchases, round(total)
