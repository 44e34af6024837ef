"""Durations as people write them: ``500ms``, ``30s``, ``5m``, ``1h``, ``1d``, ``1w``, or seconds.

>>> from queenstream.core import durations
>>> durations.seconds("1.5h")
5400.0
>>> durations.format(5400)
'90m'
"""

from __future__ import annotations

import math
import re
from datetime import timedelta
from decimal import Decimal

from queenstream.errors import ConfigError

_MICROS_PER_UNIT = {
    "w": 7 * 86_400_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
}
_LONGEST = timedelta(days=36_500)
_WRITTEN = re.compile(r"([0-9]{1,20}(?:\.[0-9]{1,20})?) ?(ms|s|m|h|d|w)?")
_REMEDY = "write a number and a unit, such as 500ms, 30s, 5m, 1h, 1d or 1w"


def parse(text: str | float | timedelta) -> timedelta:
    """The duration that ``text`` names, exact to the microsecond; a number alone counts seconds.

    >>> parse("1.5h")
    datetime.timedelta(seconds=5400)
    >>> parse("90")
    datetime.timedelta(seconds=90)
    >>> parse("5 parsecs")
    Traceback (most recent call last):
    queenstream.errors.ConfigError: '5 parsecs' is not a duration; write a number and a unit, \
such as 500ms, 30s, 5m, 1h, 1d or 1w
    """
    if isinstance(text, timedelta):
        found = text
    elif isinstance(text, str):
        found = _from_text(text)
    else:
        found = _from_number(text)
    if found < timedelta(0):
        raise ConfigError(f"{_shown(text)} is before zero; a duration is 0 or more")
    if found > _LONGEST:
        raise ConfigError(f"{_shown(text)} is too long; the longest is {_LONGEST.days}d")
    return found


def seconds(text: str | float | timedelta) -> float:
    """The same, in seconds.

    >>> seconds("500ms")
    0.5
    >>> seconds("1w")
    604800.0
    """
    return parse(text).total_seconds()


def format(seconds: float | timedelta) -> str:
    """The shortest exact way to write it, which ``parse`` reads back.

    >>> format(300), format(0.25), format(timedelta(days=30)), format(0)
    ('5m', '250ms', '30d', '0s')
    """
    micros = parse(seconds) // timedelta(microseconds=1)
    if micros == 0:
        return "0s"
    for unit, size in _MICROS_PER_UNIT.items():
        if micros % size == 0:
            return f"{micros // size}{unit}"
    whole, rest = divmod(micros, 1_000)
    return f"{whole}.{rest:03}".rstrip("0") + "ms"


def _from_text(text: str) -> timedelta:
    match = _WRITTEN.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{_shown(text)} is not a duration; {_REMEDY}")
    # Decimal, so that 0.1s is 100 ms and not a hair more.
    micros = Decimal(match[1]) * _MICROS_PER_UNIT[match[2] or "s"]
    if micros != int(micros):
        raise ConfigError(f"{_shown(text)} is finer than a microsecond; round it")
    try:
        return timedelta(microseconds=int(micros))
    except OverflowError:
        return timedelta.max


def _from_number(number: float) -> timedelta:
    # True is an int to Python; as a duration it is a mistake.
    if isinstance(number, bool) or not math.isfinite(number):
        raise ConfigError(f"{_shown(number)} is not a duration; {_REMEDY}")
    try:
        return timedelta(seconds=number)
    except OverflowError:
        return timedelta.max if number > 0 else timedelta.min


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
