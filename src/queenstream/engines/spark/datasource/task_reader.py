"""A task's messages, or windows, as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, StructType

from queenstream.engines.spark.datasource import arrays, payloads
from queenstream.engines.spark.datasource.database import connected
from queenstream.engines.spark.datasource.planner import Lane, Part, Span, Where
from queenstream.engines.spark.versions import to_arrow_schema
from queenstream.errors import ConfigError

# What is selected for each column; ``queue`` is the same in all rows and comes from here. A payload that is
# encrypted becomes null, which plain ones never are.
_PAYLOAD = "case when m.key_id is null then m.payload end"
MESSAGE_COLUMNS = {
    "data": (_PAYLOAD, "{payload}"),
    "id": ("m.id", "BIGINT"),
    "partition": ("p.name", "STRING"),
    "queue": (None, "STRING"),
    "transaction_id": ("m.transaction_id", "STRING"),
    "trace_id": ("m.trace_id", "STRING"),
    "created_at": ("m.created_at", "TIMESTAMP"),
    # With ``coerce``: a payload that does not fit, and why, as ``records.packed`` has it; null where it fits.
    "misfit": (None, "BINARY"),
}
_MADE = ("queue", "misfit")  # here, not in the database
WINDOW_COLUMNS = {
    "key": "STRING",
    "window_start": "TIMESTAMP",
    "window_end": "TIMESTAMP",
    "messages": "ARRAY<STRUCT<id BIGINT, data {payload}, queue STRING, partition STRING, "
    "transaction_id STRING, created_at TIMESTAMP>>",
    "complete": "BOOLEAN",
}
_EPOCH = "timestamptz 'epoch'"

# Partition by partition, each in its order; a reader never waits for a sort.
_ORDERED = """
select {columns}
from unnest('{partitions}'::bigint[], '{after}'::bigint[], '{upto}'::bigint[])
    as s (partition_id, after, upto)
join queen.partitions p on p.id = s.partition_id
cross join lateral (
    select * from queen.messages m
    where m.partition_id = s.partition_id and m.id > s.after and m.id <= s.upto
      and m.group_id is null{conditions}
    order by m.id
) m"""

# In whatever order PostgreSQL finds cheapest.
_UNORDERED = """
select {columns}
from queen.messages m join queen.partitions p on p.id = m.partition_id
where ({spans}) and m.group_id is null{conditions}"""

# A stream's own messages name its windows. One row for each message of a window; one without any has one row.
_WINDOWS = """
select w.id as window_id, w.key, {start} as window_start, {end} as window_end, w.complete,
    m.id, {payload} as data, q.name as queue, p.name as partition, m.transaction_id, m.created_at
from unnest('{partitions}'::bigint[], '{after}'::bigint[], '{upto}'::bigint[])
    as s (partition_id, after, upto)
cross join lateral (
    select queen.window_of(m.payload) as window_id from queen.messages m
    where m.partition_id = s.partition_id and m.id > s.after and m.id <= s.upto
      and m.group_id is null{conditions}
    order by m.id
) o
join queen.windows w on w.id = o.window_id
left join lateral (
    select x.* from queen.window_parts r
    join queen.messages x on x.partition_id = r.partition_id and x.id >= r.first_id and x.id <= r.last_id
        and x.group_id is null
    where r.window_id = w.id order by x.created_at, x.id
) m on true
left join queen.partitions p on p.id = m.partition_id
left join queen.queues q on q.id = p.queue_id"""


def schema_of(names: dict[str, str], payload: str, chosen: tuple[str, ...] | None) -> str:
    """The columns as DDL, all or those chosen.

    >>> schema_of({"data": "{payload}", "id": "BIGINT"}, "STRING", ("id",))
    'id BIGINT'
    """
    for name in chosen or ():
        if name not in names:
            raise ConfigError(
                f"there is no column {name}; the option columns takes some of {', '.join(names)}"
            )
    return ", ".join(
        f"{name} {kind.format(payload=payload)}"
        for name, kind in names.items()
        if (name in chosen if chosen else name != "misfit")
    )


def payload_kind(schema: StructType) -> DataType | None:
    """The type of ``data``, in a message or in those of a window; None if it was not asked for."""
    for field in schema:
        if field.name == "data":
            return field.dataType
        if field.name == "messages":
            assert isinstance(field.dataType, ArrayType)
            assert isinstance(field.dataType.elementType, StructType)
            return field.dataType.elementType["data"].dataType
    return None


def message_query(part: Part, columns: Sequence[str]) -> str:
    """The statement for a task's messages."""
    selected = [f"{MESSAGE_COLUMNS[name][0]} as {name}" for name in columns if name not in _MADE]
    chosen = ", ".join(selected) or "m.id"
    if part.ordered:
        return _query(_ORDERED, part, columns=chosen)
    return _UNORDERED.format(columns=chosen, spans=_any_of(part.spans), conditions=_conditions(part.where))


def _any_of(spans: Sequence[Span]) -> str:
    """The condition for some spans; those with the same bounds make one."""
    same: dict[tuple[int, int], list[int]] = {}
    for span in spans:
        same.setdefault((span.after, span.upto), []).append(span.partition_id)
    return " or ".join(
        f"m.partition_id = any ('{_array(partitions)}'::bigint[]) and m.id > {after:d} and m.id <= {upto:d}"
        for (after, upto), partitions in same.items()
    )


