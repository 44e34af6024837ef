"""The options of ``format("queen")``: read once, checked, and handed on as frozen values.

>>> options = source_options({"queue": "orders", "pg": "postgresql://db/queen", "maxRowsPerBatch": "1000"})
>>> options.queue, options.max_rows_per_batch
('orders', 1000)
>>> source_options({"queue": "orders", "pg": "postgresql://db/queen", "maxRows": "1000"})
Traceback (most recent call last):
queenstream.errors.ConfigError: format("queen") cannot read with maxRows; did you mean maxRowsPerBatch?
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from queenstream.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:6632"

_PLACE = ("url", "pg", "token")
_READING = (
    "queue", "stream", "group", "startingOffsets", "endingOffsets", "maxRowsPerBatch", "maxBytesPerBatch",
    "adaptiveBatches", "numPartitions", "schema", "columns", "coerce", "expiredUntil", *_PLACE,
)  # fmt: skip
_WRITING = ("queue", "partition", "partitionBy", "sink", "batchId", *_PLACE)
# Spark's own, which it hands over with ours.
_SPARK = {"checkpointlocation", "path", "queryname", "outputmode"}

Start = Literal["earliest", "latest"] | datetime | int
"""Where to begin: with what was created from a time on, or with the messages after an id."""

_AFTER = "after:"


@dataclass(frozen=True)
class Place:
    """Where the database is: its URL, or that of a broker to ask."""

    pg: str | None
    url: str
    token: str | None

    def __repr__(self) -> str:
        return f"Place({self.url!r})"  # a password may be in pg


@dataclass(frozen=True)
class SourceOptions:
    """What to read, from where, and how much of it at once."""

    place: Place
    queue: str | None
    stream: str | None
    group: str | None
    start: Start
    end_at_latest: bool  # a stream ends at what is there when it starts
    max_rows_per_batch: int | None
    max_bytes_per_batch: int | None
    adapts: bool  # a batch is larger than these, if the one before it was quickly done
    num_partitions: int | None
    payload: str  # the SQL type of ``data``
    columns: tuple[str, ...] | None
    coerce: str | None  # a schema of ours, as DDL, that payloads are made to fit
    expired_us: int | None  # a batch leaves out what was created until then, whatever ttl and retention say


@dataclass(frozen=True)
class SinkOptions:
    """Where rows go, and under which name a batch is noted."""

    place: Place
    queue: str
    partition: str | None
    partition_by: str | None
    sink: str | None
    batch_id: int | None


def source_options(options: Mapping[str, str]) -> SourceOptions:
    """Check what a reader was given.

    >>> source_options({"queue": "a", "stream": "b"})
    Traceback (most recent call last):
    queenstream.errors.ConfigError: give either the option queue or the option stream, not both
    """
    given = _known(options, _READING, "read")
    queue, stream = given.get("queue"), given.get("stream")
    if queue and stream:
        raise ConfigError("give either the option queue or the option stream, not both")
    if not queue and not stream:
        raise ConfigError('what to read? Name it with .option("queue", …) or .option("stream", …)')
    if stream and given.get("coerce"):
        raise ConfigError("the option coerce is for the messages of a queue; leave it out for a stream")
    columns = given.get("columns")
    return SourceOptions(
        place=_place(given),
        queue=queue,
        stream=stream,
        group=given.get("group"),
        start=_start(given.get("startingOffsets", "earliest")),
        end_at_latest=_end_at_latest(given.get("endingOffsets")),
        max_rows_per_batch=_count(given, "maxRowsPerBatch"),
        max_bytes_per_batch=_count(given, "maxBytesPerBatch"),
        adapts=_flag(given, "adaptiveBatches"),
        num_partitions=_count(given, "numPartitions"),
        payload=payload_type(given.get("schema", "VARIANT")),
        columns=tuple(name.strip() for name in columns.split(",")) if columns else None,
        coerce=given.get("coerce"),
        expired_us=_count(given, "expiredUntil"),
    )


def sink_options(options: Mapping[str, str]) -> SinkOptions:
    """Check what a writer was given.

    >>> sink_options({"queue": "orders", "pg": "postgresql://db/queen", "partitionBy": "user"}).partition_by
    'user'
    """
    given = _known(options, _WRITING, "write")
    if not given.get("queue"):
        raise ConfigError('where to write? Name the queue with .option("queue", …)')
    if given.get("partition") and given.get("partitionBy"):
        raise ConfigError("give either the option partition (a name) or partitionBy (a column), not both")
    batch_id = given.get("batchId")
    if batch_id is not None and (not given.get("sink") or not batch_id.isdecimal()):
        raise ConfigError("batchId is a whole number, and goes with the option sink, which names who counts")
    return SinkOptions(
        place=_place(given),
        queue=given["queue"],
        partition=given.get("partition"),
        partition_by=given.get("partitionBy"),
        sink=given.get("sink"),
        batch_id=None if batch_id is None else int(batch_id),
    )


def payload_type(schema: str) -> str:
    """The SQL type of ``data``: columns become a struct, a type stays what it is.

    >>> payload_type("user STRING, amount DOUBLE")
    'STRUCT<user STRING, amount DOUBLE>'
    >>> payload_type("string"), payload_type("MAP<STRING, INT>")
    ('STRING', 'MAP<STRING, INT>')
    """
    text = schema.strip()
    upper = text.upper()
    if upper in ("STRING", "VARIANT"):
        return upper
    if upper.startswith(("STRUCT<", "MAP<", "ARRAY<")) and text.endswith(">"):
        return text
    return f"STRUCT<{text}>"


def _known(options: Mapping[str, str], names: tuple[str, ...], doing: str) -> dict[str, str]:
    """The options that are there, by our spelling; Spark's own are left out, others are a mistake."""
    spelling = {name.lower(): name for name in names}
    given: dict[str, str] = {}
    for name, value in options.items():
        key = name.lower()
        if key in spelling:
            given[spelling[key]] = value
        elif key not in _SPARK and not key.startswith("spark."):
            close = difflib.get_close_matches(key, spelling, 1, 0.5)
            remedy = f"did you mean {spelling[close[0]]}?" if close else f"it knows {', '.join(names)}"
            raise ConfigError(f'format("queen") cannot {doing} with {name}; {remedy}')
    return given


