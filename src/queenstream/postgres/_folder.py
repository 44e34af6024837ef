"""The data folder: locked, checked, made whole or not at all, and where its socket goes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import re
import secrets
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from queenstream.errors import PostgresError
from queenstream.postgres import _explain
from queenstream.postgres._account import Account
from queenstream.postgres._binaries import Binaries

CONF = "queenstream.conf"
LOG = "postgres.log"
_PASSWORD = "queenstream.password"  # noqa: S105 - the name of the file
_LOG_KEPT_BYTES = 16 << 20
_LOCK_POLL_SECONDS = 0.02

# A socket's whole path fits in 107 bytes on Linux, and less elsewhere.
_SOCKET_FOLDER_BYTES = 80
_SOCKET_FOLDER_SAFE = re.compile(r"[A-Za-z0-9/._+=~-]+")
_SHORT_PREFIX = "queenstream-socket-"


def resolve(data: Path | str) -> Path:
    """The one true path of a data folder, so that all who mean it lock the same file."""
    path = Path(data).expanduser().resolve()
    if not path.name or "\n" in str(path):
        raise PostgresError(f"{str(path)!r} cannot be a data folder; choose another with --data")
    return path


@contextlib.contextmanager
def locked(data: Path, deadline: float) -> Iterator[None]:
    """Hold the data folder's lock: one process at a time starts or stops its server."""
    descriptor = _open_lock(data.with_name(f".{data.name}.lock"))
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise PostgresError(
                        f"another process is still starting or stopping PostgreSQL in {data};"
                        " wait for it, or end it"
                    ) from None
                time.sleep(_LOCK_POLL_SECONDS)
        yield
    finally:
        # Never removed: who waits for a removed file would hold a lock that nobody else sees.
        os.close(descriptor)


def _open_lock(path: Path) -> int:
    # Two steps, because root may not "create" another's existing file in a shared folder.
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        with contextlib.suppress(FileNotFoundError):
            return os.open(path, flags)
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)


