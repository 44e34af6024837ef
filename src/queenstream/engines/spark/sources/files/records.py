"""What tasks do with files where that needs Python: lines made records, and files opened by our own readers.

The place of a line is the byte where its block begins, and how many lines of the block come before it: so it
rises from line to line, wherever Spark cuts a file into blocks.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from queenstream.connectors.files.files import open_file
from queenstream.connectors.files.lines import BOM, failed_line, json_record, text_record
from queenstream.connectors.validation import fit
from queenstream.core.schemas import Schema, types
from queenstream.core.schemas.types import Field, Struct
from queenstream.engines.spark.datasource import payloads
from queenstream.engines.spark.sources.files.storage import local_path
from queenstream.engines.spark.sources.kafka import typed_values
from queenstream.engines.spark.sources.sources import SOURCE_BITS, Decoded
from queenstream.engines.spark.tasks.records import Item, encode_failure
from queenstream.engines.spark.types import arrow_type, is_bare
from queenstream.errors import PayloadInvalid
from queenstream.pipeline.endpoints import FileFormat

PLACE_BITS = 36
"""The bits of a record's place in its file: of a line as many as its file may have bytes."""

RECORDS = 10_000  # that are made at once
_IN_FILE = (1 << PLACE_BITS) - 1
_TEXT = Schema((Field("value", types.STRING),))

COLUMNS = ["record", "seq", "misfit", "ended"]
"""The columns of records for a plan without Python. ``ended``: the row only says that there is no more."""

Failure = tuple[Any, Exception]


class Piece(NamedTuple):
    """Records, each with its place, and what could not be made one."""

    records: list[Any]
    places: list[int]
    failures: list[Failure]
    failed_at: list[int]
    ended: bool = False


class Lines:
    """Numbers the lines of a task, and makes records of them."""

    def __init__(self, form: FileFormat, schema: Schema | None, names: Mapping[int, str]) -> None:
        self._make = json_record if form == "ndjson" else text_record
        self._schema = schema
        self._names = names
        self._block = -1
        self._taken = 0  # of the block

    def places(self, blocks: pa.Array) -> list[int]:
        """The place of each line, by where its block begins."""
        bounds = pc.min_max(blocks).as_py()
        if bounds["min"] == bounds["max"] == self._block:
            first = self._block + self._taken
            self._taken += len(blocks)
            return [*range(first, first + len(blocks))]
        found = []
        for block in blocks.to_pylist():
            if block != self._block:
                self._block, self._taken = block, 0
            found.append(block + self._taken)
            self._taken += 1
        return found

    def record(self, line: bytes, block: int, place: int, uri: str | None) -> tuple[Any, Exception | None]:
        """The record of a line, or the line and what is wrong with it; nothing of an empty one."""
        text = line.removeprefix(BOM) if place & _IN_FILE == 0 else line
        try:
            record = self._make(text)
        except ValueError as error:  # msgspec's and Unicode's are ValueErrors
            return failed_line(self._place(block, place, uri), text, error)
        if record is None or self._schema is None:
            return record, None
        try:
            return self._schema.coerce(record), None
        except PayloadInvalid as error:
            return record, error

    def _place(self, block: int, place: int, uri: str | None) -> str:
        """Where a line stands, as people look for it."""
        name = uri or self._names.get(block >> PLACE_BITS, "a file")
        path = local_path(name)
        begins = block & _IN_FILE
        behind = f" after byte {begins}" if begins else ""
        return f"{name if path is None else path} line {place - block + 1}{behind}"

    def pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
        """The records of batches of lines."""
        for batch in batches:
            piece = Piece([], [], [], [], ended=bool(pc.any(batch.column("ended")).as_py()))
            lines = batch.filter(pc.invert(batch.column("ended")))
            places = self.places(lines.column("block"))
            values, blocks, uris = (lines.column(name).to_pylist() for name in ("value", "block", "uri"))
            for line, block, place, uri in zip(values, blocks, places, uris, strict=True):
                record, error = self.record(line, block, place, uri)
                if error is not None:
                    piece.failures.append((record, error))
                    piece.failed_at.append(place)
                elif record is not None:
                    piece.records.append(record)
                    piece.places.append(place)
            yield piece


