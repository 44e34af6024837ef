"""Servers for tests, from Maven Central: each has a pom here, and its jars lie in a cache folder.

The folder is ``$QUEENSTREAM_CACHE`` or ``~/.cache/queenstream``. Jars are fetched once for each content of a
pom and placed whole, so that several processes may ask at once. ``make servers`` fetches all of them.

>>> jars("kafka")  # doctest: +SKIP
PosixPath('/home/me/.cache/queenstream/kafka-5f1c3a90')
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

_HERE = Path(__file__).parent
_SECONDS = 600
_OFF = "QUEENSTREAM_NO_SERVERS"


class Unreachable(Exception):
    """The jars could not be fetched."""


def names() -> list[str]:
    """All that there is a pom for."""
    return sorted(path.name.removesuffix(".pom.xml") for path in _HERE.glob("*.pom.xml"))


def cache() -> Path:
    """The folder for what is fetched."""
    told = os.environ.get("QUEENSTREAM_CACHE")
    return Path(told) if told else Path.home() / ".cache" / "queenstream"


def jars(name: str) -> Path:
    """The folder with a server's jars; fetched, if this is the first time."""
    pom = _HERE / f"{name}.pom.xml"
    place = cache() / f"{name}-{hashlib.sha256(pom.read_bytes()).hexdigest()[:8]}"
    if place.exists():
        return place
    place.parent.mkdir(parents=True, exist_ok=True)
    with (place.parent / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            _fetch(pom, place)
    return place


def _fetch(pom: Path, place: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unreachable(f"{pom.name} needs Maven, and there is no mvn on the path: apt-get install maven")
    with tempfile.TemporaryDirectory(prefix=f".{place.name}-", dir=place.parent) as unfinished:
        into = Path(unfinished) / "jars"
        command = [maven, "--quiet", "--batch-mode", "--file", str(pom), "dependency:copy-dependencies",
                   f"-DoutputDirectory={into}", "-DincludeScope=runtime"]  # fmt: skip
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except subprocess.TimeoutExpired:
            raise Unreachable(f"Maven did not fetch {pom.name} within {_SECONDS} s") from None
        if done.returncode:
            told = next((line for line in done.stdout.splitlines() if "[ERROR]" in line), done.stderr)
            raise Unreachable(f"Maven could not fetch {pom.name}: {told.strip()}")
        into.rename(place)


def required(name: str) -> Path:
    """``jars`` for a test: without them it fails with the reason, or is left out if the user said so."""
    if os.environ.get(_OFF) == "1":
        pytest.skip(f"{_OFF}=1 leaves out the tests that need {name}")
    try:
        return jars(name)
    except Unreachable as error:
        pytest.fail(f"{error} ({_OFF}=1 leaves these tests out)", pytrace=False)


def main() -> int:
    """Fetch all of them."""
    if os.environ.get(_OFF) == "1":
        return 0
    missing = 0
    for name in names():
        try:
            jars(name)
        except Unreachable as error:
            sys.stderr.write(f"{error}\n")
            missing += 1
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