def make_parents(data: Path) -> None:
    """Make the folders above the data folder, open enough for the account that root lends."""
    missing = [folder for folder in data.parents if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(exist_ok=True)
        if os.geteuid() == 0:
            folder.chmod(0o755)


def is_made(data: Path, major: int) -> bool:
    """True for a data folder of ours, False for one still to be made; raises for all others."""
    if not data.exists():
        return False
    if not data.is_dir():
        raise PostgresError(f"{data} is not a folder; choose another data folder with --data")
    if not (data / "PG_VERSION").exists():
        if any(data.iterdir()):
            raise PostgresError(
                f"{data} is not empty and not a PostgreSQL data folder;"
                " choose an empty or new folder with --data"
            )
        return False
    version = (data / "PG_VERSION").read_text().strip()
    if version != str(major):
        raise PostgresError(
            f"{data} was made by PostgreSQL {version} and this is PostgreSQL {major};"
            f" choose another folder with --data, and move the data with pg_dump of {version}"
        )
    if not is_ours(data):
        raise PostgresError(
            f"{data} is a PostgreSQL data folder that Queenstream did not make;"
            " choose another with --data, or start that server and pass its address with --pg"
        )
    return True


def is_ours(data: Path) -> bool:
    """Whether Queenstream made this data folder."""
    return (data / CONF).exists()


def make(data: Path, binaries: Binaries, account: Account, timeout_seconds: float) -> None:
    """Make the data folder beside its place and rename it there: it is whole or it is not there."""
    if data.exists() and data.is_mount():
        raise PostgresError(
            f"{data} is a mount point and cannot be replaced; use a folder inside it: --data {data / 'data'}"
        )
    prefix = f".{data.name}.initdb-"
    _remove_halves(data, prefix)
    making = Path(tempfile.mkdtemp(prefix=prefix, dir=data.parent))
    try:
        account.own_tree(making)
        password = making / _PASSWORD
        write(password, secrets.token_urlsafe(32) + "\n", account)
        fresh = making / "data"
        _initdb(fresh, password, data, binaries, account, timeout_seconds)
        password.rename(fresh / _PASSWORD)
        main = fresh / "postgresql.conf"
        write(main, f"{main.read_text()}\ninclude '{CONF}'\n", account)
        write(fresh / CONF, "", account)
        fresh.rename(data)
        _sync_folder(data.parent)
    finally:
        # Those from before as well: an initdb whose starter was killed may still have written.
        _remove_halves(data, prefix)


def _remove_halves(data: Path, prefix: str) -> None:
    """Remove what a start has left that did not get to its end. The caller has the folder for itself."""
    for left in data.parent.glob(f"{glob.escape(prefix)}*"):
        shutil.rmtree(left, ignore_errors=True)


def _initdb(
    fresh: Path,
    password: Path,
    data: Path,
    binaries: Binaries,
    account: Account,
    timeout_seconds: float,
) -> None:
    argv = [
        binaries["initdb"],
        f"--pgdata={fresh}",
        "--username=postgres",
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        # Who gets to the socket is the owner; who gets to a port may be anyone on the machine.
        "--auth-local=trust",
        "--auth-host=scram-sha-256",
        f"--pwfile={password}",
        "--data-checksums",
        "--no-instructions",
    ]
    try:
        answer = account.run(argv, timeout_seconds=timeout_seconds)
    except subprocess.TimeoutExpired as error:
        raise PostgresError(
            f"making {data} took longer than {timeout_seconds:.0f} s;"
            " try again with more time, or on a faster disk with --data"
        ) from error
    if answer.returncode != 0:
        said = answer.stdout + answer.stderr
        raise _explain.from_output(f"initdb could not make {data}", said, data, account.name)


def write(path: Path, text: str, account: Account) -> None:
    """Replace a file at once; private, on the disk, and the account's own.

    Never opens an existing file: root does not follow a link that the account may have put there.
    """
    making = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        descriptor = os.open(making, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            account.own(descriptor)
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        making.replace(path)
    except BaseException:
        making.unlink(missing_ok=True)
        raise


def read_password(data: Path) -> str:
    """The password for the TCP port."""
    return (data / _PASSWORD).read_text().strip()


def turn_log(data: Path) -> int:
    """Set a grown log aside; returns where in the log the next start begins."""
    log = data / LOG
    try:
        size = log.stat().st_size
    except FileNotFoundError:
        return 0
    if size < _LOG_KEPT_BYTES:
        return size
    log.replace(data / f"{LOG}.1")
    return 0


def log_size(data: Path) -> int:
    try:
        return (data / LOG).stat().st_size
    except OSError:
        return 0


def read_log(data: Path, start: int) -> str:
    try:
        with (data / LOG).open("rb") as file:
            file.seek(start)
            return file.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""


def socket_folder(data: Path, account: Account, before: Path | None = None) -> Path:
    """Where the socket goes: in the data folder, or in a short folder when that path is too long.

    A comma or a blank in the path would not survive the connection URL, and is too long as well.
    The server notes the folder in ``queenstream.conf`` and ``postmaster.pid``. The short folder of a server
    that was killed (``before``) is used again, so that its clients find the next one.
    """
    inside = data / "socket"
    if _fits(inside):
        return inside
    if before is not None and _is_short_folder(before, account):
        return before
    base = Path(tempfile.gettempdir())
    if not _fits(base / f"{_SHORT_PREFIX}12345678"):
        base = Path("/tmp")  # noqa: S108 - only the place; the folder in it is new and private
    short = Path(tempfile.mkdtemp(prefix=_SHORT_PREFIX, dir=base))
    account.own_tree(short)
    return short


def remove_socket_folder(socket: Path, account: Account) -> None:
    """Remove a short socket folder that a server has left; anything else stays untouched."""
    with contextlib.suppress(OSError):
        if _is_short_folder(socket, account):
            for left in socket.glob(".s.PGSQL.*"):
                left.unlink()
            socket.rmdir()


def _is_short_folder(socket: Path, account: Account) -> bool:
    """Whether this is a folder of the account that ``socket_folder`` made outside of a data folder."""
    try:
        found = socket.lstat()
    except OSError:
        return False
    owner = os.geteuid() if account.uid is None else account.uid
    ours = stat.S_ISDIR(found.st_mode) and found.st_uid == owner
    return ours and socket.is_absolute() and socket.name.startswith(_SHORT_PREFIX)


def _fits(folder: Path) -> bool:
    path = str(folder)
    return len(os.fsencode(path)) <= _SOCKET_FOLDER_BYTES and bool(_SOCKET_FOLDER_SAFE.fullmatch(path))


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a folder, and need not.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(descriptor)
