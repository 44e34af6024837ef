"""The jars of the servers that tests start, from Maven Central: each server has a pom in this folder.

>>> jars("kafka")  # doctest: +SKIP
PosixPath('/home/me/.cache/queenstream/kafka-5f1c3a90')
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path

from tests.servers import cache

_HERE = Path(__file__).parent
_SECONDS = 600


def names() -> list[str]:
    """All that there is a pom for."""
    return sorted(path.name.removesuffix(".pom.xml") for path in _HERE.glob("*.pom.xml"))


def jars(name: str) -> Path:
    """The folder with a server's jars; fetched once for each content of its pom and each version."""
    pom = _HERE / f"{name}.pom.xml"
    options = _options(name)
    key = hashlib.sha256(pom.read_bytes() + " ".join(options).encode()).hexdigest()[:8]
    return cache.provide(f"{name}-{key}", lambda folder: _fetch(pom, options, folder))


def _options(name: str) -> list[str]:
    """What a pom does not say itself: the version that goes with the Spark that is installed."""
    if name != "spark-kafka":
        return []
    from queenstream.engines.spark.versions import (
        kafka_version,  # loads PySpark, which the other servers do not need
    )

    return [f"-Dspark.version={kafka_version()}"]


def _fetch(pom: Path, options: list[str], folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise cache.Unavailable(
            f"{pom.name} needs Maven, and there is no mvn on the path: apt-get install maven"
        )
    command = [maven, "--quiet", "--batch-mode", "--file", str(pom), "dependency:copy-dependencies",
               f"-DoutputDirectory={folder}", "-DincludeScope=runtime", *options]  # fmt: skip
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise cache.Unavailable(f"Maven did not fetch {pom.name} within {_SECONDS} s") from None
    if done.returncode:
        told = next((line for line in done.stdout.splitlines() if "[ERROR]" in line), done.stderr)
        raise cache.Unavailable(f"Maven could not fetch {pom.name}: {told.strip()}")


def required(name: str) -> Path:
    """``jars`` for a test: without them it fails with the reason, or is left out if the user said so."""
    return cache.required(name, lambda: jars(name))
