"""From what the operating system or PostgreSQL says to one line with a remedy."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from queenstream.errors import PostgresError

_FULL = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    # The hint under "wrote only 4096 of 8192 bytes", which names no error of the system.
    "Check free disk space",
)
_FULL_ERRNO = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_TAIL_LINES = 5


def from_output(what: str, output: str, data: Path, account_name: str) -> PostgresError:
    """Why a PostgreSQL program failed, from what it said."""
    # A server on a full disk cannot even write its log, so the disk is asked as well.
    if any(word in output for word in _FULL) or (not output.strip() and _is_full(data)):
        return disk_full(data)
    if "Permission denied" in output or "wrong ownership" in output:
        return no_permission(data, account_name)
    return PostgresError(f"{what}: {tail(output) or 'it said nothing'}")


def from_os_error(error: OSError, data: Path, account_name: str) -> PostgresError:
    """Why a file operation of ours failed."""
    if error.errno in _FULL_ERRNO:
        return disk_full(data)
    if isinstance(error, PermissionError):
        return no_permission(error.filename or data, account_name)
    return PostgresError(
        f"cannot use {error.filename or data}: {error.strerror or error};"
        " choose another data folder with --data"
    )


def disk_full(data: Path) -> PostgresError:
    return PostgresError(
        f"the disk of {data} is full (or over a quota or file size limit);"
        " free some space, or choose another data folder with --data"
    )


def no_permission(path: Path | str, account_name: str) -> PostgresError:
    return PostgresError(
        f"user {account_name} has no permission for {path};"
        " give it to that user with chown, or choose another data folder with --data"
    )


def tail(output: str) -> str:
    """The last lines of a log, as one line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " | ".join(lines[-_TAIL_LINES:])


def _is_full(data: Path) -> bool:
    try:
        return shutil.disk_usage(data).free < 1 << 20
    except OSError:
        return False
