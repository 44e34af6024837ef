"""Times in little memory: a histogram whose buckets grow with the value."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from itertools import accumulate
from math import ceil

_DIGIT_BITS = 10  # 1024 buckets for each doubling: three digits
_LIMIT_BITS = 42  # nanoseconds: more than an hour
_LIMIT = (1 << _LIMIT_BITS) - 1
_BUCKETS = (_LIMIT_BITS - _DIGIT_BITS + 1) << _DIGIT_BITS


def bucket_of(nanoseconds: int) -> int:
    """The bucket that a value falls into: below 2048 one for each value, then 1024 for each doubling."""
    shift = nanoseconds.bit_length() - _DIGIT_BITS - 1
    return nanoseconds if shift <= 0 else (shift << _DIGIT_BITS) + (nanoseconds >> shift)


def middle_of(bucket: int) -> float:
    """The value in nanoseconds that stands for a bucket: off by 0.05 % at most."""
    shift = (bucket >> _DIGIT_BITS) - 1
    if shift <= 0:
        return float(bucket)
    return (bucket - (shift << _DIGIT_BITS)) * (1 << shift) + ((1 << shift) - 1) / 2


class Histogram:
    """Durations in seconds, to three digits, in 270 kB whatever their number.

    >>> times = Histogram()
    >>> for milliseconds in range(1, 101):
    ...     times.add(milliseconds / 1000)
    >>> [f"{value:.3f}" for value in times.quantiles(0.5, 0.99, 1)]
    ['0.050', '0.099', '0.100']
    """

    def __init__(self) -> None:
        self.count = 0
        self._counts = array("Q", bytes(8 * _BUCKETS))
        self._lowest, self._highest = _LIMIT, 0

    def add(self, seconds: float) -> None:
        """Count one duration. One above 73 minutes counts as that long, one below zero as zero."""
        value = min(max(int(seconds * 1e9), 0), _LIMIT)
        if value < self._lowest:
            self._lowest = value
        if value > self._highest:
            self._highest = value
        self._counts[bucket_of(value)] += 1
        self.count += 1

    @property
    def highest(self) -> float:
        """The longest duration, exactly."""
        return self._highest / 1e9

    def quantiles(self, *shares: float) -> list[float]:
        """The durations in seconds that these shares (0 to 1) do not exceed; zeros if there are none."""
        if not self.count:
            return [0.0] * len(shares)
        first = bucket_of(self._lowest)
        sums = list(accumulate(self._counts[first : bucket_of(self._highest) + 1]))
        found = []
        for share in shares:
            rank = min(max(ceil(share * self.count), 1), self.count)
            value = middle_of(first + bisect_left(sums, rank))
            found.append(min(max(value, self._lowest), self._highest) / 1e9)
        return found
