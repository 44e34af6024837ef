"""The server as a process: found by its pid file, told from strangers, cleared when orphaned."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from queenstream.errors import PostgresError

_POLL_SECONDS = 0.01


@dataclass(frozen=True)
class Postmaster:
    """What ``postmaster.pid`` says about a server."""

    pid: int
    port: int
    socket: Path
    listens: bool
    status: str


def read_pid_file(data: Path) -> Postmaster | None:
    """The pid file of a data folder, of a live server or left by a dead one; None without one."""
    try:
        text = (data / "postmaster.pid").read_text(errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    # pid, folder, start time, port, socket folder, listen address, shared memory, status. A
    # server that starts writes them one after the other, so the later lines may be missing.
    lines = [line.strip() for line in text.splitlines()] + [""] * 8
    if not lines[0].lstrip("-").isdecimal():
        return None
    return Postmaster(
        # Negative for a single-user session; it counts just the same.
        pid=abs(int(lines[0])),
        port=int(lines[3]) if lines[3].isdecimal() else 0,
        socket=Path(lines[4]),
        listens=bool(lines[5]),
        status=lines[7],
    )


def running(data: Path) -> Postmaster | None:
    """The live server of a data folder, ready or not."""
    found = read_pid_file(data)
    return found if found and belongs(found.pid, data) else None


def belongs(pid: int, data: Path) -> bool:
    """Whether a pid is a living process of this folder's server, and not a number used again.

    Every process of a server works inside its data folder.
    """
    process = Path("/proc", str(pid))
    try:
        return (
            (process / "comm").read_text().strip() == "postgres"
            and lives(pid)
            and os.path.samestat((process / "cwd").stat(), data.stat())
        )
    except OSError:
        return False


def lives(pid: int) -> bool:
    """Whether a process runs. One that ended and was not collected yet does not."""
    try:
        state = Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def wait_gone(pid: int, data: Path, deadline: float) -> bool:
    """Wait until a process has ended; False when it still lives at the deadline."""
    while belongs(pid, data):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    # As the first process of a container we inherit the orphans, and must collect them.
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
    return True


def wait_settled(data: Path, deadline: float) -> Postmaster | None:
    """The server once it is ready; None once there is none, or it has ended.

    Raises PostgresError when neither comes about in time.
    """
    while (found := running(data)) and found.status != "ready":
        if time.monotonic() > deadline:
            raise PostgresError(
                f"PostgreSQL (pid {found.pid}) in {data} is still {found.status or 'starting'};"
                f" after a crash it may have much to replay: see {data / 'postgres.log'},"
                " then start again"
            )
        time.sleep(_POLL_SECONDS)
    return found


def end_all(data: Path, *, grace_seconds: float = 1.0) -> None:
    """End what is left of a server in a data folder whose postmaster is gone.

    Orphans notice by themselves and leave, except busy ones. They hold the shared memory, and no
    new server can start before it is free. Their work is lost either way: recovery undoes it.
    """
    for number in (0, signal.SIGQUIT, signal.SIGKILL):
        deadline = time.monotonic() + grace_seconds
        for pid in _members(data):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while members := _members(data):
            if time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        if not members:
            return
    raise PostgresError(
        f"processes {members} of a dead server still use {data} and do not end;"
        " see what they wait for (a stalled disk?), or restart the machine"
    )


def _members(data: Path) -> list[int]:
    pids = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    return [pid for pid in pids if belongs(pid, data)]
