"""Fails if a dependency has a known vulnerability that ``tools/audit_allowed.toml`` does not allow.

``pip-audit`` looks up what is in ``uv.lock``, ``npm audit`` what is in the ``package-lock.json`` files. A
service that cannot be reached, as on a closed network, is reported; it fails the check only if
``QUEENSTREAM_AUDIT`` is ``required``.
"""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ALLOWED = ROOT / "tools" / "audit_allowed.toml"
LOCKS = ("console", "tests/browser")
_SECONDS = 180


class Unreachable(Exception):
    """A service that knows vulnerabilities did not answer."""


@dataclass(frozen=True)
class Finding:
    """A vulnerability of a package."""

    package: str
    names: frozenset[str]
    remedy: str

    def __str__(self) -> str:
        return f"{self.package}: {', '.join(sorted(self.names))}; {self.remedy}"


def _output(command: list[str], folder: Path) -> Any:
    """The JSON that a program prints; what it says on standard error is the reason if it prints none."""
    try:
        done = subprocess.run(  # noqa: S603
            command, cwd=folder, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except FileNotFoundError:
        raise Unreachable(f"there is no {command[0]} on the path") from None
    except subprocess.TimeoutExpired:
        raise Unreachable(f"no answer within {_SECONDS} s") from None
    try:
        return json.loads(done.stdout)
    except ValueError:
        said = (done.stderr or done.stdout).strip().splitlines() or [f"exit code {done.returncode}"]
        raise Unreachable(said[-1][:300]) from None


def audit_python() -> Iterator[Finding]:
    """What ``pip-audit`` finds among the locked packages of all extras and groups."""
    uv = shutil.which("uv") or str(ROOT / ".tools" / "bin" / "uv")
    with tempfile.TemporaryDirectory() as folder:
        locked = Path(folder) / "requirements.txt"
        export = [uv, "export", "--quiet", "--frozen", "--all-extras", "--all-groups", "--no-emit-project"]
        subprocess.run([*export, f"--output-file={locked}"], cwd=ROOT, check=True)  # noqa: S603
        found = _output(
            ["pip-audit", "--disable-pip", "--no-deps", f"--requirement={locked}", "--format=json",
             "--vulnerability-service=osv", "--progress-spinner=off", "--timeout=15"],
            ROOT,
        )  # fmt: skip
    skipped = [each["skip_reason"] for each in found["dependencies"] if "skip_reason" in each]
    if skipped:
        raise Unreachable(skipped[0])
    for each in found["dependencies"]:
        for known in each["vulns"]:
            fixed = known["fix_versions"]
            remedy = f"fixed in {' and '.join(fixed)}" if fixed else "no release fixes it"
            yield Finding(
                f"{each['name']} {each['version']}", frozenset({known["id"], *known["aliases"]}), remedy
            )


def audit_npm(folder: Path) -> Iterator[Finding]:
    """What ``npm audit`` finds in a lock file."""
    command = ["npm", "audit", "--json", "--package-lock-only", "--fetch-retries=0", "--fetch-timeout=20000"]
    found = _output(command, folder)
    if "vulnerabilities" not in found:
        raise Unreachable(found.get("message") or "the registry does not answer audits")
    for each in found["vulnerabilities"].values():
        fix = each["fixAvailable"]
        remedy = f"npm audit fix, in {folder.name}" if fix is True else "replace it or override its version"
        for via in each["via"]:
            if isinstance(via, dict):  # else the name of the package that has it
                yield Finding(
                    f"{each['name']} {via['range']}", frozenset({via["url"].rpartition("/")[2]}), remedy
                )


def read_allowed(path: Path, today: datetime.date) -> dict[str, str]:
    """The identifiers that are allowed today, with the reason of each.

    >>> read_allowed(ALLOWED, datetime.date(2026, 11, 1))
    {}
    """
    entries = tomllib.loads(path.read_text(encoding="utf-8")).get("allowed", [])
    return {each["id"]: each["reason"] for each in entries if today <= each["until"]}


def main() -> int:
    """Audit everything; 1 if something is vulnerable."""
    today = datetime.datetime.now(datetime.UTC).date()
    allowed = read_allowed(Path(os.environ.get("QUEENSTREAM_AUDIT_ALLOWED", ALLOWED)), today)
    audits = {"uv.lock": audit_python} | {
        f"{name}/package-lock.json": lambda name=name: audit_npm(ROOT / name) for name in LOCKS
    }
    vulnerable = unknown = False
    for lock, audit in audits.items():
        try:
            for finding in sorted(set(audit()), key=str):
                reasons = [allowed[each] for each in finding.names if each in allowed]
                sys.stdout.write(f"{lock}: {finding}" + (f" (allowed: {reasons[0]})\n" if reasons else "\n"))
                vulnerable |= not reasons
        except Unreachable as error:
            sys.stdout.write(f"{lock}: NOT AUDITED, the service cannot be reached: {error}\n")
            unknown = True
    if vulnerable:
        sys.stdout.write(
            "Update the packages above, or allow them in tools/audit_allowed.toml with a reason and a date.\n"
        )
    return int(vulnerable or (unknown and os.environ.get("QUEENSTREAM_AUDIT") == "required"))


if __name__ == "__main__":
    sys.exit(main())
