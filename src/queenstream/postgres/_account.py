"""Who the server runs as. PostgreSQL refuses to run as root, so root lends it another account."""

from __future__ import annotations

import os
import pwd
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from queenstream.errors import PostgresError

# Accounts that exist on common systems. Making one is the administrator's business, not ours.
_LENT = ("postgres", "nobody")


@dataclass(frozen=True)
class Account:
    """The account of the server; ``uid`` and ``gid`` are None when it is our own."""

    name: str
    uid: int | None = None
    gid: int | None = None

    def run(
        self, argv: Sequence[str], *, timeout_seconds: float, new_session: bool = False
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this account and collect what it says; the exit code is the caller's."""
        return subprocess.run(  # noqa: S603 - arguments are a list and no shell parses them
            argv,
            user=self.uid,
            group=self.gid,
            extra_groups=None if self.uid is None else [],
            env=_environment(),
            # Our own working directory may be closed to that account.
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_seconds,
            start_new_session=new_session,
            check=False,
        )

    def own(self, descriptor: int) -> None:
        """Give an open file or folder to this account."""
        if self.uid is not None and self.gid is not None:
            os.fchown(descriptor, self.uid, self.gid)

    def own_tree(self, folder: Path) -> None:
        """Give a whole folder to this account, never following a link out of it."""
        if self.uid is None or self.gid is None:
            return
        for _, _, files, descriptor in os.fwalk(folder, follow_symlinks=False):
            os.fchown(descriptor, self.uid, self.gid)
            for name in files:
                os.chown(name, self.uid, self.gid, dir_fd=descriptor, follow_symlinks=False)

    def can_enter(self, folder: Path) -> bool:
        """Whether this account gets to a folder, through all the folders above it."""
        argv = ["/bin/sh", "-c", 'cd -P -- "$1"', "sh", str(folder)]
        return self.run(argv, timeout_seconds=10).returncode == 0


def account_for(data: Path) -> Account:
    """The account that runs the server of a data folder.

    Ourselves, unless we are root: then the folder's owner, so that a folder never changes hands,
    or a lent account when the folder is new or root's.
    """
    if os.geteuid() != 0:
        return Account(_name_of(os.geteuid()))
    try:
        owner = data.stat()
    except OSError:
        pass  # not there yet; a worse reason shows when it is made
    else:
        if owner.st_uid != 0:
            return _account(owner.st_uid, owner.st_gid)
    for name in _LENT:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise PostgresError(
        f"PostgreSQL does not run as root and there is no user {' or '.join(_LENT)} to lend it;"
        " run as an ordinary user, or give the data folder to one with chown"
    )


def _account(uid: int, gid: int) -> Account:
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        return Account(str(uid), uid, gid)
    return Account(entry.pw_name, uid, entry.pw_gid)


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _environment() -> dict[str, str]:
    # Nothing of ours but what programs need to run: a PGHOST or PGOPTIONS of the user would
    # redirect the tools, and our secrets are not for another account to read.
    kept = {name: os.environ[name] for name in ("PATH", "LD_LIBRARY_PATH") if name in os.environ}
    return {"PATH": os.defpath, **kept, "LC_ALL": "C"}
