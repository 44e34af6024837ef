"""Finds out what ``queen doctor`` checks: asks the machine, the database and the broker.

Every wait is limited, and what does not answer once is not asked again. Texts that could hold data (queries)
are never read.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import queue
import re
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import asyncpg

from queenstream import config, postgres
from queenstream.broker.storage import sql
from queenstream.broker.storage.database import connect, open_connection
from queenstream.cli.doctor.facts import (
    Broker,
    CannotLook,
    Clock,
    Facts,
    Health,
    Holder,
    Missing,
    Schema,
    Server,
    Table,
    Value,
)  # fmt: skip
from queenstream.errors import DatabaseUnusable, PostgresError

T = TypeVar("T")

STEP_SECONDS, WHOLE_SECONDS = 10.0, 40.0
COMMITS, COMMITS_SECONDS = 20, 3.0
CLOCK_TRIES = 5
ANSWER_BYTES = 16 << 20
SEVENTEEN = 170_000

ELSEWHERE = Missing("PostgreSQL runs on another machine; look there")
RIGHTS = "use the broker's user, or: grant usage on schema queen, select on all tables in it"
TOKEN = "needs a token with the role read-only: --token or QUEEN_TOKEN"  # noqa: S105


class Deadline:
    """How long the next step may take: 10 s, and less when the whole has taken long already."""

    def __init__(self, seconds: float = WHOLE_SECONDS) -> None:
        self._end = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.2, min(STEP_SECONDS, self._end - time.monotonic()))


def within(seconds: float, work: Callable[[], T]) -> T:
    """Run something that may hang (a name server, a disk); TimeoutError if it does.

    A thread that nobody waits for, not an executor: that one would be waited for at the exit.

    >>> within(1, lambda: 42)
    42
    """
    results: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            results.put((work(), None))
        except BaseException as error:  # noqa: BLE001 - raised again, where somebody waits for it
            results.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        value, error = results.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no answer in {seconds:.0f} s") from None
    if error is not None:
        raise error
    return value  # type: ignore[return-value]


def look(settings: config.Settings, broker_url: str, token: str | None, names: list[str]) -> Facts:
    """All facts; ``names`` are the PostgreSQL settings to read.

    >>> look(config.load({}, {}, None), "http://127.0.0.1:6632", None, ["fsync"])  # doctest: +SKIP
    """
    deadline = Deadline()
    found = machine(deadline) | broker(broker_url, token, deadline)
    found["needed_connections"] = settings.workers * (settings.pool + 4)
    try:
        url, place = database_url(settings, deadline)
        found |= asyncio.run(database(url, names, deadline))
        found["place"] = place
    except (PostgresError, TimeoutError) as error:
        found["server"] = Missing(str(error))
    secrets = secrets_of(settings.pg, token)
    return Facts(**{name: _without(value, secrets) for name, value in found.items()})


def secrets_of(pg: str | None, token: str | None) -> list[str]:
    """What must not be printed, in every spelling, the longest first.

    >>> secrets_of("postgresql://me:ab%40cd@db/queen", None)
    ['ab%40cd', 'ab@cd']
    """
    found = {token or ""}
    if pg:
        _, _, rest = pg.partition("://")
        found.add(rest.rpartition("@")[0].partition(":")[2])
        found |= set(re.findall(r"(?i)password=([^&]*)", rest))
    found |= {unquote(secret) for secret in found}
    # A shorter one would be found in ordinary words.
    return sorted((secret for secret in found if len(secret) > 3), key=lambda secret: (-len(secret), secret))


def _without(value: Any, secrets: list[str]) -> Any:
    # Reasons are what others said (the server, the network). We never put a secret there; they might.
    if isinstance(value, Missing):
        reason = value.reason
        for secret in secrets:
            reason = reason.replace(secret, "***")
        return Missing(reason, silent=value.silent)
    return value


# The machine


def machine(deadline: Deadline) -> dict[str, Any]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "python": sys.version_info[:3],
        "queenstream": version("queenstream"),
        "java": java(deadline),
        "open_files": 1 << 30 if soft == resource.RLIM_INFINITY else soft,
    }


def java(deadline: Deadline) -> str | Missing | None:
    """The version of the Java that Spark would take."""
    home = os.environ.get("JAVA_HOME")
    program = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    if program is None:
        return None
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [program, "-version"], capture_output=True, text=True, errors="replace",
            timeout=deadline.left() / 2, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return Missing(f"{program} -version does not answer")
    found = re.search(r'version "([^"]+)"', answer.stderr + answer.stdout)
    return found[1] if found else None


def memory() -> int:
    """What the machine has, or the container may use."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text("ascii").strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdecimal() else total


