"""Tables on Spark: the same connector, and in the long form the same patience with a node that is killed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from queenstream import Files, Function, Pipeline
from queenstream.pipeline.running import RunKeywords
from tests.integration.cassandra.tools import Cql, Endpoint, Failing, row, stored
from tests.servers.cassandra import Node

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
    source.to(endpoint(**KEY)).run(**on_spark(tmp_path / "checkpoint"))
    if LONG:
        failing.wait()
    expected = {(each["k"], each["n"]): each for each in map(row, range(800))}
    with node.connected() as session:
        found = stored(Cql(session), table)
        assert found == [expected[key] for key in sorted(expected)]
    copy = endpoint(f"{table}_copy", partition_key="k", clustering_key="n", create_table=True)
    late = Pipeline("copy").source(endpoint(schema=SCHEMA)).filter("k >= 100")
    late.to(copy).run(**on_spark(tmp_path / "copy"))
    with node.connected() as session:
        assert stored(Cql(session), f"{table}_copy") == [each for each in found if each["k"] >= 100]
