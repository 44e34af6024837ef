"""Start, find and stop the server of a data folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket as sockets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from queenstream.errors import PostgresError
from queenstream.postgres import _explain, _folder, _process, _restarts, _settings
from queenstream.postgres._account import Account, account_for
from queenstream.postgres._binaries import Binaries, has_lz4, locate
from queenstream.postgres._process import Postmaster
from queenstream.postgres._url import hosts_of

_DATABASE = "queen"
_POLL_SECONDS = 0.01
_ENDING_SECONDS = 2.0  # how long the rest of a killed server may take to go

# The shell lets go of the server: it is nobody's child, in a session of its own, so a Ctrl-C in
# the starter's terminal does not reach it and no starter has to stay to collect it. What is in
# the socket folder was left by a dead server. Paths come as arguments, never as script.
_LAUNCH = """
umask 077
mkdir -p -- "$1" && chmod 700 -- "$1" && rm -f -- "$1"/.s.PGSQL.* || exit 1
exec "$2" -D "$3" </dev/null >>"$4" 2>&1 &
echo $!
"""


@dataclass(frozen=True)
class Server:
    """A running PostgreSQL.

    ``url`` goes through a Unix socket that only the server's account (and root) can reach.
    ``tcp_url`` is there when it was started with a port; it holds the password.

    >>> server = start("./data")  # doctest: +SKIP
    >>> connection = await asyncpg.connect(server.url)  # doctest: +SKIP
    """

    data: Path
    url: str
    pid: int
    started_here: bool
    tcp_url: str | None = field(default=None, repr=False)

    def stop(self, timeout_seconds: float = 30) -> None:
        """Stop it cleanly: open transactions are rolled back, everything is written out.

        Does nothing when it has stopped already.

        >>> server.stop()  # doctest: +SKIP
        """
        if not _process.belongs(self.pid, self.data):
            return
        deadline = time.monotonic() + timeout_seconds
        account = account_for(self.data)
        with _explained(self.data, account), _folder.locked(self.data, deadline):
            noted = _process.read_pid_file(self.data)
            if _process.belongs(self.pid, self.data):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self.pid, signal.SIGINT)
            if not _process.wait_gone(self.pid, self.data, deadline):
                raise PostgresError(
                    f"PostgreSQL (pid {self.pid}) in {self.data} did not stop in"
                    f" {timeout_seconds:.0f} s; see {self.data / _folder.LOG} and wait longer,"
                    f" or end it with: kill -QUIT {self.pid}"
                )
            if noted and noted.pid == self.pid:
                _folder.remove_socket_folder(noted.socket, account)


def start(
    data: Path | str,
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    timeout_seconds: float = 60,
) -> Server:
    """The server of a data folder: the running one, or a new one; the folder is made if missing.

    Any number of processes may call this at once; one of them starts it and the others find it.
    With ``port`` it also listens on 127.0.0.1, with a password; 0 is a free port. ``settings`` go over
    the defaults and count for a server that is started here, not for one that runs already.

    >>> server = start("./data", settings={"shared_buffers": "1GB"})  # doctest: +SKIP
    """
    folder = _folder.resolve(data)
    _settings.checked(settings or {})
    _settings.checked_port(port)
    deadline = time.monotonic() + timeout_seconds
    account = account_for(folder)
    with _explained(folder, account):
        binaries = locate(account)
        _folder.make_parents(folder)
        with _folder.locked(folder, deadline):
            # Asked again under the lock: the one who was faster may have made the folder.
            account = account_for(folder)
            _check_reachable(folder, account)
            made = _folder.is_made(folder, binaries.major)
            found = _process.wait_settled(folder, deadline) if made else None
            if found and not _answers(folder, found, binaries, account):
                found = None
            started_here = found is None
            if found is None:
                if not made:
                    left_seconds = max(1.0, deadline - time.monotonic())
                    _folder.make(folder, binaries, account, left_seconds)
                found = _start(folder, port or _free_port(port), settings, binaries, account, deadline)
                _make_database(folder, found, binaries, account)
        if port is not None and not (found.listens and port in (0, found.port)):
            raise PostgresError(
                f"PostgreSQL in {folder} already runs, without port {port};"
                " stop it first, or leave the port out"
            )
        return _server(folder, found, started_here=started_here)


def restart(server: Server, *, timeout_seconds: float = 60) -> Server:
    """Start a server again that has died: with its settings, on its socket and port. Never makes a folder.

    One that somebody else has started meanwhile is found.

    >>> server = restart(server)  # doctest: +SKIP
    """
    folder = server.data
    deadline = time.monotonic() + timeout_seconds
    account = account_for(folder)
    with _explained(folder, account), _folder.locked(folder, deadline):
        binaries = locate(account)
        if not _folder.is_made(folder, binaries.major):
            raise PostgresError(f"{folder} is gone; restore it from a backup, then start again")
        noted = _restarts.read(folder)
        found = _process.running(folder)
        if found is None:
            _restarts.note(folder, _restarts.Restarts(noted.count, under_way=True), account)
            _clear_leftovers(folder)
            [(socket, _)] = hosts_of(server.url)
            found = _launch(folder, Path(socket), None, binaries, account, deadline)
            _restarts.note(folder, _restarts.Restarts(noted.count + 1), account)
        else:
            found = _process.wait_settled(folder, deadline)
            if found is None:
                raise PostgresError(f"PostgreSQL in {folder} ended while it was starting")
            if noted.under_way:  # a start that took longer than its starter waited
                _restarts.note(folder, _restarts.Restarts(noted.count + 1), account)
        return _server(folder, found, started_here=True)


def _free_port(port: int | None) -> int | None:
    """A port that is free right now; None if none is wanted."""
    if port is None:
        return None
    with sockets.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
        return free


def find(data: Path | str) -> Server | None:
    """The running server of a data folder, or None when none answers.

    >>> find("./data") is None  # doctest: +SKIP
    True
    """
    folder = _folder.resolve(data)
    account = account_for(folder)
    with _explained(folder, account):
        found = _process.running(folder)
        if found is None or found.status != "ready" or not _folder.is_ours(folder):
            return None
        answer = _psql(found, "SELECT 1", locate(account), account)
        if answer.returncode != 0 and not _is_busy(answer):
            return None
        return _server(folder, found, started_here=False)


@contextlib.contextmanager
def ephemeral(*, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server on a temporary folder, for tests; both are gone afterwards.

    >>> with ephemeral() as server:  # doctest: +SKIP
    ...     run_tests(server.url)
    """
    base = Path(tempfile.mkdtemp(prefix="queenstream-"))
    data = base / "data"
    try:
        # Open to pass through: as root, the server's account is another than ours.
        base.chmod(0o711)
        server = start(data, settings=settings)
        try:
            yield server
        finally:
            server.stop()
    finally:
        if data.exists():
            _process.end_all(data, grace_seconds=0.2)
        shutil.rmtree(base, ignore_errors=True)


