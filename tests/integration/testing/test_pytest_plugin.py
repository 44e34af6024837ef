"""The pytest plugin as a user has it: found by itself, in a test session of its own."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

TESTS = """
    import urllib.request

    def test_a_broker_answers(queen_broker):
        assert urllib.request.urlopen(queen_broker.address + "/health").status == 200

    def test_push(queen_broker):
        with queen_broker.client() as queen:
            queen.queue("orders").push({"amount": 5})
            assert [message.data for message in queen.queue("orders").pop()] == [{"amount": 5}]

    def test_what_another_test_pushed_is_not_there(queen_broker):
        with queen_broker.client() as queen:
            assert list(queen.queue("orders").pop()) == []

    async def test_from_a_running_loop(queen_broker):
        async with queen_broker.async_client() as queen:
            await queen.queue("orders").push({"amount": 6})
            assert [message.data for message in await queen.queue("orders").pop()] == [{"amount": 6}]

    def test_a_lease_ends_when_the_clock_is_turned(queen_broker):
        with queen_broker.client() as queen:
            queue = queen.queue("orders")
            queue.push({"amount": 7})
            [leased] = queue.pop()
            assert list(queue.pop()) == []
            queen_broker.advance("10m")
            assert [message.data for message in queue.pop()] == [leased.data]

    def test_two_at_once(queen_brokers, queen_broker):
        with queen_brokers.start() as other:
            assert other.address != queen_broker.address
            assert other.database_url != queen_broker.database_url
"""


def test_each_test_has_a_broker_with_an_empty_database(pytester: pytest.Pytester) -> None:
    pytester.makeini(
        "[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error"
    )
    pytester.makepyfile(TESTS)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=6)


def test_nothing_is_started_or_imported_before_it_is_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]")
    pytester.makepyfile(
        """
        import sys
        import threading

        def test_without_a_broker(request):
            assert request.config.pluginmanager.has_plugin("queenstream")
            assert "queenstream.broker.app" not in sys.modules
            assert "asyncpg" not in sys.modules
            assert "queen-broker" not in {thread.name for thread in threading.enumerate()}
        """
    )
    pytester.runpytest_subprocess("-p", "no:asyncio", "-p", "no:schemathesis").assert_outcomes(passed=1)