def messages(
    url: str, lane: Lane, part: Part, schema: StructType, coerce: str | None = None
) -> Iterator[pa.RecordBatch]:
    """The messages of a task, with the columns of a schema; payloads made to fit what ``coerce`` says."""
    arrow = to_arrow_schema(schema)
    plain = [field for field in schema if field.name != "misfit"]
    makers = [
        _maker(field.name, field.dataType, arrow.field(field.name).type, lane, coerce) for field in plain
    ]
    misfits = None if len(plain) == len(schema.fields) else payloads.misfits(coerce)
    query = message_query(part, schema.names)
    with connected(url, patient=True) as database:
        for batch in database.batches(query):
            if not batch.num_rows:
                continue
            made = {field.name: make(batch) for field, make in zip(plain, makers, strict=True)}
            if misfits is not None:
                made["misfit"] = misfits(batch.column("data"), made["data"])
            yield pa.RecordBatch.from_arrays([made[field.name] for field in schema], schema=arrow)


Maker = Callable[[pa.RecordBatch], pa.Array]


def _maker(name: str, kind: DataType, arrow: pa.DataType, lane: Lane, coerce: str | None) -> Maker:
    """What makes a column of the answer from a batch of the database's rows."""
    if name == "queue":
        [name_of_all] = arrays.texts([lane.name.encode()], arrow)
        return lambda batch: pa.repeat(name_of_all, batch.num_rows)
    if name == "data":
        read = payloads.reader(kind, arrow, coerce)
        return lambda batch: read(_plain(batch.column("data"), lane))
    return lambda batch: batch.column(name)


def _plain(texts: pa.Array, lane: Lane) -> pa.Array:
    if texts.null_count:
        raise ConfigError(
            f"queue {lane.name} holds encrypted messages, and Spark has no key; "
            "read it through a client of the broker"
        )
    return texts


def windows(url: str, lane: Lane, part: Part, schema: StructType) -> Iterator[pa.RecordBatch]:
    """The closed windows of a task, each with its messages."""
    start, end = (
        ("w.first_at", "w.last_at")
        if lane.by_position
        else (
            f"{_EPOCH} + w.start_us * interval '1 microsecond'",
            f"{_EPOCH} + w.end_us * interval '1 microsecond'",
        )
    )
    query = _query(_WINDOWS, part, start=start, end=end, payload=_PAYLOAD)
    grouped = _Grouped(schema, lane)
    with connected(url, patient=True) as database:
        held: list[pa.RecordBatch] = []  # the last window so far: it may go on in the next batch
        held_id = None
        for batch in database.batches(query):
            if not batch.num_rows:
                continue
            ids = arrays.numbers(batch.column("window_id"))
            cut = _last_run(ids)
            if cut > 0 or (held and ids[0] != held_id):
                yield grouped.batch([*held, batch.slice(0, cut)])
                held = [batch.slice(cut)]
            else:
                held.append(batch)
            held_id = ids[-1]
        if held:
            yield grouped.batch(held)


def _last_run(ids: arrays.Numbers) -> int:
    """Where the last run of equal ids begins."""
    changes = np.flatnonzero(ids[1:] != ids[:-1])
    return int(changes[-1]) + 1 if len(changes) else 0


class _Grouped:
    """Rows of one message each become rows of one window each."""

    def __init__(self, schema: StructType, lane: Lane) -> None:
        self._arrow = to_arrow_schema(schema)
        self._lane = lane
        kind = payload_kind(schema)
        if kind is not None:
            self._item = self._arrow.field("messages").type.value_type
            self._read = payloads.reader(kind, self._item.field("data").type)

    def batch(self, held: list[pa.RecordBatch]) -> pa.RecordBatch:
        """One row for each run of rows with the same window."""
        table = pa.Table.from_batches([batch for batch in held if batch.num_rows]).combine_chunks()
        rows = table.to_batches()[0]
        ids = arrays.numbers(rows.column("window_id"))
        starts = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1])
        first = rows.take(arrays.integers(starts))
        columns = [
            self._messages(rows, starts)
            if field.name == "messages"
            else first.column(field.name).cast(field.type)
            for field in self._arrow
        ]
        return pa.RecordBatch.from_arrays(columns, schema=self._arrow)

    def _messages(self, rows: pa.RecordBatch, starts: arrays.Numbers) -> pa.Array:
        there = rows.column("id").is_valid()  # a window may have no message
        kept = rows.filter(there)
        before = np.concatenate([[0], np.cumsum(there.cast(pa.int8()))])
        ends = np.append(before[starts], before[-1]).astype(np.int32)
        columns = [
            self._read(_plain(kept.column("data"), self._lane))
            if field.name == "data"
            else kept.column(field.name)
            for field in self._item
        ]
        items = pa.StructArray.from_arrays(columns, fields=list(self._item))
        return arrays.lists(ends, items).cast(self._arrow.field("messages").type)


def _query(template: str, part: Part, **more: str) -> str:
    """Numbers only go into the text, never names: those were looked up."""
    spans = part.spans
    return template.format(
        partitions=_array([span.partition_id for span in spans]),
        after=_array([span.after for span in spans]),
        upto=_array([span.upto for span in spans]),
        conditions=_conditions(part.where),
        **more,
    )


def _conditions(where: Where) -> str:
    found = ""
    for bound, sign in ((where.first_us, ">="), (where.last_us, "<=")):
        if bound is not None:
            found += f" and m.created_at {sign} {_EPOCH} + {bound:d} * interval '1 microsecond'"
    return found


def _array(numbers: list[int]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"