def _start(
    data: Path,
    port: int | None,
    settings: Mapping[str, str] | None,
    binaries: Binaries,
    account: Account,
    deadline: float,
) -> Postmaster:
    if account.uid is not None and data.stat().st_uid == 0:
        # Copied or restored by root; the server could not read it.
        account.own_tree(data)
    left = _clear_leftovers(data)
    socket = _folder.socket_folder(data, account, None if left is None else left.socket)
    text = _settings.render(socket=socket, port=port, lz4=has_lz4(binaries, account), settings=settings)
    _folder.write(data / _folder.CONF, text, account)
    _restarts.note(data, _restarts.Restarts(), account)
    return _launch(data, socket, port, binaries, account, deadline)


def _launch(
    data: Path, socket: Path, port: int | None, binaries: Binaries, account: Account, deadline: float
) -> Postmaster:
    """Start the server as ``queenstream.conf`` says, and wait until it is ready."""
    log_start = _folder.turn_log(data)
    pid, said = _spawn(data, socket, binaries, account)
    try:
        return _wait_ready(data, pid, port, said, log_start, account, deadline)
    except PostgresError:
        if not _process.belongs(pid, data):
            _folder.remove_socket_folder(socket, account)
        raise


def _clear_leftovers(data: Path) -> Postmaster | None:
    """Clear what a killed server left: orphaned processes and its pid file, whose content is the answer."""
    left = _process.read_pid_file(data)
    _process.end_all(data)
    if left is None:
        return None
    if _listens(left):
        # Alive, but in another container over the same folder: two servers would ruin it.
        raise PostgresError(
            f"{data} is in use by a PostgreSQL that is not a process of this system (pid"
            f" {left.pid} in another container?); stop it there, or choose another with --data"
        )
    # PostgreSQL would trip over the number when a process of the same user has it by now.
    (data / "postmaster.pid").unlink(missing_ok=True)
    return left


def _listens(left: Postmaster) -> bool:
    with sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(left.socket / f".s.PGSQL.{left.port}"))
        except OSError:
            return False
        return True