def _place(given: Mapping[str, str]) -> Place:
    """``pg``, else ``url``, else what the environment says."""
    pg, url = given.get("pg"), given.get("url")
    if not pg and not url:
        pg = os.environ.get("QUEEN_PG")
    if pg and not pg.startswith(("postgresql://", "postgres://")):
        raise ConfigError(
            "the option pg is the URL of a PostgreSQL: write postgresql://user:password@host/database"
        )
    return Place(
        pg or None,
        url or os.environ.get("QUEEN_URL") or DEFAULT_URL,
        given.get("token") or os.environ.get("QUEEN_TOKEN"),
    )


def _count(given: Mapping[str, str], name: str) -> int | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.isdecimal() or not 0 < int(text) < 1 << 62:
        raise ConfigError(f"the option {name} is {text!r}; give a whole number from 1 on")
    return int(text)


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").strip().lower()
    if text not in ("true", "false"):
        raise ConfigError(f"the option {name} is {text!r}; give true or false")
    return text == "true"


def _end_at_latest(text: str | None) -> bool:
    if text is not None and text.strip().lower() != "latest":
        raise ConfigError(f"the option endingOffsets is {text!r}; give latest, or leave it out to read on")
    return text is not None


def _start(text: str) -> Start:
    """What the option startingOffsets says.

    >>> _start("after:1042"), _start("2026-01-31")
    (1042, datetime.datetime(2026, 1, 31, 0, 0, tzinfo=datetime.timezone.utc))
    """
    match text.strip().lower():
        case "earliest":
            return "earliest"
        case "latest":
            return "latest"
    after = text.strip().removeprefix(_AFTER)
    if after != text.strip() and after.isdecimal():
        return int(after)
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ConfigError(
            f"the option startingOffsets is {text!r}; "
            "give earliest, latest, a time such as 2026-01-31T12:00:00Z, or after: and an id"
        ) from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