# The database


def database_url(settings: config.Settings, deadline: Deadline) -> tuple[str, str]:
    """Where the database is, and that without a password; PostgresError when it is not there."""
    if settings.pg:
        for host in hosts_of(settings.pg):
            _resolve(host, deadline)
        return settings.pg, postgres.place_of(settings.pg)
    server = within(deadline.left(), lambda: postgres.find(settings.data))
    if server is None:
        raise PostgresError(
            f"no PostgreSQL runs in {settings.data}; "
            "start it with the broker (queen up), or give the URL of your own: --pg"
        )
    return server.url, str(settings.data)


def hosts_of(url: str) -> list[str]:
    """The hosts of a URL; an unusable one is not shown, as the password may be anywhere in it."""
    try:
        parts = urlsplit(url)
        hosts = [host for host, _ in postgres.hosts_of(url)]
        usable = "@" not in parts.path and not parts.fragment
    except (ValueError, PostgresError):
        usable = False
    if not usable:
        raise DatabaseUnusable(
            "the PostgreSQL URL is not usable; write postgresql://user:password@host:5432/database, "
            "with %40 for @, %2F for / and %23 for # in the password"
        )
    return hosts


def _resolve(host: str, deadline: Deadline) -> None:
    """Ask the name server once where it can be left waiting; what else is wrong shows when connecting."""
    if host.startswith("/"):
        return
    try:
        within(deadline.left(), lambda: socket.getaddrinfo(host, None))
    except TimeoutError:
        raise DatabaseUnusable(f"the name {host} is not resolved in time; check it, or the network") from None
    except (OSError, UnicodeError):
        pass


class Asking:
    """One connection. What fails for good is not asked again."""

    def __init__(self, connection: Any, deadline: Deadline) -> None:
        self.connection = connection
        self._deadline = deadline
        self._broken = ""

    async def rows(self, query: str, *args: Any) -> list[Any]:
        """The rows of a statement, or CannotLook."""
        if self._broken:
            raise CannotLook(Missing(self._broken))
        try:
            async with asyncio.timeout(self._deadline.left()):
                rows: list[Any] = await self.connection.fetch(query, *args)
                return rows
        except asyncpg.InsufficientPrivilegeError as error:
            raise CannotLook(Missing(f"needs more rights ({error}); {RIGHTS}")) from None
        except (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.PostgresConnectionError) as error:
            self._broken = str(error) or "the database does not answer any more"
            raise CannotLook(Missing(self._broken)) from None
        except asyncpg.PostgresError as error:
            raise CannotLook(Missing(str(error))) from None

    async def named(self, name: str, *args: Any) -> list[Any]:
        return await self.rows(sql.QUERIES[name], *args)


async def fact(work: Awaitable[T]) -> T | Missing:
    """The fact, or why it is missing."""
    try:
        return await work
    except CannotLook as error:
        return error.missing


