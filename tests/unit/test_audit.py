"""``make check`` fails for a known vulnerability, and tells it from a service that cannot be reached."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.pages import ROOT

CLEAN: dict[str, Any] = {"dependencies": [{"name": "good", "version": "1.0", "vulns": []}], "fixes": []}
VULNERABLE: dict[str, Any] = {
    "dependencies": [
        {"name": "bad", "version": "1.0", "vulns": [
            {"id": "PYSEC-2026-1", "aliases": ["CVE-2026-1"], "fix_versions": ["1.1"], "description": "…"}]},
    ],
    "fixes": [],
}  # fmt: skip
CLEAN_NPM: dict[str, Any] = {"auditReportVersion": 2, "vulnerabilities": {}}
VULNERABLE_NPM: dict[str, Any] = {
    "auditReportVersion": 2,
    "vulnerabilities": {
        "bad": {
            "name": "bad", "severity": "high", "fixAvailable": True,
            "via": [{"url": "https://example.org/advisories/GHSA-1", "range": "<1.1", "title": "…"}],
        },
        "user-of-bad": {"name": "user-of-bad", "severity": "high", "fixAvailable": True, "via": ["bad"]},
    },
}  # fmt: skip
TODAY = datetime.datetime.now(datetime.UTC).date()


class Audit:
    """``tools/audit.py`` with programs that answer as the test says."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.allowed = folder / "allowed.toml"
        self.allowed.write_text("")
        self.answer("pip-audit", CLEAN)
        self.answer("npm", CLEAN_NPM)

    def answer(self, program: str, prints: dict[str, Any] | None, error: str = "") -> None:
        (self.folder / f"{program}.json").write_text("" if prints is None else json.dumps(prints))
        script = f"#!/bin/sh\ncat {self.folder}/{program}.json\necho '{error}' >&2\nexit 1\n"
        (self.folder / program).write_text(script)
        (self.folder / program).chmod(0o755)

    def run(self, **more: str) -> tuple[int, str]:
        environment = {**os.environ, "QUEENSTREAM_AUDIT": "", **more}
        environment |= {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        environment |= {"QUEENSTREAM_AUDIT_ALLOWED": str(self.allowed)}
        command = [sys.executable, "tools/audit.py"]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60)
        assert done.stderr == ""
        return done.returncode, done.stdout


@pytest.fixture
def audit(tmp_path: Path) -> Audit:
    return Audit(tmp_path)


def test_nothing_is_said_when_nothing_is_vulnerable(audit: Audit) -> None:
    assert audit.run() == (0, "")


def test_a_vulnerability_fails_with_what_fixes_it(audit: Audit) -> None:
    audit.answer("pip-audit", VULNERABLE)
    audit.answer("npm", VULNERABLE_NPM)
    code, said = audit.run()
    assert code == 1
    assert "uv.lock: bad 1.0: CVE-2026-1, PYSEC-2026-1; fixed in 1.1\n" in said
    assert "console/package-lock.json: bad <1.1: GHSA-1; npm audit fix, in console\n" in said
    assert "tests/browser/package-lock.json: bad" in said
    assert "tools/audit_allowed.toml" in said


@pytest.mark.parametrize(("days", "code"), [(0, 0), (-1, 1)])
def test_what_is_allowed_passes_until_its_day(audit: Audit, days: int, code: int) -> None:
    until = TODAY + datetime.timedelta(days)
    audit.allowed.write_text(f'[[allowed]]\nid = "CVE-2026-1"\nreason = "not used"\nuntil = {until}\n')
    audit.answer("pip-audit", VULNERABLE)
    found, said = audit.run()
    assert found == code
    assert ("(allowed: not used)" in said) == (code == 0)


SKIPPED = {"dependencies": [{"name": "any", "skip_reason": "not found"}], "fixes": []}


@pytest.mark.parametrize(("prints", "reason"), [(None, "no route to host"), (SKIPPED, "not found")])
def test_a_service_that_cannot_be_reached_is_said_and_fails_if_asked(
    audit: Audit, prints: dict[str, Any] | None, reason: str
) -> None:
    audit.answer("pip-audit", prints, "no route to host")
    audit.answer("npm", {"message": "405 Method Not Allowed"})
    code, said = audit.run()
    assert code == 0
    assert f"uv.lock: NOT AUDITED, the service cannot be reached: {reason}\n" in said
    assert "console/package-lock.json: NOT AUDITED, the service cannot be reached: 405 Method" in said
    assert audit.run(QUEENSTREAM_AUDIT="required")[0] == 1


def test_every_entry_of_our_list_has_a_reason_and_a_day() -> None:
    for entry in tomllib.loads((ROOT / "tools" / "audit_allowed.toml").read_text()).get("allowed", []):
        assert entry.keys() == {"id", "reason", "until"}
        assert entry["until"] <= TODAY + datetime.timedelta(days=180), "look again sooner"
