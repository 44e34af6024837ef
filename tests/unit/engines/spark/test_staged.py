"""Staged rows, and what is stored of a prepared batch: whole, or an error that names the file."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from queenstream.engines.spark.sinks import staged
from queenstream.engines.spark.sinks.prepared import PreparedBatch, PreparedBatches
from queenstream.engines.spark.sinks.stage import Receipt
from queenstream.engines.spark.sinks.staged import StagedFile, StagedRowsWriter, chunks_of
from queenstream.engines.spark.sinks.storage import Folder
from queenstream.errors import CheckpointError
from queenstream.runtime.encoding import encode_row


@pytest.fixture
def storage(tmp_path: Path) -> Folder:
    return Folder(str(tmp_path))


def write(storage: Folder, task: int, numbers: list[int], sink: str = "out") -> StagedFile:
    """A task's file with a row for each number, whose place is the number."""
    path = f"batch/{task}.rows"
    with storage.create(path) as file:
        writer = StagedRowsWriter(file)
        for number in numbers:
            writer.add(sink, (True, 0, number, 0), encode_row({"n": number}))
        writer.finish()
    return StagedFile(task, path, writer.rows)


def numbers_of(storage: Folder, files: list[StagedFile]) -> list[int]:
    return [row["n"] for chunk in chunks_of(storage, files, "out") for row in chunk]


def test_rows_of_several_tasks_come_in_the_order_of_their_places(
    storage: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "SORTED_ROWS", 7)  # so that one file has many runs
    monkeypatch.setattr(staged, "_CHUNK_ROWS", 3)
    monkeypatch.setattr(staged, "MOST_ROWS", 50)
    numbers = list(range(200))
    random.Random(7).shuffle(numbers)
    files = [write(storage, 0, numbers[:120]), write(storage, 1, numbers[120:]), write(storage, 2, [])]
    assert [file.rows for file in files] == [{"out": 120}, {"out": 80}, {}]
    assert [len(chunk) for chunk in chunks_of(storage, files, "out")] == [50, 50, 50, 50]
    assert numbers_of(storage, files) == list(range(200))


def test_rows_of_one_sink_are_not_those_of_another(storage: Folder) -> None:
    path = "batch/0.rows"
    with storage.create(path) as file:
        writer = StagedRowsWriter(file)
        for number in range(10):
            sink = ("out", "other")[number % 2]
            writer.add(sink, (True, 0, number, 0), encode_row({"n": number}))
        writer.finish()
    assert numbers_of(storage, [StagedFile(0, path, writer.rows)]) == [0, 2, 4, 6, 8]


@pytest.mark.parametrize("harm", ["gone", "cut", "overwritten"])
def test_a_damaged_file_is_named(storage: Folder, tmp_path: Path, harm: str) -> None:
    file = write(storage, 0, list(range(100)))
    path = tmp_path / file.path
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    else:
        path.write_bytes(b"x" * path.stat().st_size)
    with pytest.raises(CheckpointError, match=r"batch/0\.rows is damaged or gone"):
        numbers_of(storage, [file])


def test_a_file_that_was_not_finished_is_not_there(storage: Folder) -> None:

    def fail() -> None:
        with storage.create("a/b") as file:
            file.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert storage.names("a") == []


def test_a_batch_is_prepared_until_the_next_one_begins(storage: Folder) -> None:
    batches = PreparedBatches(storage)
    batches.begin(7)
    assert batches.find(7) is None
    batches.write(7, PreparedBatch([Receipt(task=3, counts={"in": {"taken": 5}})], ["out"]))
    found = batches.find(7)
    assert found is not None
    [receipt] = found.receipts
    assert found.stored == ["out"]
    assert (receipt.task, receipt.counts, batches.is_done(7)) == (3, {"in": {"taken": 5}}, False)
    batches.finish(7)
    assert batches.is_done(7)
    batches.begin(8)
    assert batches.find(7) is None


def test_sinks_that_have_a_batch_stay_known_when_it_is_staged_again(storage: Folder) -> None:
    batches = PreparedBatches(storage)
    batches.write(7, PreparedBatch([Receipt()]))
    batches.discard(7, {"out"})
    assert (batches.find(7), batches.delivered(7)) == (None, {"out"})
    batches.begin(7)
    assert batches.delivered(7) == {"out"}
    batches.begin(8)
    assert batches.delivered(7) == set()


def test_the_record_of_a_batch_that_is_damaged_is_named(storage: Folder, tmp_path: Path) -> None:
    batches = PreparedBatches(storage)
    batches.write(7, PreparedBatch([Receipt()]))
    [path] = tmp_path.rglob("batch.json")
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match=r"0000000007/batch\.json is damaged"):
        batches.find(7)


def test_a_changed_bit_is_found_wherever_it_is(storage: Folder, tmp_path: Path) -> None:
    file = write(storage, 0, [*range(50)])
    batches = PreparedBatches(storage)
    batches.write(7, PreparedBatch([Receipt(file=file)]))
    chance = random.Random(7)

    def changed(path: Path) -> bytes:
        whole = path.read_bytes()
        bit = chance.randrange(8 * len(whole))
        path.write_bytes(whole[: bit // 8] + bytes([whole[bit // 8] ^ 1 << bit % 8]) + whole[bit // 8 + 1 :])
        return whole

    rows, record = tmp_path / file.path, tmp_path / batches.folder(7) / "batch.json"
    for _ in range(200):
        whole = changed(rows)
        with pytest.raises(CheckpointError, match=r"batch/0\.rows is damaged"):
            numbers_of(storage, [file])
        rows.write_bytes(whole)
        whole = changed(record)
        with pytest.raises(CheckpointError, match=r"batch\.json is damaged"):
            batches.find(7)
        record.write_bytes(whole)
    assert numbers_of(storage, [file]) == [*range(50)]
