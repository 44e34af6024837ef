"""Files: read from anywhere on, followed, and written exactly once."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from queenstream.connectors import Context, Writer, writer_for
from queenstream.errors import ConfigError
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import FileFormat, Files, Memory
from queenstream.pipeline.errors import PipelineError
from queenstream.pipeline.policies import DeadLetters
from tests.unit.connectors.reading import CONTEXT, everything, opened, rest, some

pyarrow: Any = importlib.import_module("pyarrow")  # it has no types
parquet: Any = importlib.import_module("pyarrow.parquet")
orc: Any = importlib.import_module("pyarrow.orc")

FORMATS: tuple[FileFormat, ...] = ("ndjson", "csv", "parquet", "orc")
WRITTEN: tuple[FileFormat, ...] = ("ndjson", "csv", "parquet")


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    """A file with these rows, by other means than ours."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=4)
    elif path.suffix == ".orc":
        orc.write_table(pyarrow.Table.from_pylist(rows), path)
    elif path.suffix == ".csv":
        lines = [",".join(rows[0]), *(",".join(str(value) for value in row.values()) for row in rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(*numbers: int) -> list[dict[str, Any]]:
    return [{"n": number, "name": f"no {number}"} for number in numbers]


@pytest.mark.parametrize("form", FORMATS)
async def test_a_folder_is_read_in_the_order_of_names(tmp_path: Path, form: FileFormat) -> None:
    write(tmp_path / f"b.{form}", rows_of(*range(10, 20)))
    write(tmp_path / f"a.{form}", rows_of(*range(10)))
    write(tmp_path / f".hidden.{form}", rows_of(99))
    source = Files(tmp_path, format=form, schema="n int, name string")
    assert (await everything(source, most=3)).records == rows_of(*range(20))
    assert (await everything(Files(tmp_path / f"b.{form}", schema="n int, name string"))).records == rows_of(
        *range(10, 20)
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("first", [1, 3, 4, 10, 13])
async def test_reading_goes_on_after_its_position(tmp_path: Path, form: FileFormat, first: int) -> None:
    write(tmp_path / f"a.{form}", rows_of(*range(10)))
    write(tmp_path / f"b.{form}", rows_of(*range(10, 20)))
    source = Files(tmp_path, format=form, schema="n int, name string")
    reader = await opened(source)
    taken: list[Any] = []
    positions: dict[str, Any] = {}
    while len(taken) < first:
        taken += (await some(reader, most=first - len(taken))).records
        positions |= reader.changes()
    await reader.close()
    write(tmp_path / f"c.{form}", rows_of(*range(20, 30)))  # came meanwhile
    assert taken + (await everything(source, positions)).records == rows_of(*range(30))


@pytest.mark.parametrize("form", FORMATS)
async def test_what_was_read_to_its_end_gives_nothing_more(tmp_path: Path, form: FileFormat) -> None:
    write(tmp_path / f"a.{form}", rows_of(1, 2))
    source = Files(tmp_path, format=form)
    reader = await opened(source)
    await rest(reader)
    positions = reader.changes()
    await reader.close()
    assert (await everything(source, positions)).empty


async def test_bad_lines_are_failures_with_their_place(tmp_path: Path) -> None:
    path = tmp_path / "in.ndjson"
    path.write_bytes(b'{"n": 1}\n\n{"n": oops}\n[1]\n{"n": "\xff"}\n{"n": 2}')
    batch = await everything(Files(path))
    assert batch.records == [{"n": 1}, {"n": 2}]
    assert [record for record, _ in batch.failures] == ['{"n": oops}', "[1]", '{"n": "\ufffd"}']
    places = [str(error).partition(": ")[0] for _, error in batch.failures]
    assert places == [f"{path} line {line}" for line in (3, 4, 5)]
    assert "a record is an object, not list" in str(batch.failures[1][1])


async def test_the_line_of_a_failure_is_right_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "in.ndjson"
    path.write_text('{"n": 1}\n{"n": 2}\nbad\n')
    reader = await opened(Files(path))
    await some(reader, most=2)
    positions = reader.changes()
    await reader.close()
    [(_, error)] = (await everything(Files(path), positions)).failures
    assert str(error).startswith(f"{path} line 3: ")


async def test_csv_with_quotes_line_ends_and_nothing(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_bytes(
        b'\xef\xbb\xbfid,text\r\n1,"a, ""b""\r\nc"\r\n\r\n2,\r\n3\r\n4,x,y\r\n5,"z"q\r\n6,\xc3\xa9\r\n'
    )
    batch = await everything(Files(path, schema="id int, text string"))
    assert batch.records == [
        {"id": 1, "text": 'a, "b"\r\nc'},
        {"id": 2, "text": None},
        {"id": 6, "text": "é"},
    ]
    said = [str(error).removeprefix(f"{path} ") for _, error in batch.failures]
    assert said[0] == "line 6: 1 values for 2 fields"
    assert said[1] == "line 7: 3 values for 2 fields"
    assert said[2].startswith("line 8: ")


@pytest.mark.parametrize("most", [1, 2])
async def test_csv_positions_lie_between_records(tmp_path: Path, most: int) -> None:
    path = tmp_path / "in.csv"
    path.write_text('id,text\n1,"a\nb"\n2,"c\nd"\n3,e\n')
    positions: Mapping[str, Any] = {}
    seen: list[Any] = []
    while len(seen) < 3:  # a restart after each batch
        reader = await opened(Files(path), positions)
        seen += (await some(reader, most)).records
        positions = reader.changes()
        await reader.close()
    assert [row["text"] for row in seen] == ["a\nb", "c\nd", "e"]


async def test_a_file_that_grows_is_followed(tmp_path: Path) -> None:
    path = tmp_path / "in.ndjson"
    reader = await opened(Files(path, follow=True))
    waiting = asyncio.get_running_loop().create_task(some(reader))  # it need not be there yet
    with path.open("w") as file:
        file.write('{"n": 1}\n{"n"')
        file.flush()
        assert (await waiting).records == [{"n": 1}]
        batch = await reader.read(100, 0.0)
        assert batch is not None
        assert batch.empty  # half a line is none
        file.write(": 2}\n")
    assert (await some(reader)).records == [{"n": 2}]
    (tmp_path / "other.ndjson").write_text('{"n": 3}\n')
    batch = await reader.read(100, 0.0)
    assert batch is not None
    assert batch.empty
    await reader.close()


async def test_a_folder_that_grows_is_followed(tmp_path: Path) -> None:
    reader = await opened(Files(tmp_path, format="csv", follow=True))
    (tmp_path / "a.csv").write_text('id,text\n1,a\n2,"b\n')
    assert [row["id"] for row in (await some(reader)).records] == ["1"]
    with (tmp_path / "a.csv").open("a") as file:
        file.write('c"\n')
    assert (await some(reader)).records == [{"id": "2", "text": "b\nc"}]
    write(tmp_path / "b.csv", rows_of(7))
    assert [row["n"] for row in (await some(reader)).records] == ["7"]
    await reader.close()


async def test_what_is_wrong_with_a_path_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file or folder .*none\.csv; check the path"):
        await opened(Files(tmp_path / "none.csv"))
    short = tmp_path / "short.ndjson"
    short.write_text("{}\n")
    with pytest.raises(ConfigError, match="has 3 bytes and 100 were read already: it was changed"):
        await everything(Files(short), {"short.ndjson": [100, 7]})
    (tmp_path / "bad.parquet").write_text("no parquet")
    [(record, error)] = (await everything(Files(tmp_path / "bad.parquet"))).failures
    assert record.endswith("bad.parquet")
    assert "is no Parquet file" in str(error)


async def test_parquet_without_pyarrow_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "a.parquet", rows_of(1))
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(ConfigError, match=r"Parquet and ORC need pyarrow; install it with pip install"):
        await everything(Files(tmp_path / "a.parquet"))


# Writing


async def writing(path: Path, context: Context = CONTEXT, **options: Any) -> Writer:
    writer = writer_for(Files(path, **options), context)
    await writer.open()
    return writer


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.parametrize("form", WRITTEN)
async def test_a_repeat_of_an_epoch_changes_nothing(tmp_path: Path, form: FileFormat) -> None:
    out = tmp_path / f"out.{form}"  # a folder, though it looks like a file
    schema = "n int, name string"
    writer = await writing(out, schema=schema)
    assert await writer.write("g-0000000001", rows_of(1, 2)) == []
    assert await writer.write("g-0000000002", rows_of(3)) == []
    before = content(out)
    assert list(before) == [f"part-g-000000000{n}-in.{form}" for n in (1, 2)]
    again = await writing(out, schema=schema)
    assert await again.write("g-0000000002", rows_of(3)) == []
    assert content(out) == before
    assert (await everything(Files(out, schema=schema))).records == rows_of(1, 2, 3)


@dataclass
class Row:
    n: int
    name: str


@pytest.mark.parametrize("form", WRITTEN)
async def test_rows_that_cannot_be_written_are_refused(tmp_path: Path, form: FileFormat) -> None:
    writer = await writing(tmp_path / "out", format=form, schema="n int, name string")
    refused = await writer.write("g-1", [{"n": 1}, {"n": "x"}, Row(2, "two"), 7])
    assert [index for index, _ in refused] == [1, 3]
    assert await writer.write("g-1", [{"n": 1}, {"n": "x"}]) != []  # a repeat says so again
    batch = await everything(Files(tmp_path / "out", format=form, schema="n int, name string"))
    assert [row["n"] for row in batch.records] == [1, 2]
    await writer.write("g-2", [{"n": "x"}])
    assert len(content(tmp_path / "out")) == 1  # nothing to write makes no file


async def test_without_a_schema_rows_are_written_as_they_are(tmp_path: Path) -> None:
    row = {
        "at": datetime(2026, 1, 31, tzinfo=UTC),
        "n": Decimal("1.50"),
        "tags": ["a"],
        "yes": True,
        "none": None,
    }
    for form in WRITTEN:
        writer = await writing(tmp_path / form, format=form)
        assert await writer.write("g-1", [row, {"more": 1}]) == []
    found = {form: (await everything(Files(tmp_path / form, format=form))).records for form in WRITTEN}
    assert found["ndjson"][0]["at"] == "2026-01-31T00:00:00Z"
    assert found["ndjson"][1] == {"more": 1}
    assert found["csv"][0] == {
        "at": "2026-01-31T00:00:00+00:00",
        "n": "1.50",
        "tags": '["a"]',
        "yes": "true",
        "none": None,
        "more": None,
    }
    assert found["parquet"][0] == row | {"more": None}


async def test_rows_that_make_no_table_are_refused_with_a_remedy(tmp_path: Path) -> None:
    writer = await writing(tmp_path / "out", format="parquet")
    refused = await writer.write("g-1", [{"n": 1}, {"n": "x"}])
    assert [index for index, _ in refused] == [0, 1]
    assert "the rows do not make one table" in str(refused[0][1])
    assert "give the sink a schema" in str(refused[0][1])


async def test_every_type_of_a_schema_goes_through_parquet(tmp_path: Path) -> None:
    schema = (
        "a tinyint, b bigint, c decimal(10,2), d array<int>, e map<string, double>, f struct<x: int>, "
        "g boolean, h float, i timestamp, j date, k binary, l variant"
    )
    row = {
        "a": 1, "b": 2, "c": "3.14", "d": [1], "e": {"k": 0.5}, "f": {"x": 1}, "g": True, "h": 0.5,
        "i": "2026-01-31T12:00:00Z", "j": "2026-01-31", "k": b"x", "l": {"any": [1]},
    }  # fmt: skip
    writer = await writing(tmp_path / "out", format="parquet", schema=schema)
    assert await writer.write("g-1", [row, {}]) == []
    [full, empty] = (await everything(Files(tmp_path / "out", format="parquet"))).records
    assert full["c"] == Decimal("3.14")
    assert full["i"] == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert dict(full["e"]) == {"k": 0.5}
    assert full["l"] == '{"any":[1]}'
    assert set(empty.values()) == {None}


async def test_what_a_killed_run_left_is_removed_and_never_read(tmp_path: Path) -> None:
    left = tmp_path / ".part-g-1-in.ndjson.4711"
    left.write_text('{"half')
    (tmp_path / "part-g-0-in.ndjson").write_text('{"n": 0}\n')
    writer = await writing(tmp_path, Context("p", "in", exclusive=True), format="ndjson")
    assert left.name not in content(tmp_path)
    await writer.write("g-1", [{"n": 1}])
    assert (await everything(Files(tmp_path, format="ndjson"))).records == [{"n": 0}, {"n": 1}]


async def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "out.csv").write_text("")
    with pytest.raises(
        ConfigError, match=r"out\.csv is a file, and each batch is written as a file of its own"
    ):
        await writing(tmp_path / "out.csv")


async def test_text_is_read_by_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\ntw\xffo\nthree")
    batch = await everything(Files(path))
    assert batch.records == [{"value": "one"}, {"value": ""}, {"value": "three"}]
    assert [str(error).partition(": ")[0] for _, error in batch.failures] == [f"{path} line 3"]


async def test_a_pattern_finds_files_in_several_folders(tmp_path: Path) -> None:
    for number, name in enumerate(("x/b", "x/a", "y/a", "y/_no", "y/.no")):
        write(tmp_path / f"{name}.ndjson", rows_of(number))
    write(tmp_path / "x" / "a.csv", rows_of(99))
    source = Files(f"{tmp_path}/*/*.ndjson")
    reader = await opened(source)
    assert (await rest(reader)).records == rows_of(1, 0, 2)
    positions = reader.changes()
    await reader.close()
    write(tmp_path / "y" / "b.ndjson", rows_of(5))
    assert (await everything(source, positions)).records == rows_of(5)
    with pytest.raises(ConfigError, match="there is no file or folder"):
        await everything(Files(f"{tmp_path}/*/*.parquet"))


async def test_a_file_url_is_a_path_of_this_machine(tmp_path: Path) -> None:
    write(tmp_path / "a.ndjson", rows_of(1))
    assert (await everything(Files(f"file://{tmp_path}/a.ndjson"))).records == rows_of(1)


async def test_what_is_no_orc_file_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "a.orc").write_text("no")
    [(record, error)] = (await everything(Files(tmp_path / "a.orc"))).failures
    assert record == str(tmp_path / "a.orc")
    assert "is no ORC file" in str(error)


def test_files_elsewhere_are_refused_by_line_and_no_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    where = "s3a://bucket/in"
    reading = Pipeline("p").source(Files(where, format="parquet")).to(print)
    writing = Pipeline("p").source(Memory([{"n": 1}])).to(Files(where, format="parquet"))
    letters = DeadLetters(Files(where, format="ndjson"), replay=False)
    failing = Pipeline("p").source(Memory([{"n": 1}]), on_error=letters).to(print)
    texts = Pipeline("p").source(Memory([{"n": 1}])).to(Files("out", format="text"))
    for pipeline, told in (
        (reading, "reads s3a://bucket/in, and the local engine reads files of this machine only"),
        (writing, "writes files to s3a://bucket/in"),
        (failing, "has its dead letters in files at s3a://bucket/in"),
        (texts, "writes text files, which can only be read"),
    ):
        with pytest.raises(PipelineError, match=rf"(?s)test_files\.py:\d+.*{told}"):
            pipeline.run(engine="local", summary=False)
    with pytest.raises(ConfigError, match="is not on this machine"):
        writer_for(Files(where, format="parquet"), CONTEXT)
    assert not [*tmp_path.iterdir()]