class Whole:
    """Opens files, one after the other, with the readers that the local engine has."""

    def __init__(self, form: FileFormat, schema: Schema | None) -> None:
        self._format = form
        self._schema = schema

    def pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
        """The records of the files that batches name, some at a time."""
        for batch in batches:
            for row in batch.to_pylist():
                if row["ended"]:
                    yield Piece([], [], [], [], ended=True)
                    continue
                path = local_path(row["uri"])
                if path is not None:
                    yield from self._read(path, row["block"])
                    continue
                with tempfile.NamedTemporaryFile() as copy:
                    copy.write(row["content"])
                    copy.flush()
                    for piece in self._read(Path(copy.name), row["block"]):
                        yield piece._replace(failures=_renamed(piece.failures, copy.name, row["uri"]))

    def _read(self, path: Path, place: int) -> Iterator[Piece]:
        try:
            file = open_file(self._format, path)
        except PayloadInvalid as error:  # it is not a file of its format at all
            yield Piece([], [], [(str(path), error)], [place])
            return
        try:
            more = True
            while more:
                part = file.take(RECORDS)
                more = part.more
                batch = fit(self._schema, part.records)
                failures = part.failures + batch.failures
                there = len(batch.records)
                places = [*range(place, place + there + len(failures))]
                place += len(places)
                yield Piece(batch.records, places[:there], failures, places[there:])
        finally:
            file.close()


def _renamed(failures: list[Failure], name: str, uri: str) -> list[Failure]:
    """The failures of a copy, with the name that the file has where it lies."""
    return [
        (uri if record == name else record, PayloadInvalid(str(error).replace(name, uri)))
        if name in str(error)
        else (record, error)
        for record, error in failures
    ]


class TypedPieces:
    """Pieces as typed columns: a function for ``mapInArrow``. ``wanted`` are some fields of the schema."""

    def __init__(self, made: Lines | Whole, wanted: Schema) -> None:
        self._made = made
        self._wanted = wanted

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in self._made.pieces(batches):
            nothing = [None] * len(piece.failures)
            misfits = [*[None] * len(piece.records), *(encode_failure(*each) for each in piece.failures)]
            yield _typed([*piece.records, *nothing], [*piece.places, *piece.failed_at], misfits, self._wanted)
            if piece.ended:
                yield _end(self._wanted)


class TypedLines:
    """Lines as typed columns, a batch at once as far as Arrow can: a function for ``mapInArrow``."""

    def __init__(self, form: FileFormat, schema: Schema, wanted: Schema, names: Mapping[int, str]) -> None:
        self._format = form
        self._schema = schema
        self._wanted = wanted
        self._names = names

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        lines = Lines(self._format, self._schema, self._names)
        at_once = is_bare(self._schema.fields) if self._format == "ndjson" else self._schema == _TEXT
        if not at_once:
            yield from TypedPieces(lines, self._wanted)(batches)
            return
        kind = arrow_type(Struct(self._wanted.fields))
        read = payloads.reader(StructType(), kind, self._schema.to_ddl())
        for batch in batches:
            ended = batch.column("ended")
            yield self._at_once(batch.filter(pc.invert(ended)), lines, read)
            if pc.any(ended).as_py():
                yield _end(self._wanted)

    def _at_once(self, batch: pa.RecordBatch, lines: Lines, read: payloads.Reader) -> pa.RecordBatch:
        places = pa.array(lines.places(batch.column("block")), pa.int64())
        values = batch.column("value")
        if self._format == "ndjson":
            values = _trimmed(values)
            there = pc.not_equal(pc.binary_length(values), 0)
            batch, places, values = (each.filter(there) for each in (batch, places, values))
            data = typed_values(values, read)
        else:
            data = pa.StructArray.from_arrays([_texts(values)], names=["value"])
        bad = payloads.unfit(self._wanted, data)
        if self._format == "text":
            bad = pc.or_(bad, data.field("value").is_null())
        misfits: list[bytes | None] = [None] * len(data)
        if bad.true_count:
            misfits = self._misfits(batch, places, bad, lines)
        return _typed(data, places, misfits, self._wanted)

    def _misfits(
        self, batch: pa.RecordBatch, places: pa.Array, bad: pa.Array, lines: Lines
    ) -> list[bytes | None]:
        columns = (batch.column(name).to_pylist() for name in ("value", "block", "uri"))
        found: list[bytes | None] = []
        for line, block, uri, place, wrong in zip(*columns, places.to_pylist(), bad.to_pylist(), strict=True):
            if not wrong:
                found.append(None)
                continue
            record, error = lines.record(line, block, place, uri)
            found.append(
                encode_failure(
                    record, error or PayloadInvalid("its values are not what its columns can hold")
                )
            )
        return found


