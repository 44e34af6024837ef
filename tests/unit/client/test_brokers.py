"""Which broker is asked: all in turn, the failing ones last."""

from __future__ import annotations

import os
from collections import Counter

import pytest

from queenstream.client._base.addresses import parse_all
from queenstream.client._base.brokers import FIRST_SECONDS, IDLE, MOST_SECONDS, Broker, Brokers, backoff


class Line:
    """A connection, as far as this module looks at it."""

    def __init__(self) -> None:
        self.open = True

    def close(self) -> None:
        self.open = False

    def abandon(self) -> None:
        self.open = False


def brokers(count: int) -> Brokers[Line]:
    return Brokers(parse_all([f"http://a:{port}" for port in range(1, count + 1)]))


def ports(known: Brokers[Line], times: int, now: float = 0.0) -> list[int]:
    """Who is asked by requests one after the other."""
    found = []
    for _ in range(times):
        broker = known.choose(now)
        found.append(broker.address.port)
        known.done(broker, None, True)
    return found


def test_requests_go_round() -> None:
    found = ports(brokers(3), 9)
    assert Counter(found) == {1: 3, 2: 3, 3: 3}
    assert found[:3] == found[3:6] == found[6:]


def test_who_has_the_least_to_do_is_asked() -> None:
    known = brokers(3)
    busy = [known.choose(0.0), known.choose(0.0)]
    free = ({1, 2, 3} - {broker.address.port for broker in busy}).pop()
    assert set(ports(known, 4)) == {free}
    known.done(busy[0], None, True)
    assert set(ports(known, 4)) == {free, busy[0].address.port}


def test_clients_do_not_all_begin_with_the_same() -> None:
    assert {ports(brokers(3), 1)[0] for _ in range(200)} == {1, 2, 3}


def test_who_failed_is_left_alone_for_a_while() -> None:
    known = brokers(2)
    bad = known.choose(100.0)
    known.failed(bad, 100.0)
    good = 3 - bad.address.port
    assert ports(known, 5, now=100.0) == [good] * 5
    assert known.wait(100.0) == 0.0
    assert set(ports(known, 4, now=100.0 + FIRST_SECONDS)) == {1, 2}


def test_if_all_failed_the_one_that_may_be_back_first_is_asked() -> None:
    known = brokers(2)
    first, second = known.choose(0.0), known.choose(0.0)
    for _ in range(8):
        known.failed(first, 0.0)
    known.failed(second, 0.0)
    assert known.choose(0.0) is second
    assert 0 < known.wait(0.0) <= FIRST_SECONDS


def test_an_answer_ends_the_waiting() -> None:
    known = brokers(1)
    for _ in range(5):
        known.failed(known.choose(0.0), 0.0)
    assert known.wait(0.0) > FIRST_SECONDS
    known.done(known.choose(0.0), None, True)
    assert known.wait(0.0) == 0.0


def test_a_request_that_was_given_up_says_nothing_about_the_broker() -> None:
    known = brokers(2)
    chosen = known.choose(0.0)
    known.given_up(chosen)
    assert (chosen.in_flight, chosen.failures, known.wait(0.0)) == (0, 0, 0.0)


def test_the_wait_doubles_up_to_a_limit_and_varies() -> None:
    for failures in range(1, 60):
        longest = min(MOST_SECONDS, FIRST_SECONDS * 2 ** (failures - 1))
        assert longest / 2 <= backoff(failures) <= longest
    assert len({backoff(3) for _ in range(20)}) > 1


# Connections


def test_a_connection_is_used_again_the_newest_first() -> None:
    known = brokers(1)
    broker = known.choose(0.0)
    assert known.connection(broker) is None
    first, second = Line(), Line()
    known.done(broker, first, True)
    known.done(broker, second, True)
    assert known.connection(broker) is second
    assert known.connection(broker) is first
    assert known.connection(broker) is None


def test_one_that_is_closed_is_not() -> None:
    known = brokers(1)
    broker = known.choose(0.0)
    gone, stays, ending = Line(), Line(), Line()
    known.done(broker, stays, True)
    known.done(broker, gone, True)
    known.done(broker, ending, False)  # the broker said so
    gone.open = False
    assert not ending.open
    assert known.connection(broker) is stays


def test_not_too_many_are_kept() -> None:
    known = brokers(1)
    broker = known.choose(0.0)
    lines = [Line() for _ in range(IDLE + 3)]
    for line in lines:
        known.done(broker, line, True)
    assert [line.open for line in lines] == [True] * IDLE + [False] * 3


def test_a_failure_closes_what_was_open_to_that_broker() -> None:
    known = brokers(2)
    bad, good = known.choose(0.0), known.choose(0.0)
    broken, fine = Line(), Line()
    known.done(bad, broken, True)
    known.done(good, fine, True)
    known.failed(bad, 0.0)
    assert (broken.open, fine.open) == (False, True)


def test_close() -> None:
    known = brokers(2)
    lines = [Line(), Line()]
    for line in lines:
        known.done(known.choose(0.0), line, True)
    known.close()
    assert [line.open for line in lines] == [False, False]
    assert all(known.connection(broker) is None for broker in known.all)


def _in_child(known: Brokers[Line], broker: Broker[Line]) -> bool:
    chosen = known.choose(0.0)
    return known.connection(chosen) is None and broker.in_flight == 1


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_shares_no_connection_with_its_parent() -> None:
    known = brokers(1)
    broker = known.choose(0.0)
    line = Line()
    known.done(broker, line, True)
    known.choose(0.0)
    child = os.fork()
    if child == 0:
        os._exit(0 if _in_child(known, broker) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert line.open
    assert known.connection(broker) is line
