"""Patterns: what can be written, and what is found, against a plain look at the whole log."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.pipeline.analytics.matcher import RUNS, Match, Matcher
from queenstream.pipeline.analytics.patterns import expressions, numbers, parse, thresholds
from queenstream.pipeline.expr.literals import ExpressionError

SECOND = 1_000_000
Log = list[tuple[int, dict[str, Any]]]


def found(text: str, log: Log, *, until: int | None = None, event: str = "type") -> list[Match]:
    """All matches in a log in order; ``until``: how far time goes on after it, in seconds."""
    matcher = Matcher("p", parse(text, event))
    held = matcher.begin()
    matches = [match for at, record in log for match in matcher.see(held, at * SECOND, record)]
    return matches if until is None else matches + matcher.reach(held, until * SECOND)


def times(matches: list[Match]) -> list[int]:
    return [match.end // SECOND for match in matches]


def clicks(*seconds: int) -> Log:
    return [(second, {"type": "click", "n": number}) for number, second in enumerate(seconds)]


def test_it_fires_once_at_the_eleventh_click() -> None:
    matches = found("COUNT(*) > 10 IN 30s WHERE type = 'click'", clicks(*range(20)))
    assert times(matches) == [10]
    assert matches[0].value == 11
    assert (matches[0].start, matches[0].pattern) == (0, "p")
    assert [event["n"] for event in matches[0].events] == list(range(1, 11)), "the last ten"


def test_it_is_ready_again_once_it_was_false() -> None:
    log = clicks(*range(11), *range(100, 111))
    assert times(found("COUNT(*) > 10 IN 30s", log)) == [10, 110]


def test_it_is_ready_again_if_it_was_false_only_between_two_records() -> None:
    assert times(found("COUNT(*) > 0 IN 10s", clicks(0, 5, 14, 30))) == [0, 30]
    assert times(found("COUNT(*) > 0 IN 10s AND COUNT(*) > 1 IN 20s", clicks(0, 5, 14, 40, 41))) == [5, 41]


def test_what_is_exactly_a_span_old_is_not_in_it() -> None:
    assert found("COUNT(*) > 1 IN 5s", clicks(0, 5, 10)) == []
    assert times(found("COUNT(*) > 1 IN 5s", clicks(0, 4))) == [4]


def test_other_records_do_not_count() -> None:
    log: Log = [(0, {"type": "click"}), (1, {"type": "view"}), (2, {"type": "click"}), (3, {})]
    assert times(found("COUNT(*) >= 2 IN 1m WHERE type = 'click'", log)) == [2]


def test_count_of_a_field_takes_what_is_there() -> None:
    log: Log = [(0, {"x": None}), (1, {"x": "a"}), (2, {}), (3, {"x": 0})]
    assert times(found("COUNT(x) = 2 IN 1m", log)) == [3]


def test_sums_averages_and_ends() -> None:
    log: Log = [(0, {"v": 1}), (1, {"v": 5.5}), (2, {"v": -4})]
    assert times(found("SUM(v) > 6 IN 1m", log)) == [1]
    assert times(found("AVG(v) > 3 IN 1m", log)) == [1]
    assert times(found("MIN(v) < -3 IN 1m", log)) == [2]
    assert times(found("MAX(v) >= 5.5 IN 1m", log)) == [1]


def test_it_can_become_true_when_a_record_leaves() -> None:
    log: Log = [(0, {"v": 1}), (5, {"v": 9}), (6, {"v": 9})]
    assert times(found("AVG(v) > 8 IN 10s", log, until=60)) == [10], "as the 1 leaves"


def test_silence_is_found_once_there_was_something() -> None:
    text = "COUNT(*) < 1 IN 10s"
    assert times(found(text, clicks(0, 3), until=60)) == [13]
    assert found(text, clicks(0, 3), until=12) == []
    assert times(found(text, clicks(0, 30), until=60)) == [10, 40]


def test_and_or_not() -> None:
    log: Log = [(0, {"a": 1}), (1, {"b": 1}), (2, {"a": 1}), (3, {"b": 1})]
    both = "COUNT(a) > 1 IN 1m AND COUNT(b) > 1 IN 1m"
    assert times(found(both, log)) == [3]
    assert times(found("COUNT(a) > 1 IN 1m OR COUNT(b) > 0 IN 1m", log)) == [1]
    assert times(found("COUNT(a) > 1 IN 1m AND NOT COUNT(b) > 1 IN 1m", log)) == [2]
    assert times(found("(COUNT(a) > 5 IN 1m OR COUNT(b) > 1 IN 1m) AND COUNT(a) > 0 IN 1m", log)) == [3]


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(-2, 2)), max_size=40),
    st.sampled_from(["COUNT(*)", "SUM(v)", "AVG(v)", "MIN(v)", "MAX(v)"]),
    st.sampled_from([">", ">=", "<", "<=", "=", "!="]),
    st.integers(-3, 4),
    st.integers(1, 8),
)
def test_it_fires_where_a_look_at_every_instant_does(
    steps: list[tuple[int, int]], aggregate: str, comparison: str, number: int, span: int
) -> None:
    """The oracle looks at every second, and again after every record: has it become true?"""
    log: Log = []
    at = 0
    for step, value in steps:
        at += step
        log.append((at, {"v": value}))
    until = at + 20
    expected: list[int] = []
    there: list[tuple[int, int]] = []

    def holds() -> bool:
        values = [value for _, value in there]
        made: dict[str, Any] = {
            "COUNT(*)": len(values),
            "SUM(v)": sum(values),
            "AVG(v)": sum(values) / len(values) if values else None,
            "MIN(v)": min(values, default=None),
            "MAX(v)": max(values, default=None),
        }
        value = made[aggregate]
        python = {"=": "==", "!=": "!="}.get(comparison, comparison)
        return (
            value is not None
            and {
                ">": value > number,
                ">=": value >= number,
                "<": value < number,
                "<=": value <= number,
                "==": value == number,
                "!=": value != number,
            }[python]
        )

    before = holds()
    for second in range(until + 1):
        for record in [None, *(each for time, each in log if time == second)]:
            there = [pair for pair in there if pair[0] > second - span]
            if record is not None:
                there.append((second, record["v"]))
            now = holds()
            if now and not before:
                expected.append(second)
            before = now
    text = f"{aggregate} {comparison} {number} IN {span}s"
    assert times(found(text, log, until=until)) == expected


def test_a_number_that_is_none_is_said() -> None:
    matcher = Matcher("big", parse("SUM(amount) > 5 IN 1m WHERE type = 'buy'"))
    matcher.check({"type": "click"})
    matcher.check({"type": "buy", "amount": 2})
    for bad in ({"type": "buy"}, {"type": "buy", "amount": "2"}, {"type": "buy", "amount": float("nan")}):
        with pytest.raises(ValueError, match=r"big: amount is .*, and SUM\(amount\) takes numbers"):
            matcher.check(bad)


# Sequences


def events(*named: tuple[int, str]) -> Log:
    return [(at, {"type": name, "at": at}) for at, name in named]


def test_one_then_the_other_in_time() -> None:
    text = "login THEN purchase WITHIN 5m"
    log = events((0, "login"), (10, "view"), (300, "purchase"), (310, "purchase"))
    [match] = found(text, log)
    assert (match.start, match.end // SECOND) == (0, 300)
    assert [event["type"] for event in match.events] == ["login", "purchase"]
    assert found(text, events((0, "login"), (301, "purchase"))) == [], "too late"
    assert found(text, events((0, "purchase"), (1, "login"))) == [], "the wrong way round"


def test_every_first_step_is_a_match_of_its_own() -> None:
    log = events((0, "login"), (1, "login"), (2, "purchase"), (3, "purchase"))
    assert [match.start // SECOND for match in found("login THEN purchase WITHIN 5m", log)] == [0, 1]


def test_what_does_not_come() -> None:
    text = "login THEN NOT purchase WITHIN 5m"
    assert times(found(text, events((0, "login")), until=300)) == [300]
    assert found(text, events((0, "login")), until=299) == []
    assert found(text, events((0, "login"), (300, "purchase")), until=900) == []
    assert times(found(text, events((0, "login"), (301, "purchase")))) == [300]


def test_what_must_not_lie_between() -> None:
    text = "cart THEN NOT pay THEN leave WITHIN 10m"
    assert times(found(text, events((0, "cart"), (5, "view"), (9, "leave")))) == [9]
    assert found(text, events((0, "cart"), (5, "pay"), (9, "leave"))) == []


def test_steps_are_predicates_too() -> None:
    text = "(type = 'add' and price > 100) THEN (type in ('pay', 'loan')) WITHIN 1h"
    log: Log = [(0, {"type": "add", "price": 5}), (1, {"type": "add", "price": 500}), (2, {"type": "loan"})]
    assert [match.start // SECOND for match in found(text, log)] == [1]


def test_the_field_of_a_bare_name_can_be_said() -> None:
    log: Log = [(0, {"action": "a"}), (1, {"action": "b"})]
    assert times(found("a THEN b WITHIN 1m", log, event="action")) == [1]


def test_three_steps() -> None:
    log = events((0, "a"), (1, "c"), (2, "b"), (3, "c"))
    [match] = found("a THEN b THEN c WITHIN 1m", log)
    assert [event["at"] for event in match.events] == [0, 2, 3]


def test_beginnings_are_bounded() -> None:
    log = events(*((at, "a") for at in range(RUNS + 50)), (RUNS + 50, "b"))
    starts = [match.start // SECOND for match in found("a THEN b WITHIN 1h", log)]
    assert starts == list(range(50, RUNS + 50)), "the oldest gave way"


# What can be written


@pytest.mark.parametrize(
    ("text", "told", "place"),
    [
        ("", "expected a name or a predicate in parentheses, found the end", 0),
        ("COUNT(*) > 10", "expected IN and a span such as 30s, found the end", 13),
        ("COUNT(*) > x IN 5s", "expected a number, found x", 11),
        ("COUNT(*) > 5 IN soon", "expected a span such as 30s, found soon", 16),
        ("COUNT(*) 5 IN 5s", "expected a comparison such as >, found 5", 9),
        ("SUM(*) > 5 IN 5s", "SUM is of a field; only COUNT is of all records", 4),
        ("COUNT() > 5 IN 5s", "expected a field or \\*, found \\)", 6),
        ("COUNT(*) > 5 IN 5s WHERE", "expected a value, found the end", 24),
        ("COUNT(*) > 5 IN 0s", "a span of no time", 16),
        ("COUNT(*) > 5 IN 5s AND", "expected COUNT, SUM, AVG, MIN or MAX, found the end", 22),
        ("COUNT(*) > 5 IN 5s login", "expected AND, OR or the end, found login", 19),
        ("login", "expected THEN, found the end", 5),
        ("login THEN purchase", "expected THEN, or WITHIN and a span such as 5m, found the end", 19),
        ("login THEN NOT a THEN NOT b WITHIN 5m", "two steps that must not come; write \\(a or b\\)", 26),
        ("login THEN 5 WITHIN 5m", "expected a name or a predicate in parentheses, found 5", 11),
    ],
)
def test_mistakes_are_shown_where_they_are(text: str, told: str, place: int) -> None:
    with pytest.raises(ExpressionError, match=told) as caught:
        parse(text)
    assert caught.value.position == place


def test_hostile_depth() -> None:
    with pytest.raises(ExpressionError, match="levels of parentheses"):
        parse("(" * 1_000 + "COUNT(*) > 1 IN 1s" + ")" * 1_000)


def test_what_it_reads() -> None:
    pattern = parse("(COUNT(x) > 1 IN 1s WHERE a.b = 1) OR NOT MAX(`c d`) < 2 IN 1s")
    assert [str(each) for each in expressions(pattern)] == ["x", "a.b = 1"]
    assert numbers(pattern) == ["c d"]
    assert [each.aggregate for each in thresholds(pattern)] == ["count", "max"]
