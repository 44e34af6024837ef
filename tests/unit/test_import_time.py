"""``import queenstream`` costs little: what is heavy is loaded by who uses it."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

ALLOWED_SECONDS = 0.150
BEST_OF = 5


def run(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, text=True
    ).stdout


def seconds(code: str) -> float:
    """Of the processor, for a whole interpreter; the best of several, as others may be using the machine."""
    taken = []
    for _ in range(BEST_OF):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        run(code)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return min(taken)


def test_an_import_takes_little_longer_than_a_bare_interpreter() -> None:
    assert seconds("import queenstream") - seconds("pass") < ALLOWED_SECONDS


@pytest.mark.parametrize(
    "code",
    [
        "import queenstream",
        "from queenstream import *",
        "import queenstream.testing.pytest_plugin",
        "import queenstream.engines.local.engine",
    ],
)
def test_an_import_loads_no_spark(code: str) -> None:
    loaded = run(f"{code}\nimport sys\nprint(*sys.modules)").split()
    assert "queenstream" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"pyspark", "py4j", "pandas", "pyarrow"}
