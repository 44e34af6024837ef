"""A pipeline on a real cluster: a worker dies in the middle of a batch, and the result is the same.

The executors' Python has our dependencies and not our package: that comes from the driver.
"""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from queenstream import Queen
from tests.integration.spark_cluster.cluster import Cluster, python_without_us, without_paths
from tests.integration.spark_cluster.driving import Driver, stored
from tests.processes import folder, up

ORDERS = 240
FIRST_MS = 1_700_000_000_000
WITHIN_MS, WINDOW_MS = 2_000, 5_000
PATIENCE_SECONDS = 300.0

Record = dict[str, Any]
Row = tuple[str, int, int, int, int]


def orders_and_payments() -> tuple[list[Record], list[Record]]:
    """Both in the order of their times. Some are not paid, and some too late for the join."""
    chance = random.Random(7)
    orders: list[Record] = [
        {"order": n, "user": f"user-{n % 4}", "amount": n, "at": FIRST_MS + n * 100} for n in range(ORDERS)
    ]
    payments = [
        {"order": each["order"], "paid": each["amount"] + 1, "at": each["at"] + chance.randint(0, 3_000)}
        for each in orders
        if chance.random() < 0.8
    ]
    return orders, sorted(payments, key=lambda each: int(each["at"]))


def expected(orders: list[Record], payments: list[Record]) -> set[Row]:
    """The result, the plain way."""
    found: dict[tuple[str, int], tuple[int, int, int]] = {}
    by_order = {each["order"]: each for each in orders}
    for payment in payments:
        order = by_order[payment["order"]]
        if payment["at"] - order["at"] <= WITHIN_MS:
            key = (order["user"], payment["at"] // WINDOW_MS * WINDOW_MS)
            number, ordered, paid = found.get(key, (0, 0, 0))
            found[key] = (number + 1, ordered + order["amount"] * 2, paid + payment["paid"])
    return {(user, start, *sums) for (user, start), sums in found.items()}


def rows_in(url: str) -> list[Row]:
    """The rows that have arrived in the sink."""
    return [
        (
            row["user"],
            round(datetime.fromisoformat(row["window_start"]).timestamp() * 1_000),
            row["number"],
            row["ordered"],
            row["paid"],
        )
        for row in stored(url, "totals")
    ]


@pytest.fixture
def place() -> Iterator[Path]:
    with folder() as made:
        yield made


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_SECONDS)
def test_a_worker_dies_in_the_middle_and_nothing_is_lost_or_doubled(place: Path) -> None:
    orders, payments = orders_and_payments()
    python = python_without_us(place / "python")
    said = subprocess.run(
        [python, "-c", "import pyspark, pyarrow, adbc_driver_postgresql, msgspec, queenstream"],
        capture_output=True, text=True, check=False, env=without_paths(),
    )  # fmt: skip
    assert "No module named 'queenstream'" in said.stderr

    with up("--data", str(place / "data"), "--port", "0") as broker, Cluster(place, python) as cluster:
        address = broker.ready()
        with Queen(address) as queen:
            half = ORDERS // 2
            cut = orders[half]["at"]
            queen.queue("orders").push(orders[:half])
            queen.queue("payments").push([each for each in payments if each["at"] < cut])
            job = "tests.integration.spark_cluster.job", cluster.master, address, str(place)
            with Driver(place / "driver.log", cluster.environment, *job) as driver:
                url = queen.admin.database_url()
                driver.wait_until("the first window", lambda: rows_in(url), PATIENCE_SECONDS)
                (place / "slow").touch()
                queen.queue("orders").push(orders[half:])
                queen.queue("payments").push([each for each in payments if each["at"] >= cut])
                at_work = driver.wait_until(
                    "a step at work", lambda: [*place.glob("*.pid")], PATIENCE_SECONDS
                )
                cluster.kill_around(int(at_work[0].stem))
                (place / "slow").unlink()
                for name in ("orders", "payments"):  # what closes the last windows
                    last = {"order": ORDERS, "user": "nobody", "amount": 0, "paid": 0}
                    queen.queue(name).push({**last, "at": FIRST_MS + 3_600_000})
                wanted = expected(orders, payments)
                driver.wait_until(
                    "the last window", lambda: len(rows_in(url)) >= len(wanted), PATIENCE_SECONDS
                )
                driver.end()
                assert sorted(rows_in(url)) == sorted(wanted)