def _trimmed(values: pa.Array) -> pa.Array:
    """Lines without the white space around them."""
    try:
        return pc.ascii_trim_whitespace(values.cast(pa.string())).cast(pa.binary())
    except pa.ArrowInvalid:  # some line is no text
        return pa.array([value.strip() for value in values.to_pylist()], pa.binary())


def _texts(values: pa.Array) -> pa.Array:
    """Lines without their end; null for one that is no text."""
    try:
        texts = values.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([_text(value) for value in values.to_pylist()], pa.string())
    if pc.any(pc.ends_with(texts, "\r")).as_py():
        return pc.replace_substring_regex(texts, r"\r\z", "")
    return texts


def _text(value: bytes) -> str | None:
    try:
        found: str = text_record(value)["value"]
        return found
    except UnicodeDecodeError:
        return None


def _typed(records: Any, places: Any, misfits: list[bytes | None], wanted: Schema) -> pa.RecordBatch:
    """Records in the columns that a native plan takes."""
    kind = arrow_type(Struct(wanted.fields))
    data = records if isinstance(records, pa.Array) else pa.array(records, kind)
    columns = [
        data,
        pa.array(places, pa.int64()),
        pa.array(misfits, pa.binary()),
        pa.array([False] * len(data), pa.bool_()),
    ]
    return pa.RecordBatch.from_arrays(columns, names=COLUMNS)


def _end(wanted: Schema) -> pa.RecordBatch:
    """The row that says that the source has ended."""
    one = _typed([None], [0], [None], wanted)
    return one.set_column(COLUMNS.index("ended"), "ended", pa.array([True]))


class PieceDecoder:
    """Makes records of lines, or of whole files, for a plan with Python in it."""

    def __init__(self, number: int, made: Lines | Whole) -> None:
        self._base = number << SOURCE_BITS
        self._made = made

    def pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
        """What there is to decode, so much at a time as memory can always hold."""
        return self._made.pieces(batches)

    def decode(self, piece: Any) -> Decoded:
        """The records of a piece."""
        items = [
            Item(record, None, None, self._base + place)
            for record, place in zip(piece.records, piece.places, strict=True)
        ]
        return Decoded(items, piece.failures, piece.ended)


class ColumnsDecoder:
    """Makes records of typed columns, for a plan with Python in it."""

    def __init__(self, number: int, schema: Schema) -> None:
        self._base = number << SOURCE_BITS
        self._schema = schema

    def decode(self, batch: pa.RecordBatch) -> Decoded:
        """The records of some rows."""
        decoded = Decoded()
        columns = (batch.column(name).to_pylist() for name in ("record", "seq", "ended"))
        for record, place, ended in zip(*columns, strict=True):
            if ended:
                decoded.ended = True
                continue
            try:
                row = self._schema.coerce(record)
            except PayloadInvalid as error:
                decoded.failures.append((record, error))
                continue
            decoded.items.append(Item(row, None, None, self._base + place))
        return decoded
