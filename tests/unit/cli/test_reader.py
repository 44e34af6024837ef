"""Reading a queue's list of messages by pages, against one that can be seen as a whole."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from queenstream.cli.support import reader
from queenstream.cli.support.reader import Follower, backwards, forwards, last
from queenstream.client._base.responses.history import MessageInfo

START = datetime(2026, 1, 31, 12, tzinfo=UTC)
NOW = START + timedelta(hours=1)


def message(number: int, at: datetime) -> MessageInfo:
    return MessageInfo(
        id=str(number), transaction_id=str(number), partition_id="1", queue="q", partition="p", namespace="",
        task="", status="pending", created_at=at, data=number, retry_count=0,
    )  # fmt: skip


class Stored:
    """What a broker stores and how it lists it: newest id first, a page at a time, only so many skipped."""

    def __init__(self, messages: list[MessageInfo]) -> None:
        self.messages = messages
        self.asked = 0

    def fetch(self, start: datetime | None, end: datetime | None, offset: int) -> list[MessageInfo]:
        assert 0 <= offset <= reader.MOST_OFFSET
        self.asked += 1
        found = [
            one
            for one in sorted(self.messages, key=lambda one: -int(one.id))
            if (start is None or one.created_at >= start) and (end is None or one.created_at <= end)
        ]
        return found[offset : offset + reader.PAGE]


@pytest.fixture(autouse=True)
def small_limits() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(reader, "PAGE", 10)
        patched.setattr(reader, "MOST_OFFSET", 50)
        patched.setattr(reader, "SKEW", timedelta(microseconds=5))
        yield


# Bursts: how many, how long after the one before, and by how much every second one is before its time.
bursts = st.lists(
    st.tuples(st.integers(1, 25), st.integers(10, 3_000_000), st.integers(0, 2)),
    max_size=25,
)


def laid_out(shape: list[tuple[int, int, int]]) -> Stored:
    messages: list[MessageInfo] = []
    at = START
    for count, gap, jitter in shape:
        at += timedelta(microseconds=gap)
        for _ in range(count):
            number = len(messages) + 1
            messages.append(message(number, at - timedelta(microseconds=jitter * (number % 2))))
    return Stored(messages)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(bursts)
def test_every_message_once_both_ways(shape: list[tuple[int, int, int]]) -> None:
    stored = laid_out(shape)
    everything = sorted(int(one.id) for one in stored.messages)
    assert sorted(int(one.id) for one in backwards(stored.fetch, None, NOW)) == everything
    forward = list(forwards(stored.fetch, START - timedelta(hours=1), NOW))
    assert sorted(int(one.id) for one in forward) == everything
    assert [one.created_at for one in forward] == sorted(one.created_at for one in stored.messages)


def test_a_span_has_both_its_ends() -> None:
    stored = Stored([message(n, START + timedelta(seconds=n)) for n in range(1, 101)])
    some = forwards(stored.fetch, START + timedelta(seconds=20), START + timedelta(seconds=40))
    assert [one.data for one in some] == list(range(20, 41))
    back = backwards(stored.fetch, START + timedelta(seconds=20), START + timedelta(seconds=40))
    assert [one.data for one in back] == list(range(40, 19, -1))


def test_long_silence_costs_few_questions() -> None:
    stored = Stored([message(1, START), message(2, START + timedelta(days=300))])
    assert [one.data for one in forwards(stored.fetch, START, START + timedelta(days=400))] == [1, 2]
    assert stored.asked < 60


def test_the_last_that_fit() -> None:
    stored = Stored([message(n, START + timedelta(seconds=n)) for n in range(1, 201)])
    assert [one.data for one in last(stored.fetch, lambda one: True, 3, NOW)] == [198, 199, 200]
    assert stored.asked == 1
    assert [one.data for one in last(stored.fetch, lambda one: one.data % 50 == 0, 3, NOW)] == [100, 150, 200]
    assert [one.data for one in last(stored.fetch, lambda one: one.data > 198, 9, NOW)] == [199, 200]
    assert list(last(stored.fetch, lambda one: True, 0, NOW)) == []


def test_too_many_at_one_time_are_said_to_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    stored = Stored([message(n, START) for n in range(1, 101)] + [message(0, START - timedelta(seconds=9))])
    found = list(backwards(stored.fetch, None, NOW))
    assert len(found) == 61  # 60 at once can be listed, and the one before them
    assert found[-1].data == 0
    assert "some are left out" in capsys.readouterr().err


def test_following_gives_each_new_message_once_also_late_ones() -> None:
    stored = Stored([message(n, NOW - timedelta(seconds=9 - n)) for n in range(1, 10)])
    follower = Follower(stored.fetch, NOW)
    assert follower.look() == []
    stored.messages.append(message(11, NOW + timedelta(seconds=1)))
    assert [one.data for one in follower.look()] == [11]
    # Stored before, committed only now.
    stored.messages.append(message(10, NOW - timedelta(seconds=1)))
    assert [one.data for one in follower.look()] == [10]
    assert follower.look() == []


def test_what_was_read_before_is_no_news() -> None:
    stored = Stored([])
    follower = Follower(stored.fetch, NOW)
    late = message(1, NOW - timedelta(seconds=1))
    stored.messages.append(late)
    follower.known(late)
    assert follower.look() == []


def test_following_many_at_once() -> None:
    stored = Stored([])
    follower = Follower(stored.fetch, NOW)
    seen: list[int] = []
    for burst in range(20):
        at = NOW + timedelta(milliseconds=300 * burst)
        stored.messages += [message(burst * 37 + n, at) for n in range(37)]
        seen += [one.data for one in follower.look()]
    assert seen == list(range(20 * 37))
