"""Sets of rules: reading them, what a change means, and steps whose rules change while they run."""

from __future__ import annotations

from typing import Any

import pytest

from queenstream.errors import ConfigError
from queenstream.pipeline.analytics.dynamic_rules import Ruled
from queenstream.pipeline.analytics.rules import MOST_RULES, FixedBook, RuleSet, changes, read_file
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.policies import DeadLetters
from queenstream.testing import PipelineDriver

FILE = """
[fraud]
event = "action"

[fraud.patterns]
rapid = "COUNT(*) > 2 IN 30s WHERE action = 'click'"
left = "login THEN NOT buy WITHIN 1m"

[fraud.anomalies.spend]
field = "amount"
window = "10m"
algorithm = "mad"
threshold = 5
where = "action = 'pay'"

[quiet]
"""


def matching(**more: Any) -> Pipeline[Any]:
    return Pipeline("p").source(Queue("in")).event_time("at").patterns(rules="fraud", by="user", **more)


def rules(**patterns: str) -> str:
    lines = [f'{name} = "{text}"' for name, text in patterns.items()]
    return "\n".join(['[fraud]\nevent = "action"\n[fraud.patterns]', *lines])


def click(at: int, user: str = "a", action: str = "click") -> dict[str, Any]:
    return {"user": user, "at": at * 1_000, "action": action}


# Reading


