"""Real processes for tests: ``queen up``, and a PostgreSQL that is not the embedded one."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import pwd
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

QUEEN = str(Path(sys.executable).with_name("queen"))
_SUMMARY = re.compile(r"^\S.* after .+: [\d,]+ records? read, .+ written\n(?:\n|  .*\n)*", re.MULTILINE)


def clean_environment(**more: str) -> dict[str, str]:
    """Ours without what would configure a broker."""
    return {k: v for k, v in os.environ.items() if not k.startswith("QUEEN_")} | more


class Up:
    """A running ``queen up``."""

    def __init__(self, *args: str, **environment: str) -> None:
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            [QUEEN, "up", *args],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=clean_environment(**environment),
        )

    def ready(self, timeout: float = 30) -> str:
        """Wait until it says so; gives its address."""
        assert self.process.stdout is not None
        readable, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if readable else ""
        if not line:
            self.process.kill()
            raise AssertionError(f"queen up did not get ready: {self.process.communicate()[1]}")
        self.ready_seconds = time.monotonic() - self.started
        answer: dict[str, Any] = json.loads(line)
        assert answer["event"] == "ready"
        return str(answer["address"])

    def stop(self, number: int = signal.SIGTERM, timeout: float = 30) -> int:
        """Send a signal, wait, give the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        self.stdout, self.stderr = self.process.communicate(timeout=timeout)
        return self.process.returncode


@contextlib.contextmanager
def up(*args: str, **environment: str) -> Iterator[Up]:
    """``queen up`` with these flags, ended at the end whatever happens."""
    running = Up(*args, **environment)
    try:
        yield running
    finally:
        running.stop()


def without_summaries(errors: str) -> str:
    """What a program wrote to standard error beside the summaries of its runs."""
    return _SUMMARY.sub("", errors)


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A temporary folder that another user may enter: PostgreSQL does not run as root."""
    path = Path(tempfile.mkdtemp(prefix="queenstream-test-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def other_binaries() -> Path:
    """The oldest PostgreSQL from 15 on that the machine has, or the 16 of the wheel ``pgserver``."""
    programs = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    found = sorted((int(path.parent.parent.name), path.parent) for path in programs)
    for major, path in found:
        if major >= 15:
            return path
    spec = importlib.util.find_spec("pgserver")
    assert spec is not None, "install PostgreSQL 15 or newer (apt-get install postgresql)"
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


@contextlib.contextmanager
def other_postgres() -> Iterator[str]:
    """A server of the user's own: another version, over TCP, with a password. Gives its URL."""
    port = free_port()
    password = "p@ss word"
    user: dict[str, Any] = {}
    with folder() as place:
        if os.geteuid() == 0:
            names = {entry.pw_name for entry in pwd.getpwall()}
            account = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
            user = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
            os.chown(place, account.pw_uid, account.pw_gid)
        binaries = other_binaries()
        secret = place / "secret"
        secret.write_text(password)
        secret.chmod(0o644)
        data = place / "data"
        run: dict[str, Any] = {"check": True, "stdout": subprocess.DEVNULL, "cwd": place, **user}
        subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "owner", "-A", "scram-sha-256", f"--pwfile={secret}",
             "-E", "UTF8", "--locale=C", "--no-sync"],
            **run,
        )  # fmt: skip
        options = f"-k {place} -p {port} -c listen_addresses=127.0.0.1"
        subprocess.run(
            [binaries / "pg_ctl", "-D", data, "-w", "-l", place / "log", "-o", options, "start"], **run
        )
        try:
            yield f"postgresql://owner:p%40ss%20word@127.0.0.1:{port}/postgres"
        finally:
            subprocess.run([binaries / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **run)
