"""The set-up step of the tests says what is missing, all of it, before the first test."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.pages import ROOT


def run_setup(path: Path, cache: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The set-up step on a machine whose programs are those of ``path``, and whose cache is empty."""
    environment = {
        **os.environ,
        "PATH": str(path),
        "QUEENSTREAM_CACHE": str(cache),
        "QUEENSTREAM_NO_SERVERS": "",
        **more,
    }
    return subprocess.run(
        [sys.executable, "-m", "tests.servers"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_machine_that_has_nothing_is_told_all_that_is_missing(tmp_path: Path) -> None:
    done = run_setup(tmp_path, tmp_path / "cache")
    assert done.returncode == 1
    for missing in ("node", "npm", "java", "keytool", "mvn"):
        assert f"- {missing} is not on the path: install " in done.stderr
    for fetched in ("kafka.pom.xml", "cassandra.pom.xml", "spark-kafka.pom.xml", "Chromium"):
        assert fetched in done.stderr
    assert "QUEENSTREAM_NO_SERVERS=1 make test" in done.stderr


def test_a_program_that_is_too_old_is_named_with_its_version(tmp_path: Path) -> None:
    programs = {"node": "echo v18.19.1", "java": "echo 'openjdk version \"11.0.22\" 2024-01-16' >&2"}
    for name, prints in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{prints}\n")
        (tmp_path / name).chmod(0o755)
    done = run_setup(tmp_path, tmp_path / "cache")
    assert f"{tmp_path / 'node'} is 18.19.1: install Node.js 20.19 or newer" in done.stderr
    assert f"{tmp_path / 'java'} is 11.0.22: install a JDK of Java 17" in done.stderr


def test_a_registry_that_cannot_be_reached_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    for name, prints in {
        "npm": "echo 'npm error network is unreachable' >&2; exit 1",
        "mvn": "echo '[ERROR] unknown host'; exit 1",
    }.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{prints}\n")
        (tmp_path / name).chmod(0o755)
    done = run_setup(tmp_path, tmp_path / "cache")
    assert done.returncode == 1
    assert "Maven could not fetch kafka.pom.xml: [ERROR] unknown host" in done.stderr
    assert "npm could not fetch Chromium: npm error network is unreachable" in done.stderr
    assert [each.name for each in (tmp_path / "cache").iterdir() if each.suffix != ".lock"] == []


def test_who_wants_no_servers_needs_none_of_it(tmp_path: Path) -> None:
    done = run_setup(tmp_path, tmp_path / "cache", QUEENSTREAM_NO_SERVERS="1")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
