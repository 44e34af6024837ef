"""The demo's pipeline finds in the demo's traffic what was planted there, and nothing else."""

from __future__ import annotations

import doctest
from collections import Counter, defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from queenstream.cli.demo import pipeline
from queenstream.cli.demo import traffic as demo_traffic
from queenstream.cli.demo.pipeline import line, shop
from queenstream.cli.demo.traffic import (
    ANOMALIES,
    CAMPAIGNS,
    CLICKS,
    MATCHES,
    ORDERS,
    READINGS,
    REVENUE,
    USUAL,
    Traffic,
)
from queenstream.testing import PipelineDriver

BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTES = 3

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def pushed() -> dict[str, Rows]:
    """What was pushed, by queue."""
    return defaultdict(list)


@pytest.fixture(scope="module")
def driver(pushed: dict[str, Rows]) -> PipelineDriver:
    """Some minutes of the demo."""
    driver = PipelineDriver(shop(BEGAN, lambda _: None), start=BEGAN)
    traffic = Traffic()
    for second in range(1, MINUTES * 60):
        batch: dict[str, Rows] = defaultdict(list)
        for item in traffic.until(second):
            batch[item["queue"].removeprefix("demo.")].append(item["payload"])
            pushed[item["queue"]].append(item["payload"])
        driver.send_together(batch)
        driver.advance("1s")
    return driver


def test_fridges_that_are_too_warm(driver: PipelineDriver, pushed: dict[str, Rows]) -> None:
    numbers = [row for row in pushed[READINGS] if isinstance(row["temperature"], float)]
    planted = [(row["sensor"], row["temperature"]) for row in numbers if row["temperature"] > USUAL + 4]
    assert len(planted) > 5
    assert [(row["key"], row["value"]) for row in driver.rows(ANOMALIES)] == planted


def test_fridges_that_are_silent(driver: PipelineDriver, pushed: dict[str, Rows]) -> None:
    broken = [row for row in pushed[READINGS] if not isinstance(row["temperature"], float)]
    assert len(broken) > 4
    assert [letter["record"] for letter in driver.dead_letters()] == broken


def test_users_who_click_too_fast(driver: PipelineDriver, pushed: dict[str, Rows]) -> None:
    bots = [row for row in pushed[CLICKS] if row["user"] == "bot-7"]
    assert {row["key"] for row in driver.rows(MATCHES)} == {"bot-7"}
    assert len(driver.rows(MATCHES)) == len(bots) // demo_traffic.BOT_CLICKS > 5


def test_revenue_by_campaign(driver: PipelineDriver, pushed: dict[str, Rows]) -> None:
    """Of the orders in the windows that are closed, those to which a click has led, each once."""
    led = {row["order"]: row["campaign"] for row in pushed[CLICKS] if "order" in row}
    amounts = {row["order"]: row["amount"] for row in pushed[ORDERS]}
    rows = driver.rows(REVENUE)
    last = max(row["window_end"] for row in rows)
    assert BEGAN + timedelta(minutes=MINUTES) - last < timedelta(seconds=20)
    sold = Counter(led[order] for order in amounts if order in led)
    for campaign in CAMPAIGNS:
        closed = sum(row["orders"] for row in rows if row["campaign"] == campaign)
        assert 0.85 * sold[campaign] < closed <= sold[campaign]
    assert len(rows) == len({(row["window_start"], row["campaign"]) for row in rows})
    assert len(led) < len(amounts), "some ordered by phone"


def test_what_people_read(driver: PipelineDriver) -> None:
    shown = [line(row) for row in driver.rows("terminal")]
    assert len(shown) == sum(len(driver.rows(queue)) for queue in (REVENUE, ANOMALIES, MATCHES))
    assert {text.split()[1] for text in shown} == {"revenue", "anomaly", "pattern"}
    assert max(map(len, shown)) < 80


def test_the_examples_are_true() -> None:
    for module in (pipeline, demo_traffic):
        assert doctest.testmod(module).failed == 0
