"""Runs the benchmarks and makes one page of them: tables, plots, the machine, versions and commands.

    python tools/bench_report.py                   the quick form of all
    python tools/bench_report.py --full client     the long form of one

The page is ``build/benchmarks.html``; it needs nothing else to be looked at.
"""

from __future__ import annotations

import argparse
import html
import json
import subprocess
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "build" / "benchmarks.html"
LONGEST_SECONDS = 3_600  # of one benchmark
SHOWN = ("queenstream", "asyncpg", "msgspec", "uvloop", "pyspark", "pyarrow", "bytewax")
_BAR, _MOST = 320, 2.0  # pixels for a value that is twice its target; more is cut off

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
pre { background: #8881; padding: .7rem; overflow-x: auto } table { border-collapse: collapse }
td, th { padding: .2rem .8rem .2rem 0; text-align: left; vertical-align: middle }
.missed { color: #b3261e } .reached { color: #1a7340 } small { opacity: .75 }
@media (prefers-color-scheme: dark) { body { background: #14161c; color: #e4e6ea }
  .missed { color: #ff8a80 } .reached { color: #63d394 } }
"""


@dataclass
class Result:
    """What one benchmark printed, and what it found; ``error``: why it has no figures."""

    name: str
    command: str
    text: str
    found: dict[str, Any] = field(default_factory=dict)
    error: str | None = None

    @property
    def question(self) -> str:
        """Its first line."""
        return self.text.partition("\n")[0]


def result_of(name: str, command: str, printed: str, code: int) -> Result:
    """A benchmark's output, taken apart: the tables for people, and its last line, which is JSON.

    >>> result_of("a", "python a.py", 'how fast\\n{"targets": {}}\\n', 0).question
    'how fast'
    """
    lines = printed.rstrip().splitlines()
    if code == 0 and lines and lines[-1].startswith("{"):
        return Result(name, command, "\n".join(lines[:-1]), json.loads(lines[-1]))
    return Result(name, command, "\n".join(lines), error=f"it ended with exit code {code}")


def measure(name: str, *, full: bool) -> Result:
    """Run one, showing what it prints."""
    arguments = [f"benchmarks/{name}.py", *([] if full else ["--quick"])]
    print(f"== {' '.join(arguments)}", flush=True)
    printed: list[str] = []
    with subprocess.Popen(
        [sys.executable, *arguments], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            printed.append(line)
        code = process.wait(LONGEST_SECONDS)
    return result_of(name, f"python {' '.join(arguments)}", "".join(printed), code)


def page(results: list[Result], versions: dict[str, str], at: datetime) -> str:
    """The page as HTML. What benchmarks printed is text, never markup."""
    machine: dict[str, Any] = next((each.found["machine"] for each in results if "machine" in each.found), {})
    about = ", ".join(f"{name} {value}" for name, value in machine.items())
    packages = ", ".join(f"{name} {value}" for name, value in versions.items())
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Queenstream: benchmarks</title>",
        f"<meta name=viewport content='width=device-width'><style>{STYLE}</style>",
        "<h1>Benchmarks</h1>",
        f"<p>{html.escape(about)}<br><small>{html.escape(packages)}; {at:%Y-%m-%d %H:%M} UTC</small></p>",
        "<p>A bar is a value against its target: the line is the target, and beyond it is good. "
        "Ratios of one run repeat; figures alone are the machine's.</p>",
        "<table><tr><th>what<th>value<th>target<th></tr>",
        *(_row(name, told) for each in results for name, told in each.found.get("targets", {}).items()),
        "</table>",
        *map(_section, results),
    ]
    return "\n".join(parts)


def _row(name: str, told: dict[str, Any]) -> str:
    value, verdict = float(told["value"]), str(told["verdict"])
    return (
        f"<tr><td>{html.escape(name)}<td class={html.escape(verdict)}>{value:,.3g} {html.escape(verdict)}"
        f"<td>{html.escape(str(told['target']))}<td>{_bar(value, str(told['target']), verdict)}</tr>"
    )


def _bar(value: float, target: str, verdict: str) -> str:
    """How good a value is: longer is better, also where less is."""
    sign, _, number = target.partition(" ")
    wanted = float(number)
    good = value / wanted if sign == "≥" else wanted / value if value else _MOST
    length = round(min(good, _MOST) / _MOST * _BAR)
    line = _BAR // 2
    return (
        f"<svg class='{html.escape(verdict)}' width={_BAR} height=16 role=img "
        f"aria-label='{good:.2f} of the target'>"
        f"<rect y=3 width={length} height=10 fill=currentColor opacity=.6 />"
        f"<line x1={line} x2={line} y2=16 stroke=currentColor /></svg>"
    )


def _section(each: Result) -> str:
    wrong = "" if each.error is None else f"<p class=missed>{html.escape(each.error)}</p>"
    return (
        f"<h2>{html.escape(each.name)}</h2>{wrong}<p><code>{html.escape(each.command)}</code></p>"
        f"<pre>{html.escape(each.text)}</pre>"
    )


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in SHOWN:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def main() -> None:
    """The command line."""
    known = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
    parser = argparse.ArgumentParser(description="run benchmarks, and make a page of them")
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"of {', '.join(known)}; all if none is given"
    )
    parser.add_argument("--full", action="store_true", help="the long forms")
    options = parser.parse_args()
    for name in options.names:
        if name not in known:
            parser.error(f"there is no benchmark {name}; there are {', '.join(known)}")
    results = [measure(name, full=options.full) for name in options.names or known]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(results, _versions(), datetime.now(UTC)))
    print(f"\n{PAGE.relative_to(ROOT)} has all of it")
    sys.exit(1 if any(each.error for each in results) else 0)


if __name__ == "__main__":
    main()