def _spawn(data: Path, socket: Path, binaries: Binaries, account: Account) -> tuple[int, str]:
    paths = (str(socket), binaries["postgres"], str(data), str(data / _folder.LOG))
    argv = ["/bin/sh", "-c", _LAUNCH, "sh", *paths]
    answer = account.run(argv, timeout_seconds=30, new_session=True)
    if not answer.stdout.strip().isdecimal():
        what = f"PostgreSQL could not be started in {data}"
        raise _explain.from_output(what, answer.stderr, data, account.name)
    return int(answer.stdout), answer.stderr


def _wait_ready(
    data: Path,
    pid: int,
    port: int | None,
    said: str,
    log_start: int,
    account: Account,
    deadline: float,
) -> Postmaster:
    # Until the server has entered its folder it is not known as its member, only as a pid.
    while _process.lives(pid):
        found = _process.read_pid_file(data)
        if found and found.pid == pid and found.status == "ready":
            return found
        if time.monotonic() > deadline:
            log = _explain.tail(_folder.read_log(data, log_start))
            raise PostgresError(
                f"PostgreSQL (pid {pid}) in {data} was not ready in time and goes on starting;"
                f" start again to wait for it, with more time. Its log ends: {log}"
            )
        time.sleep(_POLL_SECONDS)
    log = said + _folder.read_log(data, log_start)
    if port is not None and "Address already in use" in log:
        raise PostgresError(
            f"port {port} is in use by another program; choose another port, or leave it out"
            " to use the Unix socket only"
        )
    raise _explain.from_output(f"PostgreSQL did not start in {data}", log, data, account.name)


def _answers(data: Path, found: Postmaster, binaries: Binaries, account: Account) -> bool:
    """Whether a server that runs can be used; False if it ends meanwhile, as one that was just killed."""
    try:
        _make_database(data, found, binaries, account)
    except PostgresError:
        if not _process.wait_gone(found.pid, data, time.monotonic() + _ENDING_SECONDS):
            raise
        return False
    return True


def _make_database(data: Path, found: Postmaster, binaries: Binaries, account: Account) -> None:
    known = f"SELECT 1 FROM pg_database WHERE datname = '{_DATABASE}'"  # noqa: S608 - a constant
    answer = _psql(found, known, binaries, account)
    if answer.returncode == 0 and not answer.stdout.strip():
        answer = _psql(found, f"CREATE DATABASE {_DATABASE}", binaries, account)
    if answer.returncode != 0 and not _is_busy(answer):
        what = f"PostgreSQL (pid {found.pid}) in {data} runs but does not answer"
        raise _explain.from_output(what, answer.stderr, data, account.name)


def _psql(
    found: Postmaster, statement: str, binaries: Binaries, account: Account
) -> subprocess.CompletedProcess[str]:
    where = [f"--host={found.socket}", f"--port={found.port}", "--username=postgres"]
    how = ["--no-psqlrc", "--no-password", "--tuples-only", "--no-align", "--dbname=postgres"]
    argv = [binaries["psql"], *where, *how, f"--command={statement}"]
    try:
        return account.run(argv, timeout_seconds=30)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(argv, 1, "", "no answer in 30 s")


def _is_busy(answer: subprocess.CompletedProcess[str]) -> bool:
    # A server that refuses for want of connections is alive, and has been in use for long.
    return "too many clients" in answer.stderr or "remaining connection slots" in answer.stderr


def _server(data: Path, found: Postmaster, *, started_here: bool) -> Server:
    host = quote(str(found.socket))
    tcp_url = None
    if found.listens:
        password = quote(_folder.read_password(data))
        tcp_url = f"postgresql://postgres:{password}@127.0.0.1:{found.port}/{_DATABASE}"
    url = f"postgresql://postgres@/{_DATABASE}?host={host}&port={found.port}"
    return Server(data, url, found.pid, started_here, tcp_url)


def _check_reachable(data: Path, account: Account) -> None:
    if account.uid is None:
        return
    if not account.can_enter(data.parent):
        raise PostgresError(
            f"PostgreSQL does not run as root but as user {account.name}, who cannot enter"
            f" {data.parent}; choose a folder that user can reach: --data /var/lib/queenstream/data"
        )


@contextlib.contextmanager
def _explained(data: Path, account: Account) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _explain.from_os_error(error, data, account.name) from error
    except subprocess.TimeoutExpired as error:
        raise PostgresError(
            f"{Path(error.cmd[0]).name} did not answer in {error.timeout:.0f} s;"
            " the machine or its disk is stalled: try again when it is not"
        ) from error
