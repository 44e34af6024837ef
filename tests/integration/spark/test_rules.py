"""Rules that change while a pipeline runs on Spark: each process of its tasks asks the broker itself."""

from __future__ import annotations

import time
from itertools import count
from typing import Any

import pytest

from queenstream import Pipeline, Queue
from queenstream.testing.brokers import TemporaryBroker
from tests.integration.local.collecting import Collected

pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]
CLICKS = "COUNT(*) > {} IN 1h WHERE action = 'click'"


def test_rules_change_while_it_runs_and_others_go_on(broker: TemporaryBroker) -> None:
    rows = Collected()
    found = Pipeline("clicks").source(Queue("clicks")).event_time("at").patterns(rules="fraud", by="user")
    seconds = count(1)
    with broker.client() as queen:

        def push(*actions: str) -> None:
            said = [{"user": "ann", "at": next(seconds) * 1_000, "action": action} for action in actions]
            queen.queue("clicks").push(said)

        def apply(**patterns: str) -> None:
            queen.admin.apply_rules("fraud", {"patterns": patterns})

        apply(steady=CLICKS.format(3), other=CLICKS.format(1), gone=CLICKS.format(3))
        push("click", "click")
        run = found.to(lambda row: rows((row["pattern"], row["value"]))).start(url=broker.address)
        rows.wait_for(1, 240)
        assert rows.rows == [("other", 2.0)]

        probe = "COUNT(*) > 0 IN 1h WHERE action = 'probe'"
        apply(steady=CLICKS.format(3), other=CLICKS.format(2), probe=probe)
        end = time.monotonic() + 240
        while len(rows.rows) < 2:  # until the rules have arrived
            assert time.monotonic() < end, "the new rules never came"
            push("probe")
            time.sleep(0.2)
        push("click", "click", "click")
        rows.wait_for(4, 240)
        run.stop()
        run.wait()
    # One has counted from the beginning; one was changed, and begins anew; one is gone.
    assert rows.rows[1:] == [("probe", 1.0), ("steady", 4.0), ("other", 3.0)]


def test_what_is_not_there_is_said_before_anything_runs(broker: TemporaryBroker) -> None:
    source: Pipeline[Any] = Pipeline("p").source(Queue("in")).event_time("at")
    with pytest.raises(Exception, match="there is no set of rules 'none'"):
        source.anomalies(rules="none").to(print).start(url=broker.address)
