"""Brings staged rows back into files of the checkpoint, when the table has refused one of them.

From there they go by the sink's writer, which finds the rows that the table does not take.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from queenstream.engines.spark.datasource.database import connected
from queenstream.engines.spark.sinks.stage import StageFunction, StageOptions, TaskOutput
from queenstream.engines.spark.sinks.tables.staging_table import WIDE
from queenstream.engines.spark.sources.tables.columns import TableColumn
from queenstream.runtime.encoding import encode_row

COLUMNS = "task LONG, query BINARY"


@dataclass(frozen=True)
class StagedQuery:
    """Selects the rows that one attempt has staged, in order. ``columns``: names and staged types."""

    task: int
    query: str
    columns: tuple[tuple[str, str], ...]


def readback_rows(spark: SparkSession, queries: Sequence[StagedQuery]) -> DataFrame:
    """A row for each query, each in a task of its own."""
    rows = [(each.task, cloudpickle.dumps(each)) for each in queries]  # type: ignore[no-untyped-call]
    made = spark.sparkContext.parallelize(rows, len(rows))
    return spark.createDataFrame(made, COLUMNS)


class Readback(StageFunction):
    """Writes the rows of queries into a file of the checkpoint, for the sink of this name."""

    def __init__(self, options: StageOptions, sink: str, url: str) -> None:
        super().__init__(options)
        self._sink = sink
        self._url = url

    def _put(self, batches: Iterator[pa.RecordBatch], stage: TaskOutput) -> None:
        for batch in batches:
            for data in batch.column("query").to_pylist():
                self._add(pickle.loads(data), stage)  # noqa: S301 - packed above

    def _add(self, query: StagedQuery, stage: TaskOutput) -> None:
        decoders = {name: decode for name, kind in query.columns if (decode := _decoder(kind)) is not None}
        number = 0
        with connected(self._url, patient=True) as database:
            for batch in database.batches(query.query):
                for record in batch.to_pylist():
                    for name, decode in decoders.items():
                        if record[name] is not None:
                            record[name] = decode(record[name])
                    stage.add(self._sink, (True, 0, query.task, number), encode_row(record))
                    number += 1


def column_of(kind: str) -> TableColumn:
    """A column of a staged type."""
    return TableColumn("", kind.partition("(")[0], required=False)


def _decoder(kind: str) -> Callable[[Any], Any] | None:
    return int if kind == WIDE else column_of(kind).decode
