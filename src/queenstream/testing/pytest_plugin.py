"""Fixtures for pytest, which finds them by itself once Queenstream is installed.

    def test_totals(queen_broker):
        with queen_broker.client() as queen:
            queen.queue("orders").push({"amount": 5})

Nothing is started, nor even imported, before the first test that asks for a broker.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers


@pytest.fixture(scope="session")
def queen_brokers() -> Iterator[TemporaryBrokers]:
    """Starts brokers on one embedded PostgreSQL: for tests that need several."""
    from queenstream.testing.brokers import TemporaryBrokers

    with TemporaryBrokers() as brokers:
        yield brokers


@pytest.fixture
def queen_broker(queen_brokers: TemporaryBrokers) -> Iterator[TemporaryBroker]:
    """A real broker with an empty database of its own: ``address``, ``client()``, ``advance("5m")``."""
    with queen_brokers.start() as broker:
        yield broker
