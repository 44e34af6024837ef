"""What happens in the demo's shop, and the unusual that is planted in it. Pure, and the same each time.

>>> traffic = Traffic()
>>> sorted({item["queue"] for item in traffic.until(5)})
['demo.clicks', 'demo.orders', 'demo.readings']
"""

from __future__ import annotations

import heapq
import math
import random
from typing import Any

ORDERS, CLICKS, READINGS = "demo.orders", "demo.clicks", "demo.readings"
REVENUE, ANOMALIES, MATCHES = "demo.revenue", "demo.anomalies", "demo.matches"  # what the pipeline finds

CAMPAIGNS = ("friends", "mail", "search")
FRIDGES = ("fridge-1", "fridge-2", "fridge-3", "fridge-4")
CUSTOMERS = 50
ORDERS_A_SECOND, CLICKS_A_SECOND = 10, 6
BY_PHONE = 0.05  # of the orders: no click has led to them, and the join leaves them out

USUAL, NOISE, OPEN_DOOR = 4.0, 0.15, 8.0  # degrees Celsius
FIRST_DOOR, DOOR_EVERY = 24, 20  # seconds: a fridge needs some readings before one can be unusual
FIRST_BOT, BOT_EVERY, BOT_CLICKS = 4, 25, 14
FIRST_SILENCE, SILENCE_EVERY = 10, 30  # a fridge sends text instead of a number: a dead letter

Item = dict[str, Any]


class Traffic:
    """Messages to push, by the second at which they are due."""

    def __init__(self, seed: int = 7) -> None:
        self._chance = random.Random(seed)  # noqa: S311 - nothing is to be kept secret
        self._due: list[tuple[float, int, Item]] = []
        self._drawn = self._made = self._orders = 0

    def until(self, seconds: float) -> list[Item]:
        """What is due up to then, in its order, and was not given before."""
        while self._drawn <= seconds:
            self._draw(self._drawn)
            self._drawn += 1
        given = []
        while self._due and self._due[0][0] <= seconds:
            given.append(heapq.heappop(self._due)[2])
        return given

    def _draw(self, second: int) -> None:
        """All that begins in this second."""
        for _ in range(ORDERS_A_SECOND):
            self._order(second + self._chance.random())
        for _ in range(CLICKS_A_SECOND):
            user = f"customer-{self._chance.randrange(CUSTOMERS):02}"
            action = self._chance.choices(("view", "click", "cart"), (5, 4, 1))[0]
            self._click(second + self._chance.random(), user, action)
        if _turn(second, FIRST_BOT, BOT_EVERY) is not None:
            for number in range(BOT_CLICKS):
                self._click(second + number / 10, "bot-7", "click")
        for number, fridge in enumerate(FRIDGES):
            self._read(second, number, fridge)

    def _order(self, at: float) -> None:
        """An order, and before it, mostly, the click of its customer that led to it."""
        self._orders += 1
        customer = f"customer-{self._chance.randrange(CUSTOMERS):02}"
        if self._chance.random() >= BY_PHONE:
            campaign = self._chance.choices(CAMPAIGNS, (1, 2, 3))[0]
            self._click(at, customer, "checkout", order=self._orders, campaign=campaign)
        amount = round(self._chance.lognormvariate(3, 1), 2)
        order = {"order": self._orders, "customer": customer, "amount": amount}
        self._put(at + self._chance.uniform(0.2, 2), ORDERS, customer, order)

    def _click(self, at: float, user: str, action: str, **more: Any) -> None:
        self._put(at, CLICKS, user, {"user": user, "action": action, **more})

    def _read(self, second: int, number: int, fridge: str) -> None:
        """A fridge's reading: it swings slowly, with some noise; now and then its door is open."""
        swing = 0.3 * math.sin(second / 40 + number)
        temperature: float | str = round(USUAL + swing + self._chance.gauss(0, NOISE), 2)
        if _turn(second, FIRST_DOOR, DOOR_EVERY, of=len(FRIDGES)) == number:
            temperature = round(USUAL + swing + OPEN_DOOR, 2)
        elif _turn(second, FIRST_SILENCE, SILENCE_EVERY, of=len(FRIDGES)) == number:
            temperature = "no signal"
        self._put(second, READINGS, fridge, {"sensor": fridge, "temperature": temperature})

    def _put(self, at: float, queue: str, partition: str, payload: Any) -> None:
        self._made += 1  # of two at one moment, the one that was made first
        item = {"queue": queue, "partition": partition, "payload": payload}
        heapq.heappush(self._due, (at, self._made, item))


def _turn(second: int, first: int, every: int, of: int = 1) -> int | None:
    """Whose turn it is in this second, of so many in turn; None: nobody's.

    >>> [_turn(second, 10, 5, of=2) for second in (10, 12, 15, 20)]
    [0, None, 1, 0]
    """
    times, rest = divmod(second - first, every)
    return times % of if times >= 0 and rest == 0 else None
