"""What ``make dist`` builds: a wheel that installs into an empty environment, and runs there."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.pages import ROOT
from tests.processes import clean_environment

pytestmark = pytest.mark.slow

STATIC = ROOT / "src" / "queenstream" / "broker" / "static"
PYTHONS = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', (ROOT / "pyproject.toml").read_text())

# What somebody does first, with another Python: messages, a stream, a pipeline.
FIRST_STEPS = """
import sys
import tomllib
from queenstream import Pipeline, Queen, Queue, count, sum_, tumbling

with Queen(sys.argv[1]) as queen:
    orders = queen.queue("orders")
    at = "2026-01-31T12:0{}:00Z"
    orders.partition("ann").push([{"amount": 5 * n, "at": at.format(n)} for n in range(4)])
    queen.stream("minutes").sources(["orders"]).tumbling_time("2m").event_time("data.at").define()
    [message] = orders.group("one").pop()
    message.ack()
    windows = queen.consumer("minutes", "totals")
    windows.process(lambda window: print(window.aggregate(sum=["data.amount"])["sum"]), limit=1)
totals = (
    Pipeline("totals")
    .source(Queue("orders", schema="amount INT, at TIMESTAMP"))
    .transform("doubled", lambda order: {**order, "amount": 2 * order["amount"]})
    .window(tumbling("2m"), time="at")
    .aggregate(orders=count(), total=sum_("amount"))
    .to(lambda row: print(row["orders"], row["total"]))
)
totals.run(engine="local", until="caught_up", url=sys.argv[1], checkpoint="state", summary=False)
print(message.data["amount"], *sys.version_info[:2])
"""


def other_pythons() -> dict[str, str]:
    """Of the Pythons that we say we work with, those that the machine has beside the one of the tests."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = {}
    for version in PYTHONS:
        if version == f"{sys.version_info.major}.{sys.version_info.minor}":
            continue
        candidates = [str(path) for path in sorted(versions.glob(f"{version}.*/bin/python{version}"))]
        on_path = shutil.which(f"python{version}")
        if on_path and Path(on_path).parent.name != "shims":  # pyenv's may stand for nothing
            candidates.append(on_path)
        if candidates:
            found[version] = candidates[0]
    return found


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


@contextlib.contextmanager
def running(programs: Path, folder: Path) -> Iterator[str]:
    """The address of a broker of that environment."""
    process = subprocess.Popen(
        [programs / "queen", "up", "--ephemeral", "--port", "0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=folder,
        env=clean_environment(),
    )
    try:
        assert process.stdout is not None
        yield str(json.loads(process.stdout.readline())["address"])
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture
def address(programs: Path, tmp_path: Path) -> Iterator[str]:
    with running(programs, tmp_path) as started:
        yield started


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


@pytest.mark.parametrize(("version", "python"), other_pythons().items(), ids=other_pythons())
def test_it_runs_on_other_pythons(version: str, python: str, wheel: Path, tmp_path: Path) -> None:
    """On each Python of the classifiers that the machine has; one that it has not is not among these tests.

    The long form (``QUEENSTREAM_LONG=1``) runs the unit tests there, too, against the wheel.
    """
    long = "QUEENSTREAM_LONG" in os.environ
    environment = tmp_path / "env"
    uv("venv", "--python", python, environment)
    more = ["--group", "dev"] if long else []
    what = f"queenstream{'[all,java]' if long else ''} @ {wheel.as_uri()}"
    uv("pip", "install", "--python", environment / "bin" / "python", *more, what)
    programs = environment / "bin"

    def run(*args: str | Path, cwd: Path = tmp_path) -> str:
        done = subprocess.run(
            args, capture_output=True, text=True, timeout=900, cwd=cwd, env=clean_environment()
        )
        assert (done.returncode, done.stderr) == (0, ""), done.stdout
        return done.stdout

    assert run(programs / "queen", "--version").split()[-1] == wheel.name.split("-")[1]
    with running(programs, tmp_path) as address:
        said = run(programs / "python", "-W", "error", "-c", FIRST_STEPS, address)
    major, minor = version.split(".")
    assert said.splitlines() == ["{'data.amount': 5}", "2 10", f"0 {major} {minor}"]
    if long:
        run(programs / "pytest", "-q", "-p", "no:cacheprovider", "-n0", "tests/unit", cwd=ROOT)


def test_the_bill_of_materials_lists_what_is_in_it_and_what_it_needs(wheel: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "tools" / "bill_of_materials.py", wheel],
        check=True, capture_output=True, timeout=100,
    )  # fmt: skip
    bill = json.loads(wheel.with_suffix(".cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")
    about = bill["metadata"]["component"]
    assert (about["name"], about["version"]) == ("queenstream", wheel.name.split("-")[1])
    purls = {each["purl"] for each in bill["components"]}
    assert all(each["version"] for each in bill["components"])
    locked = {
        each["name"]: each.get("version") for each in tomllib.loads((ROOT / "uv.lock").read_text())["package"]
    }
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [each for extra in project["optional-dependencies"].values() for each in extra]
    needed = {re.split(r"[^\w.-]", each)[0] for each in [*project["dependencies"], *extras]} - {"queenstream"}
    assert {f"pkg:pypi/{name}@{locked[name]}" for name in needed} <= purls
    assert {purl.split("@")[0] for purl in purls} >= {"pkg:npm/svelte", "pkg:npm/uplot"}
    assert not {purl.split("@")[0] for purl in purls} & {"pkg:pypi/pytest", "pkg:npm/vitest"}
    known = {about["bom-ref"], *(each["bom-ref"] for each in bill["components"])}
    assert {
        ref for each in bill["dependencies"] for ref in [each["ref"], *each.get("dependsOn", ())]
    } <= known
