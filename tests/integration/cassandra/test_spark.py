"""Tables on Spark: the same connector, and in the long form the same patience with a node that is killed."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from queenstream import DeadLetters, Files, Function, Pipeline
from queenstream.engines.spark.checkpoints import inspection
from queenstream.errors import CheckpointError, ConfigError
from queenstream.pipeline.engine_api import EngineName, RunKeywords
from tests.integration.cassandra.tools import KEYSPACE, Cql, Endpoint, Failing, row, stored, written
from tests.servers.cassandra import Node

ENGINES: tuple[EngineName, ...] = ("local", "spark")
LONG = bool(os.environ.get("QUEENSTREAM_LONG"))
SCHEMA = "k int, n int, text string, tags map<string, string>"
KEY: dict[str, Any] = {"partition_key": "k", "clustering_key": "n", "create_table": True, "schema": SCHEMA}


def on_spark(folder: Path) -> RunKeywords:
    return {"checkpoint": str(folder), "until": "caught_up", "master": "local[2]"}


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(400)
def test_into_a_table_and_out_of_it(
    table: str, endpoint: Endpoint, node: Node, failing: Failing, tmp_path: Path
) -> None:
    """Files into a table, while the node dies, and then the table into one that is made of its fields."""
    folder = tmp_path / "in"
    folder.mkdir()
    for number in range(2):
        lines = [json.dumps(row(n)) for n in range(number * 400, number * 400 + 400)]
        (folder / f"{number}.ndjson").write_text("\n".join(lines) + "\n")
    source = Pipeline(table).source(Files(folder, format="ndjson", schema=SCHEMA))
    if LONG:
        source = source.to(Function(lambda _: failing.kill(), name="kill", batch=True))
    into = source.to(endpoint(**KEY))
    into.run(**on_spark(tmp_path / "checkpoint"))
    if LONG:
        failing.wait()
    expected = {(each["k"], each["n"]): each for each in map(row, range(800))}
    with node.connected() as session:
        found = stored(Cql(session), table)
        assert found == [expected[key] for key in sorted(expected)]
    for engine in ENGINES:
        with pytest.raises(CheckpointError, match=f"was last written from the checkpoint {tmp_path}"):
            into.run(engine=engine, checkpoint=str(tmp_path / engine), until="caught_up")
    copy = endpoint(f"{table}_copy", partition_key="k", clustering_key="n", create_table=True)
    late = Pipeline("copy").source(endpoint(schema=SCHEMA)).filter("k >= 100")
    late.to(copy).run(**on_spark(tmp_path / "copy"))
    with node.connected() as session:
        assert stored(Cql(session), f"{table}_copy") == [each for each in found if each["k"] >= 100]


@pytest.mark.usefixtures("spark")
@pytest.mark.timeout(400)
def test_tasks_read_the_ring_in_batches(table: str, endpoint: Endpoint, cql: Cql, tmp_path: Path) -> None:
    """One partition is larger than a batch, and than a page; one row does not fit the schema."""
    columns = "k int, n int, text text, u uuid, at timestamp, primary key (k, n)"
    cql.run(f"create table {KEYSPACE}.{table} ({columns})")
    at, u = "2026-01-31T12:00:00Z", "00000000-0000-0000-0000-000000000005"
    rows = [{"k": n % 3_000, "n": n, "text": f"{n}", "u": u, "at": at} for n in range(12_000)]
    rows += [{"k": 5_000, "n": n, "text": f"{n}"} for n in range(7_000)]
    rows[5]["text"] = "five"
    assert asyncio.run(written(endpoint(), rows)) == []
    for number, schema in enumerate((None, "k int, n bigint, text int, u string, at timestamp")):
        found: dict[EngineName, list[Any]] = {"local": [], "spark": []}
        letters: dict[EngineName, list[Any]] = {"local": [], "spark": []}
        for engine, to in found.items():
            told = DeadLetters(Function(letters[engine].append, name="letters"))
            made = Pipeline(engine).source(endpoint(schema=schema), on_error=told).to(to.append)
            made.run(engine=engine, max_batch_rows=4_000, checkpoint=str(tmp_path / f"{engine}{number}"))
            to.sort(key=lambda each: (each["k"], each["n"]))
        assert found["spark"] == found["local"]
        assert len(found["spark"]) == len(rows) - (schema is not None)
        here, there = (
            [(each["record"], each["error"]) for each in letters[engine]] for engine in ("local", "spark")
        )
        assert there == here
        newest, *before = inspection.batches(tmp_path / f"spark{number}", "spark")
        assert len(before) >= 3
        assert newest.positions[0]["done"]


@pytest.mark.usefixtures("spark", "node")
@pytest.mark.timeout(400)
def test_what_is_wrong_with_a_table_is_said_before_anything_runs(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match="there is no table nothing in the keyspace"):
        Pipeline("p").source(endpoint("nothing")).to(print).run()
