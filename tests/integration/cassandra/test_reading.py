"""Tables as sources: every row once, page by page, and on from where a reader was left."""

from __future__ import annotations

from typing import Any

import pytest

from queenstream.errors import RunFailed
from tests.integration.cassandra.tools import KEYSPACE, Cql, Endpoint, read, reader, written

ROWS = [{"k": n // 40, "n": n, "text": f"row {n}"} for n in range(700)]  # partitions larger than a page


@pytest.fixture
async def filled(cql: Cql, table: str, endpoint: Endpoint) -> None:
    cql.run(f"create table {KEYSPACE}.{table} (k int, n int, text text, primary key (k, n))")
    assert await written(endpoint(), ROWS) == []


@pytest.mark.usefixtures("filled")
async def test_every_row_comes_once_whatever_the_size_of_a_batch(endpoint: Endpoint) -> None:
    for most in (7, 350, 10_000):
        assert sorted(await read(endpoint(), most), key=lambda row: row["n"]) == ROWS


@pytest.mark.usefixtures("filled")
async def test_reading_goes_on_where_it_was_left(endpoint: Endpoint) -> None:
    positions: dict[str, Any] = {}
    records: list[Any] = []
    ended = False
    while not ended:  # a run that is stopped after each two batches, and whose third one is lost
        async with reader(endpoint(), positions) as made:
            assert positions or not made.drained()
            for _ in range(2):
                batch = await made.read(90, 1.0)
                ended = batch is None
                records += [] if batch is None else batch.records
            positions |= made.changes()
            await made.read(90, 1.0)
    assert sorted(records, key=lambda row: row["n"]) == ROWS
    async with reader(endpoint(), positions) as made:
        assert await made.read(90, 1.0) is None
        assert made.drained()


@pytest.mark.usefixtures("filled")
async def test_a_schema_types_records_and_sorts_out_what_does_not_fit(endpoint: Endpoint) -> None:
    async with reader(endpoint(schema="n string, text int")) as made:
        batch = await made.read(1_000, 1.0)
    assert batch is not None
    assert not batch.records
    assert len(batch.failures) == len(ROWS)
    assert "text must be a whole number (int), not 'row " in str(batch.failures[0][1])


@pytest.mark.usefixtures("filled")
async def test_a_position_of_another_table_is_said(endpoint: Endpoint) -> None:
    async with reader(endpoint(), {"0": "bm90IGEgcGxhY2U="}) as made:
        with pytest.raises(RunFailed, match="cannot be read on from where it was left"):
            await made.read(1, 1.0)
