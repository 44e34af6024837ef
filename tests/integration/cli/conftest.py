"""The command line against the test's broker."""

from __future__ import annotations

import pytest

from queenstream.broker.app import Broker
from tests.integration.cli.running import Queen


@pytest.fixture
def queen(broker: Broker) -> Queen:
    return Queen(broker.address)
