"""What tests of several folders ask of a broker."""

from __future__ import annotations

import httpx
import pytest

from tests.conftest import Clock
from tests.integration.streams.streaming import Streams


@pytest.fixture
async def streams(http: httpx.AsyncClient, clock: Clock) -> Streams:
    """The routes of streams."""
    return Streams(http, clock)
