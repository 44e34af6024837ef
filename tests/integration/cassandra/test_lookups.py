"""Look-ups in a real table of Cassandra. On Spark it is the same code, which tests of tables run there."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from queenstream import DeadLetters, Function, Memory, Pipeline
from queenstream.pipeline.endpoints import Cassandra
from tests.integration.cassandra.tools import KEYSPACE, Cql, Endpoint

Row = dict[str, Any]
ON = [("shop", "shop"), ("order_id", "id")]


def looked_up(orders: list[Row], table: Cassandra, **said: Any) -> tuple[list[Row], list[Row]]:
    found: list[Row] = []
    letters: list[Row] = []
    (
        Pipeline("enrich")
        .source(Memory(orders))
        .lookup(table, timeout="30s", on_error=DeadLetters(Function(letters.append)), **said)
        .to(found.append)
        .run(engine="local")
    )
    return found, letters


def test_rows_are_found_by_the_whole_primary_key(cql: Cql, endpoint: Endpoint, table: str) -> None:
    columns = "id int, shop text, total double, at timestamp, primary key (shop, id)"
    cql.run(f"create table {KEYSPACE}.{table} ({columns})")
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    cql.run(f"insert into {KEYSPACE}.{table} (shop, id, total, at) values ('a', 1, 9.5, %s)", noon)
    cql.run(f"insert into {KEYSPACE}.{table} (shop, id) values ('b', 2)")
    orders: list[Row] = [
        {"shop": "a", "order_id": 1},
        {"shop": "b", "order_id": "2"},
        {"shop": "a", "order_id": 2},
        {"shop": None, "order_id": 2},
        {"shop": "a", "order_id": "x"},
    ]
    found, letters = looked_up(orders, endpoint(), on=ON, fields=["total", "at"])
    assert found == [
        {"shop": "a", "order_id": 1, "total": 9.5, "at": noon},
        {"shop": "b", "order_id": "2", "total": None, "at": None},
        {"shop": "a", "order_id": 2, "total": None, "at": None},
        {"shop": None, "order_id": 2, "total": None, "at": None},
    ]
    assert [(letter["record"]["order_id"], letter["step"]) for letter in letters] == [("x", "lookup")]
    assert "id must be a whole number" in letters[0]["error"]
    nested, _ = looked_up(orders[:3], endpoint(), on=ON, into="order", how="inner")
    assert [row["order"] for row in nested] == [
        {"shop": "a", "id": 1, "total": 9.5, "at": noon},
        {"shop": "b", "id": 2, "total": None, "at": None},
    ]


def test_a_table_that_cannot_be_asked_is_said(cql: Cql, endpoint: Endpoint, table: str) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (id int, shop text, primary key (shop, id))")
    _, [letter] = looked_up([{"shop": "a"}], endpoint(), on="shop")
    assert "has one row for each shop, id; look it up by all of that, not by shop" in letter["error"]
    _, [letter] = looked_up([{"shop": "a", "order_id": 1}], endpoint(), on=ON, fields=["x"])
    assert "has no column x; it has shop, id" in letter["error"]
