"""Stages the rows of a query with Spark's own writer of Parquet: no Python touches them."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
from pyspark.sql import DataFrame

from queenstream.core.schemas import Schema, types
from queenstream.engines.spark.sinks.files.location import Location
from queenstream.engines.spark.sinks.two_phase import FrameStage, StagedPart

_GLOB = re.compile(r"[*?\[\]{}\\]")  # what is a pattern in a path that is read
_THREADS = 8  # that look at files
_TIMES = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
_NO_MARKER = ("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false")


class SparkParquet(FrameStage):
    """Writes rows into a folder of their own below ``staging`` and ``folder``.

    ``discard`` deletes what was staged, where it turns out that there are no rows.
    """

    def __init__(self, location: Location, staging: str, folder: str, discard: Callable[[], None]) -> None:
        self._location = location
        self._staging = staging
        self._folder = folder
        self._discard = discard

    def stage(self, rows: DataFrame) -> list[StagedPart]:
        attempt = f"{self._folder}/{uuid.uuid4().hex}"
        folder = f"{self._staging}/{attempt}"
        rows.sparkSession.conf.set(*_TIMES)  # by default without a zone, and this session is the query's own
        rows.write.option(*_NO_MARKER).parquet(self._location.url(folder))
        files = self._location.files(folder)
        with ThreadPoolExecutor(_THREADS) as threads:
            counts = [*threads.map(lambda file: self._finish(f"{folder}/{file[0]}"), files)]
        self._location.sync(folder)
        if not any(counts):  # and nothing will be committed
            self._discard()
        return [
            StagedPart(number, f"{attempt}/{name}", count, size)
            for number, ((name, size), count) in enumerate(zip(files, counts, strict=True))
            if count  # Spark writes a file without rows where there are none at all
        ]

    def _finish(self, path: str) -> int:
        """Make a file durable; gives the number of its rows."""
        count = self._location.count_rows(path)
        if count:
            self._location.sync(path)
        return count

    def sample(self, rows: DataFrame, part: StagedPart, most: int) -> pa.Table:
        url = _GLOB.sub(r"\\\g<0>", self._location.url(f"{self._staging}/{part.name}"))
        return rows.sparkSession.read.schema(rows.schema).parquet(url).limit(most).toArrow()


def is_plain(schema: Schema) -> bool:
    """Whether Spark takes all columns of these fields: names may not differ in their case alone."""
    return _is_plain(types.Struct(schema.fields))


def _is_plain(kind: types.Type) -> bool:
    if isinstance(kind, types.Struct):
        lowered = [each.name.lower() for each in kind.fields]
        return len({*lowered}) == len(lowered) > 0 and all(_is_plain(each.type) for each in kind.fields)
    if isinstance(kind, types.List):
        return _is_plain(kind.of)
    return not isinstance(kind, types.Map) or (_is_plain(kind.key) and _is_plain(kind.value))
