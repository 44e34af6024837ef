"""The servers under test: an embedded PostgreSQL, the broker on it, and peers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from queenstream import postgres

QUEEN = Path(sys.executable).with_name("queen")


class CannotRun(Exception):
    """Something that the benchmark needs is not to be had; the text says what."""


@dataclass(frozen=True)
class Stack:
    """A broker and its PostgreSQL."""

    address: str  # host:port
    broker_pid: int
    url: str
    postmaster_pid: int


@contextlib.contextmanager
def broker(url: str, *flags: str) -> Iterator[tuple[str, int]]:
    """``queen up`` on a database; gives host:port and the process id."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("QUEEN_")}
    process = subprocess.Popen(
        [QUEEN, "up", "--pg", url, "--port", "0", "--log-level", "warning", *flags],
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    try:
        assert process.stdout is not None
        readable, _, _ = select.select([process.stdout], [], [], 60)
        line = process.stdout.readline() if readable else ""
        if not line:
            raise CannotRun("the broker did not start; its log is above")
        yield json.loads(line)["address"].removeprefix("http://"), process.pid
    finally:
        process.terminate()
        try:
            process.wait(40)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def stack(*flags: str) -> Iterator[Stack]:
    """An embedded PostgreSQL with the project's settings, and a broker on it; gone afterwards."""
    with postgres.ephemeral() as server, broker(server.url, *flags) as (address, pid):
        yield Stack(address, pid, server.url, server.pid)


# Peers


def _package(name: str, program: str) -> str:
    """A program from Debian, installed if we may."""
    found = shutil.which(program)
    if found is None and os.geteuid() == 0 and shutil.which("apt-get"):
        print(f"installing {name} …", flush=True)
        # RUNLEVEL=1: nothing is started by the installation.
        quiet = {**os.environ, "RUNLEVEL": "1", "DEBIAN_FRONTEND": "noninteractive"}
        with contextlib.suppress(subprocess.SubprocessError):
            subprocess.run(
                ["apt-get", "install", "-y", "--no-install-recommends", name],
                env=quiet, timeout=180, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        found = shutil.which(program)
    if found is None:
        raise CannotRun(f"{program} is not installed; apt-get install {name}")
    return found


@contextlib.contextmanager
def redis() -> Iterator[tuple[str, str]]:
    """Redis with an append-only file that is fsynced before every answer; gives host:port and version."""
    program = _package("redis-server", "redis-server")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="queenstream-redis-")
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", folder, "--save", "",
         "--appendonly", "yes", "--appendfsync", "always", "--daemonize", "no"],
        stdout=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        for _ in range(100):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        else:
            raise CannotRun("redis-server did not start")
        yield f"127.0.0.1:{port}", version.split("v=")[-1].split()[0]
    finally:
        process.terminate()
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def pgmq_sql() -> tuple[str, str]:
    """The SQL of pgmq and its version, from the wheel of its Python client."""
    with tempfile.TemporaryDirectory() as folder:
        asked = [shutil.which("pip") or "pip", "download", "--no-deps", "-q", "-d", folder, "pgmq>=1.1"]
        try:
            subprocess.run(asked, check=True, timeout=60, stderr=subprocess.DEVNULL)
        except (OSError, subprocess.SubprocessError) as error:
            raise CannotRun(f"the wheel pgmq could not be fetched: {error}") from None
        for wheel in Path(folder).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                if "pgmq/sql/pgmq.sql" in archive.namelist():
                    version = archive.read("pgmq/sql/VERSION").decode().strip()
                    return archive.read("pgmq/sql/pgmq.sql").decode(), version
    raise CannotRun("the wheel pgmq does not hold pgmq/sql/pgmq.sql any more")
