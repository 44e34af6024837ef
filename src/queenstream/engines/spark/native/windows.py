"""Windows by Spark's own ``window``: tumbling and sliding ones, final rows and updates.

Sessions are not among them. Spark's ``session_window`` takes an event exactly one gap after the last one into
the session (ours begins the next), and drops an event whose own gap is past the watermark even where an
open session would take it (ours takes it). Count windows it has none.
"""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from queenstream.core import windows
from queenstream.core.schemas import types
from queenstream.core.windows import length_us
from queenstream.engines.spark.native.aggregates import SEQ, TIME, aggregate_column
from queenstream.engines.spark.native.expressions import RECORD, NotNative, Typed
from queenstream.engines.spark.native.frames import CLOCK, Clock, Frame, record_of
from queenstream.engines.spark.tasks import rows as flow
from queenstream.pipeline.plan import nodes
from queenstream.pipeline.plan.nodes import WINDOW_END, WINDOW_START


def clock(node: nodes.Aggregation) -> Clock:
    """Windows are computed that much later as Spark needs it, in whole slides."""
    slide = _grid(node).slide_us
    return Clock(-(-flow.SHIFT_US // slide) * slide, length_us(node.grace))


def _grid(node: nodes.Aggregation) -> windows.Tumbling | windows.Sliding:
    """The node's window, if Spark closes such a one as we do: its watermark has milliseconds."""
    window = node.window
    if not isinstance(window, windows.Tumbling | windows.Sliding):
        raise NotNative("windows that Spark has not, or closes by another rule")
    if window.size_us % 1_000 or window.slide_us % 1_000 or length_us(node.grace) % 1_000:
        raise NotNative("windows of less than a millisecond")
    return window


def aggregate(node: nodes.Aggregation, frame: Frame) -> Frame:
    """A record for each window and key: when it closes, or in each batch that changes it."""
    window, shift = _grid(node), clock(node).shift_us
    span = f.window(CLOCK, f"{window.size_us} microseconds", f"{window.slide_us} microseconds").alias("span")
    made = {name: aggregate_column(each, frame.compiler) for name, each in node.aggregates}
    keys = [f"key_{number}" for number in range(len(frame.keys))] if node.keys else []
    columns = [each.column.alias(f"value_{at}") for at, each in enumerate(made.values())]
    updates = node.emit == "update"
    if updates:
        columns.append(f.max(SEQ).alias(SEQ))
    rows = frame.rows.groupBy(span, *keys).agg(*columns)
    return _result(rows, frame, made, shift, keys, due=not updates)


def _result(
    rows: DataFrame, frame: Frame, made: dict[str, Typed], shift: int, keys: list[str], *, due: bool
) -> Frame:
    """The groups as records, with the time and the keys that they have from here on."""

    def bound(name: str, less: int = 0) -> Column:
        return f.timestamp_micros(f.unix_micros(f.col(f"span.{name}")) - f.lit(shift + less))

    fields = {
        WINDOW_START: Typed(bound("start"), types.TIMESTAMP),
        WINDOW_END: Typed(bound("end"), types.TIMESTAMP),
    }
    kept = frame.keys[: len(keys)]
    fields |= {each.name: Typed(f.col(name), each.type) for each, name in zip(kept, keys, strict=True)}
    fields |= {name: Typed(f.col(f"value_{at}"), each.type) for at, (name, each) in enumerate(made.items())}
    seq = f.lit(0).cast("bigint") if due else f.col(SEQ)
    record, schema = record_of(fields)
    found = rows.select(
        record.alias(RECORD), bound("end", less=1).alias(TIME), seq.alias(SEQ), *keys
    )  # at once: each step of a query costs time in every batch
    return Frame(found, schema, frame.failures, keys=kept, due=due)
