"""The folder where the set-up step of the tests keeps what it downloads: servers' jars and a browser.

The folder is ``$QUEENSTREAM_CACHE`` or ``~/.cache/queenstream``. ``QUEENSTREAM_NO_SERVERS=1`` leaves out all
tests that need a download.

>>> provide("letters-1", lambda folder: (folder / "a").touch())  # doctest: +SKIP
PosixPath('/home/me/.cache/queenstream/letters-1')
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

OPT_OUT = "QUEENSTREAM_NO_SERVERS"


class Unavailable(Exception):
    """Something that the tests need could not be obtained; says what to do."""


def opted_out() -> bool:
    """Whether the user leaves out the tests that need downloads."""
    return os.environ.get(OPT_OUT) == "1"


def root() -> Path:
    """The cache folder."""
    configured = os.environ.get("QUEENSTREAM_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "queenstream"


def provide(name: str, fetch: Callable[[Path], None]) -> Path:
    """Return the folder ``name`` of the cache, which ``fetch`` fills the first time.

    The folder appears when it is complete, so several processes may ask at once and a failure leaves nothing.
    """
    place = root() / name
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=place.parent) as unfinished:
                content = Path(unfinished) / "content"
                content.mkdir()
                fetch(content)
                content.rename(place)
    return place


def required(needed: str, obtain: Callable[[], Path]) -> Path:
    """Obtain something for a test, which fails with the reason or, if the user opted out, is skipped."""
    if opted_out():
        pytest.skip(f"{OPT_OUT}=1 leaves out the tests that need {needed}")
    try:
        return obtain()
    except Unavailable as error:
        pytest.fail(f"{error} ({OPT_OUT}=1 leaves these tests out)", pytrace=False)
