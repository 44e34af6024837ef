"""Series of numbers with planted anomalies, to try detectors and thresholds on.

>>> made = SERIES["spikes"](seed=1)
>>> len(made.values), sum(made.planted)
(2000, 20)
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LENGTH = 2_000
LEVEL, NOISE = 20.0, 1.0  # what is usual: normally distributed around the level
SPIKES, SPIKE = 20, 8.0  # so many values, so many times the noise away
SHIFTS, SHIFT, ONSET = 4, 8.0, 5  # a shift is found if one of the first values after it is


@dataclass(frozen=True)
class Series:
    """Values, one a second, and which of them are anomalies. Those in one ``group`` are one event.

    ``groups``: for each value the number of its event, or None.
    """

    name: str
    values: Sequence[float]
    groups: Sequence[int | None]

    @property
    def planted(self) -> list[bool]:
        """Whether a value is (part of) an anomaly."""
        return [group is not None for group in self.groups]

    def quality(self, alarms: Sequence[bool]) -> tuple[float, float]:
        """Precision (how many alarms are right) and recall (how many events have an alarm).

        >>> series = Series("s", [0, 9, 9, 0], [None, 0, 0, None])
        >>> series.quality([False, False, True, True])
        (0.5, 1.0)
        """
        right = sum(alarm and planted for alarm, planted in zip(alarms, self.planted, strict=True))
        found = {
            group for alarm, group in zip(alarms, self.groups, strict=True) if alarm and group is not None
        }
        events = {group for group in self.groups if group is not None}
        return right / max(sum(alarms), 1), len(found) / max(len(events), 1)


def spikes(seed: int = 0) -> Series:
    """Single values far off, up or down."""
    return _with_spikes("spikes", seed, lambda _: 0.0)


def level_shifts(seed: int = 0) -> Series:
    """The level jumps and stays; the new level is usual after a while."""
    noise = random.Random(seed)  # noqa: S311 - a series to try things on
    width = LENGTH // (SHIFTS + 1)
    values: list[float] = []
    groups: list[int | None] = []
    for at in range(LENGTH):
        step, since = divmod(at, width)
        values.append(LEVEL + SHIFT * NOISE * (step % 2) + noise.gauss(0, NOISE))
        groups.append(step if 0 < step <= SHIFTS and since < ONSET else None)
    return Series("level shifts", values, groups)


def drift(seed: int = 0) -> Series:
    """The level moves slowly by thirty times the noise, which is no anomaly; the spikes in it are."""
    return _with_spikes("drift", seed, lambda at: 30 * NOISE * at / LENGTH)


def seasons(seed: int = 0) -> Series:
    """The level goes up and down by four times the noise every ten minutes; only the spikes in it count."""
    return _with_spikes("seasons", seed, lambda at: 4 * NOISE * math.sin(2 * math.pi * at / 600))


def _with_spikes(name: str, seed: int, level: Callable[[int], float]) -> Series:
    noise = random.Random(seed)  # noqa: S311 - a series to try things on
    places = {at: number for number, at in enumerate(noise.sample(range(200, LENGTH), SPIKES))}
    values = [
        LEVEL
        + level(at)
        + noise.gauss(0, NOISE)
        + (noise.choice((-1, 1)) * SPIKE * NOISE if at in places else 0)
        for at in range(LENGTH)
    ]
    return Series(name, values, [places.get(at) for at in range(LENGTH)])


SERIES: dict[str, Callable[..., Series]] = {
    "spikes": spikes,
    "level shifts": level_shifts,
    "drift": drift,
    "seasons": seasons,
}
"""All of them, by name."""