def test_a_file_has_sets_and_comes_back_as_it_was() -> None:
    found = read_file(FILE)
    assert sorted(found) == ["fraud", "quiet"]
    fraud = found["fraud"]
    assert fraud.patterns["left"].event == "action"
    assert str(fraud.anomalies["spend"]) == (
        "mad of amount where action = 'pay', window 10m, threshold 5, min_samples 10"
    )
    assert RuleSet.of(fraud.definition()) == fraud
    assert found["quiet"].rules == []


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no set of rules"),
        ("[fraud", "no TOML"),
        ("fraud = 1", "'fraud' stands outside of a set"),
        ("[fraud]\npattern = 1", "fraud has 'pattern'; it knows event, patterns, anomalies"),
        ("[fraud]\npatterns = 1", "fraud.patterns is no table"),
        ("[fraud.patterns]\nrapid = 1", "fraud.patterns.rapid is 1; write a text"),
        (
            "[fraud.patterns]\nrapid = 'COUNT(*) > 10 WHERE x'",
            "fraud.patterns.rapid: expected IN and a span such as 30s, found WHERE\n"
            "  COUNT(*) > 10 WHERE x\n                ^",
        ),
        ("[a.anomalies]\nspend = 1", "a.anomalies.spend is no table"),
        ("[a.anomalies.spend]\nfield = 'x'", "a.anomalies.spend has no window; add window = '10m'"),
        ("[a.anomalies.spend]\nfield = 'x'\nwindow = '1m'\nby = 'y'", "a.anomalies.spend has 'by'"),
        ("[a.anomalies.spend]\nfield = 'x'\nwindow = 'soon'", "a.anomalies.spend: 'soon' is not a duration"),
        (
            "[a.anomalies.spend]\nfield = 'x'\nwindow = '1m'\nalgorithm = 'magic'",
            "a.anomalies.spend: there is no algorithm 'magic'; use one of zscore, mad, iqr, ewma",
        ),
        (
            "[a.anomalies.spend]\nfield = 'x'\nwindow = '1m'\nthreshold = -1",
            "threshold is -1.0; give a number",
        ),
        (
            "[a.anomalies.spend]\nfield = 'x'\nwindow = '1m'\nthreshold = 'x'",
            "threshold is 'x'; give a number",
        ),
        (
            "[a.anomalies.spend]\nfield = 'x'\nwindow = '1m'\nmin_samples = 1.5",
            "min_samples is 1.5; give a whole",
        ),
        ("[a.anomalies.spend]\nfield = 'x'\nwindow = '1m'\nwhere = 'y >'", "a.anomalies.spend: expected"),
    ],
)
def test_what_cannot_be_is_said_with_its_place(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_file(text)
    assert told in str(caught.value)


def test_a_set_has_a_size() -> None:
    texts = {f"rule {n}": "COUNT(*) > 1 IN 1s" for n in range(MOST_RULES + 1)}
    with pytest.raises(ConfigError, match="make several sets"):
        RuleSet.of({"patterns": texts})


# What a change means


def test_what_becomes_of_each_rule() -> None:
    before = read_file(FILE)["fraud"]
    after = read_file(
        FILE.replace("threshold = 5", "threshold = 6")
        .replace("COUNT(*) > 2", "COUNT(*) > 3")
        .replace('left = "login', 'gone = "login')
    )["fraud"]
    assert {(each.rule, each.verdict) for each in changes(before, after)} == {
        ("rapid", "changed"),
        ("gone", "new"),
        ("left", "removed"),
        ("spend", "tuned"),
    }
    assert {each.verdict for each in changes(before, before)} == {"kept"}


def test_the_event_is_part_of_a_sequence_and_of_no_count() -> None:
    before = read_file(FILE)["fraud"]
    after = read_file(FILE.replace('event = "action"', 'event = "kind"'))["fraud"]
    assert {each.rule: each.verdict for each in changes(before, after)} == {
        "rapid": "kept",
        "left": "changed",
        "spend": "kept",
    }


# Steps


def test_a_rule_that_did_not_change_goes_on_with_what_it_has_seen() -> None:
    steady, other = "COUNT(*) > 2 IN 30s", "COUNT(*) > 1 IN 30s WHERE action = 'click'"
    driver = PipelineDriver(matching().to(Queue("out")), rules=rules(steady=steady, other=other, gone=other))
    driver.send(click(1), click(2, action="view"))
    assert driver.rows() == []
    changed = "COUNT(*) > 1 IN 30s WHERE action = 'view'"
    driver.apply_rules(rules(steady=steady, other=changed, added="COUNT(*) >= 1 IN 30s"))
    driver.send(click(3))
    driver.crash()
    # ``steady`` remembers all three. ``other`` has begun anew with one click that it does not count; ``gone``
    # would have fired; ``added`` fires at its first.
    assert [row["pattern"] for row in driver.rows()] == ["steady", "added"]
    driver.send(click(4, action="view"), click(5, action="view"))
    assert [row["pattern"] for row in driver.rows()][2:] == ["other"]


def test_a_new_threshold_goes_on_with_the_window() -> None:
    readings = Pipeline("p").source(Queue("in")).event_time("at").anomalies(rules="sensors", by="sensor")
    file = "[sensors.anomalies.heat]\nfield = 'value'\nwindow = '1m'\nthreshold = {}"
    driver = PipelineDriver(readings.to(Queue("out")), rules=file.format(100))
    usual = [{"sensor": "a", "at": at * 1_000, "value": float(at % 5)} for at in range(30)]
    driver.send(*usual, {"sensor": "a", "at": 30_000, "value": 20.0})
    assert driver.rows() == []
    driver.apply_rules(file.format(2))
    driver.send({"sensor": "a", "at": 31_000, "value": 30.0})
    [row] = driver.rows()
    assert (row["detector"], row["field"], row["value"]) == ("heat", "value", 30.0)
    driver.apply_rules(file.format(2).replace("1m", "2m"))
    driver.send({"sensor": "a", "at": 32_000, "value": 900.0})
    assert len(driver.rows()) == 1, "with another window it is another rule, and knows nothing yet"


def test_a_record_that_a_rule_cannot_take_is_an_error_of_the_step() -> None:
    paid = Pipeline("p").source(Queue("in")).event_time("at")
    found = paid.anomalies(rules="fraud", by="user", on_error=DeadLetters("bad"))
    driver = PipelineDriver(found.to(Queue("out")), rules=FILE)
    driver.send(click(1), {**click(2, action="pay"), "amount": "much"})
    [letter] = driver.dead_letters()
    assert letter["error"] == (
        "spend: amount is 'much', and not a number; mend the record or filter it out"
    ), "a click has no amount, and the rule does not ask for it"


def test_a_record_that_came_before_its_rule_is_passed_over_if_the_rule_cannot_take_it() -> None:
    waiting = matching(grace="10s").to(Queue("out"))
    driver = PipelineDriver(waiting, rules=rules(old="COUNT(*) > 99 IN 30s"))
    driver.send(click(1))
    driver.apply_rules(rules(big="SUM(amount) > 10 IN 30s"))
    driver.send({**click(2), "amount": 11}, {**click(30), "amount": 0})
    assert [(row["pattern"], row["value"]) for row in driver.rows()] == [("big", 11.0)]
    assert driver.stats().failed == 0


def test_a_key_that_is_quiet_is_forgotten_whatever_the_rules_are() -> None:
    driver = PipelineDriver(matching().to(Queue("out")), rules=rules(left="login THEN NOT buy WITHIN 1m"))

    def kept() -> set[str]:
        [entries] = [found for name, found in driver._committed.state.items() if name == "patterns:fraud"]
        return {str(name).strip() for name in entries} - {""}

    driver.send(click(1, action="login"))
    assert kept() == {'"a"'}
    driver.send(click(100, user="b"))
    assert [row["key"] for row in driver.rows()] == ["a"]
    assert kept() == {'"b"'}


def test_who_knows_only_older_rules_leaves_alone_what_it_does_not_know() -> None:
    newer = FixedBook(RuleSet.of({"patterns": {"two": "COUNT(*) > 1 IN 30s"}}), 2)
    older = FixedBook(RuleSet.of({"patterns": {"one": "COUNT(*) > 5 IN 30s"}}), 1)
    here, there = Ruled("r", "patterns", book=newer), Ruled("r", "patterns", book=older)
    held = here.begin()
    here.see(held, 1, {}, "k")
    there.see(held, 2, {}, "k")
    assert held["version"] == 2
    [match] = here.see(held, 3, {}, "k")
    assert match["pattern"] == "two"


def test_what_a_pipeline_may_say_beside_rules() -> None:
    source = Pipeline("p").source(Queue("in")).event_time("at")
    with pytest.raises(ConfigError, match="goes by the set that the broker keeps"):
        source.patterns(rules="fraud", rapid="COUNT(*) > 1 IN 1s")
    with pytest.raises(ConfigError, match="goes by the set that the broker keeps"):
        source.anomalies("x", rules="fraud")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="needs a field and a window"):
        source.anomalies()  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="names no set of rules"):
        source.patterns(rules=" ")
    assert "patterns of the rules fraud" in source.patterns(rules="fraud", by="user").to(print).describe()
    with pytest.raises(ConfigError, match="no rules 'fraud' are given"):
        PipelineDriver(matching().to(print), rules="[other]")


def test_without_a_broker_it_says_so() -> None:
    driver = PipelineDriver(matching(on_error="fail").to(Queue("out")))
    with pytest.raises(Exception, match="the rules 'fraud' are with a broker"):
        driver.send(click(1))
