"""The driver's side of a folder of files."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from pyspark.sql.types import StructType

from queenstream.connectors.validation import schema_of
from queenstream.core.schemas import Schema, types
from queenstream.core.schemas.types import Type
from queenstream.engines.spark.native.expressions import Wide
from queenstream.engines.spark.sinks.files.columns import ParquetColumns
from queenstream.engines.spark.sinks.files.frame import SparkParquet, is_plain
from queenstream.engines.spark.sinks.files.location import (
    HadoopLocation,
    LocalLocation,
    Location,
    batch_folder,
)
from queenstream.engines.spark.sinks.files.records import FileRecords, file_names
from queenstream.engines.spark.sinks.owner import Owner
from queenstream.engines.spark.sinks.two_phase import (
    ColumnStage,
    FrameStage,
    RecordStage,
    StagedPart,
    TwoPhaseSink,
)
from queenstream.engines.spark.types import parts_of
from queenstream.errors import CheckpointError
from queenstream.pipeline.endpoints import Files
from queenstream.pipeline.errors import PipelineError, Problem
from queenstream.pipeline.plan.nodes import Write
from queenstream.pipeline.plan.planner import Plan


class FilesSink(TwoPhaseSink):
    """The folder of a sink. ``step`` is the step that writes, ``generation`` that of the run's checkpoint."""

    def __init__(self, sink: Files, step: str, generation: str) -> None:
        self._sink = sink
        self._step = quote(step, safe="")
        self._generation = generation
        self._local = None if sink.remote else Path(sink.place).absolute()
        self._location: Location = (
            HadoopLocation(str(sink.path)) if self._local is None else LocalLocation(self._local)
        )
        self._staging = f"_staged-{generation}-{self._step}"
        self._epoch = 0

    def claim(self, owner: Owner, *, temporary: bool) -> None:  # noqa: ARG002
        self._epoch = owner.epoch

    def frame_stage(self, schema: Schema, batch: int) -> FrameStage | None:
        if not is_written_by_spark(self._sink, schema):
            return None
        return SparkParquet(
            self._location, self._staging, batch_folder(self._epoch, batch), self._delete_staged
        )

    def column_stage(
        self,
        schema: Schema,
        columns: Callable[[], StructType],  # noqa: ARG002
    ) -> ColumnStage | None:
        if self._local is None or not _is_columns(self._sink, schema):
            return None
        return ParquetColumns(self._local / self._staging, self._epoch)

    def record_stage(self, batch: int) -> RecordStage | None:
        if self._local is None:
            return None
        assert self._sink.format is not None, "it was looked up"
        folder = batch_folder(self._epoch, batch)
        return FileRecords(
            self._local / self._staging, folder, self._sink.format, schema_of(self._sink.schema)
        )

    def commit(self, parts: Sequence[StagedPart], batch: int) -> int:
        """Move the files of a batch to their places. A file that is in its place was moved before a crash."""
        for part in parts:
            for number, name in enumerate(file_names(part)):
                self._move(f"{self._staging}/{name}", self._final(part, number, batch))
        self._location.sync("")
        self._delete_staged()
        return sum(each.rows for each in parts)

    def _final(self, part: StagedPart, number: int, batch: int) -> str:
        task = f"{part.task:05}" if number == 0 else f"{part.task:05}.{number}"
        name = f"part-{self._generation}-{batch:010}-task-{task}-{self._step}"
        return f"{name}.{self._sink.format}"

    def _move(self, staged: str, final: str) -> None:
        there = self._location.has
        if there(final) or self._location.move(staged, final) or there(final):
            return
        raise CheckpointError(
            f"{self._location.url(staged)} is gone, and a batch that is to be delivered is in it; put a copy "
            "back, or take another checkpoint folder to begin anew"
        )

    def clean(self, batch: int) -> None:  # noqa: ARG002 - there is one batch at a time
        self._delete_staged()

    def _delete_staged(self) -> None:
        """Delete what this run and those before it have staged, but not what a newer owner has."""
        for name in self._location.names(self._staging):
            if not name.isdecimal() or int(name) <= self._epoch:
                self._location.delete(f"{self._staging}/{name}")
        self._location.delete_empty(self._staging)


def is_written_by_spark(sink: Files, schema: Schema) -> bool:
    """Whether Spark's own writer makes of rows with these fields what the sink is to have."""
    return _is_columns(sink, schema) and is_plain(schema)


def refuse_remote(plan: Plan, columns: Mapping[str, Schema]) -> None:
    """Say by line which files cannot be written where they are to be; ``columns``: by sink, what Spark has.

    Python in a task reaches the file systems of its machine only.
    """
    problems = tuple(
        Problem(
            str(node.where),
            node.name,
            f"{does} {sink.label}, and there Spark writes only Parquet without a schema=…, of a plan of "
            "expressions that keeps no failed records",
            "write that, or name a folder (NFS is one, too)",
        )
        for node, does, sink in plan.remote_files
        if not isinstance(node, Write)
        or sink is not node.sink
        or node.name not in columns
        or not is_written_by_spark(sink, columns[node.name])
    )
    if problems:
        raise PipelineError(plan.name, problems)


def _is_columns(sink: Files, schema: Schema) -> bool:
    """Whether the columns of a query are those of the sink's files."""
    if sink.format != "parquet" or sink.schema is not None or not schema.fields:
        return False
    return not _has_other(types.Struct(schema.fields))


def _has_other(kind: Type) -> bool:
    """Whether some value of this type is in a file not what it is in a query."""
    return isinstance(kind, Wide) or kind == types.VARIANT or any(map(_has_other, parts_of(kind)))