async def database(url: str, names: list[str], deadline: Deadline) -> dict[str, Any]:
    """Everything the database knows; DatabaseUnusable when it cannot be reached."""
    # First as the broker connects, as that says what is wrong. It asks for settings of its own there; those
    # of the server, the database and the role show in a connection without them.
    first = await connect(url, application_name="queenstream-doctor")
    await first.close(timeout=5)
    mine = {"application_name": "queenstream-doctor", "search_path": "pg_catalog", "statement_timeout": "9s"}
    try:
        connection = await open_connection(url, timeout=deadline.left(), server_settings=mine)
    except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError) as error:
        raise DatabaseUnusable(f"PostgreSQL refuses a second connection: {error}; try again") from None
    asking = Asking(connection, deadline)
    try:
        row = (await asking.named("doctor_server"))[0]
        found = await facts_of(asking, row, names)
        return found | machine_of(url, row)
    except CannotLook as error:
        raise DatabaseUnusable(f"PostgreSQL does not answer: {error}; try again") from None
    finally:
        try:
            await connection.close(timeout=2)
        except (OSError, TimeoutError, asyncpg.InterfaceError):
            connection.terminate()


async def facts_of(asking: Asking, row: Any, names: list[str]) -> dict[str, Any]:
    number = row["version_number"]
    checkpoints = "doctor_checkpoints" if number >= SEVENTEEN else "doctor_checkpoints_before_seventeen"
    return {
        "server": Server(number, row["version"], row["database"], row["user"], row["in_recovery"]),
        "schema": await fact(_schema(asking)),
        "settings": await fact(_settings(asking, names)),
        "checkpoints": await fact(_pair(asking, checkpoints)),
        "cache": await fact(_pair(asking, "doctor_cache")),
        "connections": await fact(_pair(asking, "doctor_connections")),
        "database_clock": await fact(_clock(asking)),
        "holders": await fact(_each(asking, "doctor_holders", Holder)),
        "tables": await fact(_each(asking, "doctor_tables", Table)),
        "wraparound": await fact(_pair(asking, "doctor_wraparound")),
        "commit_seconds": await fact(_commit(asking)),
    }


def machine_of(url: str, row: Any) -> dict[str, Any]:
    """What only the server's machine knows, if that is this one."""
    if not is_local(url, row["pid"]):
        return {"memory_bytes": ELSEWHERE, "disk": ELSEWHERE}
    folder = row["data_directory"]
    if not folder:
        return {"memory_bytes": memory(), "disk": Missing("needs the role pg_read_all_settings")}
    try:
        usage = shutil.disk_usage(folder)
    except OSError as error:
        return {"memory_bytes": memory(), "disk": Missing(f"{folder}: {error.strerror}")}
    return {"memory_bytes": memory(), "disk": (folder, usage.free, usage.total)}


def is_local(url: str, pid: int) -> bool:
    """Whether the server's process is one of this machine: a port here may be that of a tunnel."""
    for host in hosts_of(url):
        if not host.startswith("/") and host not in ("localhost", "127.0.0.1", "::1"):
            return False
    try:
        return "postgres" in Path(f"/proc/{pid}/comm").read_text("utf-8", errors="replace")
    except OSError:
        return False


async def _schema(asking: Asking) -> Schema:
    newest = sql.MIGRATIONS[-1].number
    there = (await asking.named("doctor_has_schema"))[0]["found"]
    rows = await asking.named("doctor_schema", sql.FUNCTION_SET, newest) if there else []
    if not rows:
        return Schema(None, newest)
    row = rows[0]
    return Schema(row["number"], newest, row["has_functions"], (row["needed"] or 0) <= newest)


async def _settings(asking: Asking, names: list[str]) -> dict[str, Value]:
    rows = await asking.named("doctor_settings", names)
    return {
        row["name"]: Value(
            row["value"], row["setting"], row["unit"], row["source"], row["context"], row["pending_restart"],
            tuple(row["choices"]),
        )
        for row in rows
    }  # fmt: skip


async def _pair(asking: Asking, name: str) -> tuple[Any, Any]:
    rows = await asking.named(name)
    if not rows:
        raise CannotLook(Missing("PostgreSQL has no figures"))
    return tuple(rows[0])


async def _each(asking: Asking, name: str, kind: Callable[..., T]) -> tuple[T, ...]:
    return tuple(kind(**dict(row)) for row in await asking.named(name))


