"""Arrays as text: what goes in comes out, whatever it is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from queenstream.broker.messaging.push import _texts


@pytest.fixture
async def connection(empty_database_url: str) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    opened = await asyncpg.connect(empty_database_url)
    yield opened
    await opened.close()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(["null", "NULL", "a,b", '"', "\\", "{}", " ", "a-b", "null-1"])
@given(st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1), min_size=1))
async def test_array_literals(connection: asyncpg.Connection[asyncpg.Record], values: list[str]) -> None:
    assert await connection.fetchval("select $1::text::text[]", _texts(values)) == values
