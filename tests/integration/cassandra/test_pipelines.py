"""Pipelines into and out of tables, as users write them; and a node that is killed meanwhile."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from queenstream import Cassandra, DeadLetters, Files, Memory, Pipeline
from tests.integration.cassandra.tools import KEYSPACE, Cql, Endpoint, Failing, row, stored
from tests.processes import clean_environment, up
from tests.servers.cassandra import PASSWORD, USER, Node

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples" / "integrations"
SCHEMA = "k int, n int, text string, tags map<string, string>"

Row = dict[str, Any]


def test_refused_rows_are_dead_letters_and_the_rest_is_stored(
    cql: Cql, table: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    sink = endpoint(schema=SCHEMA, create_table=True, partition_key="k", clustering_key="n")
    rows = [row(1), {**row(2), "n": "two"}, row(3), {"k": 4}]
    failed = DeadLetters(Files(tmp_path / "failed", format="ndjson"), replay=False)
    Pipeline(table).source(Memory(rows)).to(sink, on_error=failed).run(engine="local")
    assert [(each["k"], each["text"]) for each in stored(cql, table)] == [(1, "row 1"), (3, "row 3")]
    letters = [
        json.loads(line)
        for file in (tmp_path / "failed").glob("part-*")
        for line in file.read_text().splitlines()
    ]
    assert [(letter["record"]["k"], letter["error"]) for letter in letters] == [
        (2, "n must be a whole number (int), not 'two'"),
        (4, "n must be there, as a row cannot be without it, not None"),
    ]


def test_dead_letters_may_be_rows_of_a_table(cql: Cql, table: str, endpoint: Endpoint) -> None:
    sink = endpoint(
        schema="pipeline string, step string, failed_at timestamp, record string, error string, attempts int",
        create_table=True,
        partition_key=("pipeline", "step"),
        clustering_key=("failed_at", "record"),
    )
    failed = DeadLetters(sink)
    rows: list[Row] = [{"n": 1, "tags": ["a"]}, {"n": 0, "tags": []}, {"n": 0, "tags": ["b"]}]
    divided = Pipeline(table).source(Memory(rows)).map(lambda row: {"n": 1 // row["n"]}, name="divide")
    divided.on_error(failed).foreach(lambda row: None).run(engine="local")
    letters = sorted((each["step"], json.loads(each["record"])["tags"]) for each in cql.rows(table))
    assert letters == [("divide", []), ("divide", ["b"])]
    assert {each["error"] for each in cql.rows(table)} == {"integer division or modulo by zero"}


@pytest.mark.parametrize("example", sorted(EXAMPLES.glob("cassandra_*.py")), ids=lambda example: example.stem)
def test_an_example_prints_what_it_should_and_does_so_again(example: Path, node: Node, cql: Cql) -> None:
    expected = (EXAMPLES / "expected" / f"{example.stem}.txt").read_text()
    with up("--ephemeral", "--port", "0") as broker:
        where = {"CASSANDRA_PORT": str(node.port), "CASSANDRA_USER": USER, "CASSANDRA_PASSWORD": PASSWORD}
        environment = clean_environment(QUEEN_URL=broker.ready(), **where)
        for _ in range(2):
            run = subprocess.run(
                [sys.executable, "-W", "error", example],
                capture_output=True, text=True, timeout=100, env=environment,
            )  # fmt: skip
            assert (run.stdout, run.returncode) == (expected, 0), run.stderr
    [kept] = cql.run(
        "select value, tags, ttl(value), writetime(value) from ingestion.metrics "
        "where metric_name = 'cpu' and timestamp = '2026-01-31 12:00:30Z'"
    )
    assert kept["value"] == 0.5
    assert kept["tags"] == {"host": "web-1", "zone": "a"}
    assert 86_000 < kept["ttl(value)"] <= 86_400


@pytest.mark.timeout(300)
def test_a_node_that_is_killed_slows_a_run_and_loses_nothing(
    cql: Cql,
    table: str,
    endpoint: Endpoint,
    node: Node,
    failing: Failing,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The table is the one of an undisturbed run."""

    def run(to: Cassandra) -> None:
        pipeline = Pipeline(to.table).source(Memory([row(n) for n in range(2_500)])).to(to)
        pipeline.run(engine="local", checkpoint=str(tmp_path / to.table))

    options: Row = {"schema": SCHEMA, "partition_key": "k", "clustering_key": "n"}
    run(endpoint(f"{table}_calm", create_table=True, **options))
    calm = stored(cql, f"{table}_calm")
    assert [each["text"] for each in calm] == [f"row {n if n >= 500 else n + 2_000}" for n in range(2_000)]
    cql.run(
        f"create table {KEYSPACE}.{table} (k int, n int, text text, tags map<text, text>, primary key (k, n))"
    )
    failing.kill_at(table, 400)
    with caplog.at_level(logging.WARNING, "queenstream"):
        run(endpoint(**options))
    assert f"cassandra:{KEYSPACE}.{table} waits for Cassandra at 127.0.0.1 port" in caplog.text
    failing.wait()
    with node.connected() as session:
        assert stored(Cql(session), table) == calm
