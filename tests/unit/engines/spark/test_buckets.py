"""Several tasks write the rows of a sink: each row once, and those of a key in their order."""

from __future__ import annotations

import pickle
import random
from pathlib import Path
from typing import Any

import pytest

from queenstream.connectors.base import RowKey
from queenstream.connectors.cassandra.keys import KeyColumn, PrimaryKey
from queenstream.engines.spark.sinks import commit, staged
from queenstream.engines.spark.sinks.buckets import Buckets
from queenstream.engines.spark.sinks.commit import Part, parts_of
from queenstream.engines.spark.sinks.staged import StagedFile, StagedRowsWriter, chunks_of
from queenstream.engines.spark.sinks.storage import Folder
from queenstream.pipeline.endpoints import Kafka
from queenstream.runtime.encoding import encode_row
from queenstream.runtime.kafka_records import MessageKey

BY_USER = MessageKey(Kafka("out", key_by="user"))


def stage(storage: Folder, task: int, rows: list[dict[str, Any]], key: RowKey, number: int) -> StagedFile:
    """A task's file with rows whose place is ``n``."""
    path = f"batch/{task}.rows"
    buckets = Buckets({"out": pickle.loads(pickle.dumps(key))}, number, task)
    with storage.create(path) as file:
        writer = StagedRowsWriter(file)
        for row in rows:
            data = encode_row(row)
            writer.add("out", (True, 0, row["n"], 0), data, buckets.bucket_of("out", None, data))
        writer.finish()
    return StagedFile(task, path, writer.rows, writer.bytes, buckets.numbers())


def rows_of(storage: Folder, part: Part) -> list[dict[str, Any]]:
    return [row for chunk in chunks_of(storage, part.files, "out", None, part.buckets) for row in chunk]


def test_each_key_is_written_by_one_task_in_its_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though rows of a key come from several tasks, and in any order."""
    monkeypatch.setattr(staged, "SORTED_ROWS", 70)
    monkeypatch.setattr(staged, "_CHUNK_ROWS", 3)
    storage = Folder(str(tmp_path))
    rows = [{"n": n, "user": f"user-{n % 50}"} for n in range(5_000)]
    random.Random(7).shuffle(rows)
    files = [stage(storage, task, rows[task::3], BY_USER, 4) for task in range(3)]
    parts = list(parts_of(files, "out", "7", in_order=True))
    assert [part.epoch for part in parts] == ["7-00000", "7-00001", "7-00002", "7-00003"]
    found = [rows_of(storage, part) for part in parts]
    assert sorted(row["n"] for part in found for row in part) == list(range(5_000))
    users = [{row["user"] for row in part} for part in found]
    assert all(users)
    assert sum(map(len, users)) == 50
    for part in found:
        assert [row["n"] for row in part] == sorted(row["n"] for row in part)


def test_few_rows_are_written_by_one_task_all_in_order(tmp_path: Path) -> None:
    storage = Folder(str(tmp_path))
    rows = [{"n": n, "user": f"user-{n}"} for n in range(commit._PART_ROWS - 1)]
    files = [stage(storage, task, rows[task::2], BY_USER, 4) for task in range(2)]
    [part] = parts_of(files, "out", "7", in_order=True)
    assert part.epoch == "7"
    assert rows_of(storage, part) == rows


def test_rows_without_a_key_stay_in_the_order_of_their_task(tmp_path: Path) -> None:
    storage = Folder(str(tmp_path))
    key = MessageKey(Kafka("out", envelope=True))
    rows = [{"n": n, "value": n, **({} if n % 2 else {"key": f"{n}"})} for n in range(5_000)]
    parts = list(parts_of([stage(storage, 5, rows, key, 4)], "out", "7", in_order=True))
    keyless = [[row["n"] for row in rows_of(storage, part) if "key" not in row] for part in parts]
    assert [each for each in keyless if each] == [list(range(1, 5_000, 2))]


def test_a_row_that_the_sink_will_refuse_is_staged() -> None:
    buckets = Buckets({"out": BY_USER}, 4, 6)
    assert buckets.bucket_of("out", {"n": 1}, b"") == 2
    assert buckets.bucket_of("out", "no record", b"") == 2
    assert buckets.bucket_of("another", {"n": 1}, b"") == 0


def test_equal_keys_of_a_table_are_equal_whatever_type_the_values_have() -> None:
    key = PrimaryKey((KeyColumn("at", "timestamp"), KeyColumn("n", "int", 5)))
    buckets = Buckets({"out": key}, 1_000, 0)
    same = [
        {"at": "2026-01-01T00:00:00Z", "n": 5},
        {"at": 1_767_225_600_000, "n": "5"},
        {"at": "2026-01-01T01:00:00+01:00", "n": None},
    ]
    assert len({buckets.bucket_of("out", row, b"") for row in same}) == 1
    others = {buckets.bucket_of("out", {"at": 1_767_225_600_000, "n": n}, b"") for n in range(100)}
    assert len(others) > 50