async def _clock(asking: Asking) -> Clock:
    """The quickest of a few: the middle of its way is known best."""
    tries = []
    for _ in range(CLOCK_TRIES):
        sent = time.time()
        there = (await asking.named("doctor_clock"))[0]["seconds"]
        back = time.time()
        tries.append(Clock(there - (sent + back) / 2, abs(back - sent) / 2))
    return min(tries, key=lambda clock: clock.error_seconds)


async def _commit(asking: Asking) -> float:
    await asking.rows("set synchronous_commit = on")  # as the broker does
    await asking.named("doctor_commit")  # the first one is also planned
    took: list[float] = []
    while len(took) < COMMITS and sum(took) < COMMITS_SECONDS:
        started = time.perf_counter()
        await asking.named("doctor_commit")
        took.append(time.perf_counter() - started)
    return statistics.median(took)


# The broker


@dataclass(frozen=True)
class Answer:
    status: int
    body: Any
    clock: Clock | Missing


def get(url: str, path: str, token: str | None, seconds: float) -> Answer:
    """One plain request: no redirect and no proxy gets to see the token."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=seconds)
    headers = {"Accept": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    try:
        connection.connect()
        sent = time.time()
        connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
        response = connection.getresponse()
        back = time.time()
        body = response.read(ANSWER_BYTES)
        date = response.getheader("date")
    finally:
        connection.close()
    try:
        return Answer(response.status, json.loads(body), _http_clock(date, sent, back))
    except ValueError:
        return Answer(response.status, None, Missing("its answer has no readable date"))


def _http_clock(date: str | None, sent: float, back: float) -> Clock | Missing:
    if date is None:
        return Missing("its answers have no date")
    # Whole seconds, and kept for up to one: the truth is up to two seconds later.
    there = parsedate_to_datetime(date).timestamp() + 1
    return Clock(there - (sent + back) / 2, 1 + abs(back - sent) / 2)


def broker(url: str, token: str | None, deadline: Deadline) -> dict[str, Any]:
    """Everything the broker says of itself."""
    found: dict[str, Any] = {"broker_url": url}

    def ask(path: str) -> Answer:
        seconds = deadline.left()
        return within(seconds, lambda: get(url, path, token, seconds))

    try:
        live, health = ask("/health/live"), ask("/health")
        if health.status == http.HTTPStatus.FORBIDDEN:
            said = health.body.get("error", "") if isinstance(health.body, dict) else ""
            return found | {"health": Missing(f"{url} refuses to answer: {said}")}
        if not _is_ours(health.body):
            return found | {"health": Missing(f"something else than a broker answers at {url}")}
        body = health.body
        found["broker_clock"] = live.clock
        found["health"] = Health(health.status == 200, str(body["version"]), str(body["database"]))
        found["brokers"] = _part(ask("/api/v1/analytics/worker-metrics"), _brokers)
        found["insecure"] = _part(ask("/api/v1/system/me"), lambda body: bool(body["insecure"]))
        found["maintenance"] = _part(ask("/api/v1/system/maintenance"), _maintenance)
    except ConnectionRefusedError:
        return {"broker_url": url, "health": None}
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        why = str(error) or type(error).__name__
        return {"broker_url": url, "health": Missing(f"no broker answers at {url}: {why}")}
    return found


def _is_ours(body: Any) -> bool:
    return isinstance(body, dict) and {"version", "database"} <= body.keys()


def _part(answer: Answer, read: Callable[[Any], T]) -> T | Missing:
    if answer.status in (401, 403):
        return Missing(TOKEN)
    try:
        if answer.status == 200:
            return read(answer.body)
    except (KeyError, TypeError, AttributeError):
        pass
    return Missing(f"the broker answers with status {answer.status}")


def _brokers(body: Any) -> tuple[Broker, ...]:
    return tuple(
        Broker(
            one["address"], one["version"], one["poolConnectionsMax"], one["openConnections"],
            one["backgroundFailures"],
        )
        for one in body["workers"]
    )  # fmt: skip


def _maintenance(body: Any) -> str:
    if body["maintenanceMode"]:
        return "all"
    return "pop" if body["popMaintenanceMode"] else ""
