"""What ``make dist`` builds: a wheel that installs into an empty environment, and runs there."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.pages import ROOT
from tests.processes import clean_environment

pytestmark = pytest.mark.slow

STATIC = ROOT / "src" / "queenstream" / "broker" / "static"


def uv(*args: str | Path) -> None:
    """uv as the Makefile finds it."""
    program = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    done = subprocess.run([program, *args], cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    uv("build", "--wheel", "--out-dir", folder)
    [built] = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def programs(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, what it depends on, and nothing else."""
    folder = tmp_path_factory.mktemp("empty") / "env"
    uv("venv", "--python", sys.executable, folder)
    uv("pip", "install", "--python", folder / "bin" / "python", wheel)
    return folder / "bin"


@pytest.fixture
def address(programs: Path, tmp_path: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [programs / "queen", "up", "--ephemeral", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=clean_environment(),
    )
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["address"])
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_it_has_what_is_no_python(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert "queenstream/py.typed" in names
    package = ROOT / "src" / "queenstream"
    wanted = {*package.rglob("*.sql"), *(path for path in STATIC.rglob("*") if path.is_file())}
    assert {str(path.relative_to(package.parent)) for path in wanted} <= names


def test_it_runs_in_an_empty_environment(address: str, programs: Path, tmp_path: Path) -> None:
    known = clean_environment(QUEEN_URL=address)

    def queen(*args: str) -> str:
        run = subprocess.run(
            [programs / "queen", *args], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=known
        )
        assert (run.returncode, run.stderr) == (0, "")
        return run.stdout

    queen("push", "jobs", '{"n": 1}')
    assert json.loads(queen("pop", "jobs", "--group", "workers"))["data"] == {"n": 1}
    assert queen("--version").split()[-1][0].isdigit()
    page = httpx.get(address, timeout=60)
    assert page.headers["content-type"].startswith("text/html") == STATIC.exists(), page.text
