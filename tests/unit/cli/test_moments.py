"""Moments as people write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.cli.support.moments import Edge, ago, length, parse, parse_time
from queenstream.errors import ConfigError

NOON = datetime(2026, 1, 31, 12, tzinfo=UTC)
BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("text", "back"),
    [
        ("15 minutes ago", timedelta(minutes=15)),
        ("2h ago", timedelta(hours=2)),
        ("1h30m ago", timedelta(minutes=90)),
        ("1 hour and 30 minutes ago", timedelta(minutes=90)),
        ("1 day, 2 hours ago", timedelta(hours=26)),
        ("an hour ago", timedelta(hours=1)),
        ("a minute ago", timedelta(minutes=1)),
        ("  90   SECONDS ago ", timedelta(seconds=90)),
        ("1.5 h ago", timedelta(minutes=90)),
        ("2 weeks ago", timedelta(weeks=2)),
        ("now", timedelta()),
    ],
)
def test_so_long_ago(text: str, back: timedelta) -> None:
    assert parse(text, NOON) == NOON - back


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("beginning", Edge.BEGINNING),
        ("Earliest", Edge.BEGINNING),
        ("end", Edge.END),
        ("latest", Edge.END),
    ],
)
def test_ends(text: str, expected: Edge) -> None:
    assert parse(text, NOON) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("today", "2026-01-30T23:00:00+00:00"),
        ("today 10:00", "2026-01-31T09:00:00+00:00"),
        ("10:00:30", "2026-01-31T09:00:30+00:00"),
        ("yesterday", "2026-01-29T23:00:00+00:00"),
        ("yesterday 18:30", "2026-01-30T17:30:00+00:00"),
        ("2026-01-31", "2026-01-30T23:00:00+00:00"),
        ("2026-01-31 12:00", "2026-01-31T11:00:00+00:00"),
        ("2026-07-31T12:00", "2026-07-31T10:00:00+00:00"),  # summer time there
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00+00:00"),
        ("2026-01-31T12:00:00.25-05:00", "2026-01-31T17:00:00.250000+00:00"),
    ],
)
def test_times_go_by_the_zone_unless_they_name_one(text: str, expected: str) -> None:
    found = parse(text, NOON, BERLIN)
    assert isinstance(found, datetime)
    assert found.isoformat() == expected


def test_today_is_that_of_the_zone() -> None:
    late = datetime(2026, 1, 31, 23, 30, tzinfo=UTC)  # 00:30 of the next day in Berlin
    assert parse("today", late, BERLIN) == datetime(2026, 1, 31, 23, tzinfo=UTC)


def test_the_machine_s_zone_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    import time

    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        assert parse("2026-01-31 12:00", NOON) == datetime(2026, 1, 31, 3, tzinfo=UTC)
        assert parse("today 10:00", NOON) == datetime(2026, 1, 31, 1, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "text",
    [
        "", "15 minutes", "15 parsecs ago", "minutes ago", "ago", "tomorrow", "today 25:00", "today noon",
        "yesterday 10", "10:99", "2026-13-01", "15", "-15 minutes ago", "999999999 weeks ago", "1h30 ago",
        "0001-01-01T00:00:00+14:00", "9" * 200,
    ],
)  # fmt: skip
def test_what_is_no_moment_says_what_to_write(text: str) -> None:
    with pytest.raises(ConfigError, match="is no moment; write '15 minutes ago'") as caught:
        parse(text, NOON)
    assert len(str(caught.value)) < 200


@given(st.text(max_size=40))
def test_any_text_is_a_moment_or_an_error_of_ours(text: str) -> None:
    try:
        found = parse(text, NOON)
    except ConfigError:
        return
    assert isinstance(found, Edge) or found.tzinfo is UTC


@given(st.integers(0, 10**6), st.sampled_from(["seconds", "minutes", "hours", "days"]))
def test_every_amount_of_every_unit(amount: int, unit: str) -> None:
    if unit == "days":
        amount %= 100_000
    assert parse(f"{amount} {unit} ago", NOON) == NOON - timedelta(**{unit: amount})


def test_ends_as_times() -> None:
    assert parse_time("beginning", NOON) is None
    assert parse_time("end", NOON) == NOON
    assert parse_time("1m ago", NOON) == NOON - timedelta(minutes=1)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0.5, "now"), (-0.5, "now"), (1, "1s ago"), (59, "59s ago"), (60, "1m ago"), (3599, "59m ago"),
     (7200, "2h ago"), (86_400 * 400, "400d ago"), (-90, "in 1m")],
)  # fmt: skip
def test_ago(seconds: float, expected: str) -> None:
    assert ago(NOON - timedelta(seconds=seconds), NOON) == expected


def test_length() -> None:
    assert [length(s) for s in (0, 0.9, 61, 3600, 86_399, 86_400)] == ["0s", "0s", "1m", "1h", "23h", "1d"]
