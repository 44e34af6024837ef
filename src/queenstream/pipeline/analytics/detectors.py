"""How far a number is from those before it: four ways to say what is usual.

| algorithm | usual is | score |
|---|---|---|
| zscore | the mean of the window, give or take its (population) deviation | deviations from the mean |
| mad | the median, give or take 1.4826 times the median distance from it | the same, of these |
| iqr | between the first and third quartile | distances between the quartiles outside of them |
| ewma | the mean and deviation in which a value counts e times less each ``window`` later | as zscore |

The value that is scored is not among those that it is compared with; it is afterwards, whatever its score. If
these do not differ at all, the deviation is 0: then a value equal to them is usual, and any other is an
anomaly without a score (None), however near it is.

>>> detector = Detector("zscore", window_us=60_000_000, min_samples=3)
>>> held = detector.begin()
>>> for second, value in enumerate([10.0, 12.0, 11.0, 30.0]):
...     judged = detector.judge(held, second * 1_000_000, value)
>>> round(judged.score, 1), judged.unusual
(23.3, True)
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from queenstream.errors import ConfigError
from queenstream.pipeline.analytics.rolling import MOMENTS, Held

Algorithm: TypeAlias = Literal["zscore", "mad", "iqr", "ewma"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
THRESHOLDS: dict[Algorithm, float] = {"zscore": 2.5, "mad": 3.5, "iqr": 1.5, "ewma": 3.0}
"""What counts as unusual, unless said."""

_FADED = 20  # so many windows later nothing is left of a value that counts by its age
_NORMAL = 1.4826  # makes the median distance of normally distributed values their standard deviation


@dataclass(frozen=True, slots=True)
class Judged:
    """A value against those before it. ``mean`` is the middle that the algorithm goes by."""

    mean: float
    deviation: float
    score: float | None
    unusual: bool


class Detector:
    """One algorithm. ``judge`` takes values in the order of time; ``held`` is what is kept in between."""

    def __init__(
        self,
        algorithm: Algorithm = "zscore",
        *,
        window_us: int,
        threshold: float | None = None,
        min_samples: int = 10,
    ) -> None:
        if algorithm not in ALGORITHMS:
            raise ConfigError(f"there is no algorithm {algorithm!r}; use one of {', '.join(ALGORITHMS)}")
        if threshold is not None and not (threshold > 0 and math.isfinite(threshold)):
            raise ConfigError(f"threshold is {threshold}; give a number above 0")
        if window_us <= 0:
            raise ConfigError("the window of a detector is empty; give one such as '10m'")
        if isinstance(min_samples, bool) or min_samples < 1:
            raise ConfigError(f"min_samples is {min_samples}; give at least 1")
        self.algorithm = algorithm
        self.threshold = THRESHOLDS[algorithm] if threshold is None else threshold
        self.min_samples = min_samples
        self._window_us = window_us
        self._way = _WAYS[algorithm]

    @property
    def lasts_us(self) -> int:
        """How long after the last value nothing is left of it."""
        return self._window_us * (_FADED if self.algorithm == "ewma" else 1)

    def begin(self) -> Held:
        """Nothing seen yet."""
        return self._way.begin()

    def judge(self, held: Held, at: int, value: float) -> Judged | None:
        """What it is against those before it, if these are enough; then it is one of them."""
        before = self._way.before(held, at, self._window_us)
        self._way.add(held, at, value)
        if before is None or before[0] < self.min_samples:
            return None
        _, middle, low, high, deviation = before
        outside = value - high if value > high else low - value if value < low else 0.0
        if deviation > 0:
            score = outside / deviation
            signed = score if value >= middle else -score
            return Judged(middle, deviation, signed, score > self.threshold)
        return Judged(middle, 0.0, 0.0 if outside == 0 else None, outside != 0)


Before: TypeAlias = tuple[float, float, float, float, float]
"""Of the values before: how many, the middle, from where to where a score is 0, and what it counts in."""


class _ZScore:
    def begin(self) -> Held:
        return MOMENTS.begin()

    def before(self, held: Held, at: int, window_us: int) -> Before | None:
        MOMENTS.expire(held, at - window_us)
        number, mean, squares = MOMENTS.total(held)
        if not number:
            return None
        return number, mean, mean, mean, math.sqrt(squares / number)

    def add(self, held: Held, at: int, value: float) -> None:
        MOMENTS.add(held, at, value)


class _Sorted:
    """The values of the window, by time and by size."""

    def begin(self) -> Held:
        return {"values": [], "gone": 0, "sorted": []}

    def add(self, held: Held, at: int, value: float) -> None:
        held["values"].append([at, value])
        insort(held["sorted"], value)

    def expired(self, held: Held, until: int) -> list[float]:
        """The sorted values, without those that are too old."""
        values, gone, ordered = held["values"], held["gone"], held["sorted"]
        while gone < len(values) and values[gone][0] <= until:
            del ordered[bisect_left(ordered, values[gone][1])]
            gone += 1
        if gone > len(values) // 2:  # the gaps are closed now and then
            del values[:gone]
            gone = 0
        held["gone"] = gone
        return ordered  # type: ignore[no-any-return]


class _Mad(_Sorted):
    def before(self, held: Held, at: int, window_us: int) -> Before | None:
        ordered = self.expired(held, at - window_us)
        if not ordered:
            return None
        middle = _quantile(ordered, 0.5)
        return len(ordered), middle, middle, middle, _NORMAL * _median_distance(ordered, middle)


class _Iqr(_Sorted):
    def before(self, held: Held, at: int, window_us: int) -> Before | None:
        ordered = self.expired(held, at - window_us)
        if not ordered:
            return None
        low, high = _quantile(ordered, 0.25), _quantile(ordered, 0.75)
        return len(ordered), _quantile(ordered, 0.5), low, high, high - low


class _Ewma:
    """Each value counts by its age, so there is nothing to forget: the state has one size for ever."""

    def begin(self) -> Held:
        return {"at": 0, "number": 0, "weight": 0.0, "mean": 0.0, "squares": 0.0, "window": 0}

    def before(self, held: Held, at: int, window_us: int) -> Before | None:
        if not held["number"]:
            held["at"] = at
            return None
        fade = math.exp((held["at"] - at) / window_us)
        held["at"] = at
        held["weight"] *= fade
        held["squares"] *= fade
        if not held["weight"]:  # so long ago that nothing is left of it
            held |= self.begin() | {"at": at}
            return None
        deviation = math.sqrt(held["squares"] / held["weight"])
        return held["number"], held["mean"], held["mean"], held["mean"], deviation

    def add(self, held: Held, at: int, value: float) -> None:  # noqa: ARG002 - ``before`` has seen the time
        held["number"] += 1
        held["weight"] += 1.0
        apart = value - held["mean"]
        held["mean"] += apart / held["weight"]
        held["squares"] += apart * (value - held["mean"])


_WAYS: dict[Algorithm, _ZScore | _Mad | _Iqr | _Ewma] = {
    "zscore": _ZScore(),
    "mad": _Mad(),
    "iqr": _Iqr(),
    "ewma": _Ewma(),
}


def _quantile(ordered: list[float], share: float) -> float:
    """Between the two values nearest to it, in proportion."""
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    low = ordered[below]
    if place == below:
        return low
    return low + (ordered[below + 1] - low) * (place - below)


def _median_distance(ordered: list[float], middle: float) -> float:
    """The median of the distances from the middle, which lie in two rows: to its left and to its right."""
    at = bisect_left(ordered, middle)
    last = len(ordered) - 1
    first, second = _nearest(ordered, middle, at, last // 2), _nearest(ordered, middle, at, -(-last // 2))
    return (first + second) / 2


def _nearest(ordered: list[float], middle: float, at: int, rank: int) -> float:
    """The distance with that rank, counted from 0; how many of them lie left is found by halving."""
    low, high = max(0, rank - (len(ordered) - at)), min(at, rank)
    while low < high:
        taken = (low + high) // 2  # of the left row; the rest of ``rank`` is of the right one
        if middle - ordered[at - 1 - taken] < ordered[at + rank - taken - 1] - middle:
            low = taken + 1
        else:
            high = taken
    left = middle - ordered[at - 1 - low] if low < at else math.inf
    right = ordered[at + rank - low] - middle if at + rank - low < len(ordered) else math.inf
    return min(left, right)
