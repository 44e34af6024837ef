"""Notices between brokers on one database, by LISTEN and NOTIFY.

A notice says which queues have something new to deliver, which were changed, and that a setting changed. It
is only a hint: a lost one costs a slow poll, never a message. Notices are sent outside the transactions
that they speak of (a NOTIFY holds a global lock to its commit) and are put together while one is on its way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import asyncpg
import msgspec

from queenstream.broker.ops.supervisor import SupervisedTask, Supervisor
from queenstream.broker.storage.database import connect

log = logging.getLogger(__name__)

CHANNEL = "queenstream"
MOST_BYTES = 5_000  # PostgreSQL takes less than 8000; one more name still fits
SPACING_SECONDS = 0.005
LOOK_SECONDS = 10.0  # how often a broker with nothing to say looks whether it is alone

# Each broker holds a lock that says it is there; who comes says hello, so the others know at once.
_JOIN = "select pg_advisory_lock_shared(72005, 1)"
_ALONE = (
    "select count(*) <= 1 from pg_locks l join pg_database d on d.oid = l.database "
    "where d.datname = current_database() and l.locktype = 'advisory' and l.classid = 72005"
)
_SEND = "select pg_notify($1, $2)"


class Notice(msgspec.Struct, omit_defaults=True, array_like=True):
    """``sender`` ignores its own. An empty ``ready`` with ``all`` set means: look at everything."""

    sender: str
    ready: list[str] = []
    changed: list[str] = []
    settings: bool = False
    all: bool = False


class Notices:
    """Sends and receives notices over one connection, and makes a new one when it breaks."""

    def __init__(self, url: str, received: Callable[[Notice], None], supervisor: Supervisor) -> None:
        self._url = url
        self._received = received
        self._supervisor = supervisor
        self._me = uuid.uuid4().hex
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._ready: set[str] = set()
        self._changed: set[str] = set()
        self._settings = False
        self.alone = False  # no other broker lives: nobody to tell what is ready
        self._wanted = asyncio.Event()
        self._task: SupervisedTask | None = None

    async def open(self) -> None:
        await self._connect()
        self._task = self._supervisor.start("notices", self._run)

    async def close(self) -> None:
        if self._task is not None:
            await self._task.stop()
        if self._connection is not None:
            try:
                await self._connection.close(timeout=2)
            except (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError):
                self._connection.terminate()

    def ready(self, queues: Iterable[str]) -> None:
        """These queues have something to deliver."""
        if self.alone:
            return
        self._ready.update(queues)
        self._wanted.set()

    def changed(self, queue: str) -> None:
        """This queue was configured, deleted, cleared, or its groups were."""
        self._changed.add(queue)
        self._wanted.set()

    def settings(self) -> None:
        """A setting in the database has changed."""
        self._settings = True
        self._wanted.set()

    async def _connect(self) -> None:
        # The notice itself need not be on the disk.
        connection = await connect(self._url, synchronous_commit="off")
        try:
            await connection.execute(_JOIN, timeout=10)
            await connection.add_listener(CHANNEL, self._on_notice)
            hello = msgspec.json.encode(Notice(self._me)).decode()
            await connection.execute(_SEND, CHANNEL, hello, timeout=10)
            self.alone = await connection.fetchval(_ALONE, timeout=10)
        except BaseException:
            connection.terminate()
            raise
        connection.add_termination_listener(lambda _connection: self._wanted.set())
        self._connection = connection

    def _on_notice(self, _connection: Any, _pid: int, _channel: str, payload: Any) -> None:
        try:
            notice = msgspec.json.decode(payload, type=Notice)
        except msgspec.DecodeError:
            log.warning("a notice that is none of ours on %s", CHANNEL)
            return
        if notice.sender != self._me:
            self.alone = False
            self._received(notice)

    async def _run(self) -> None:
        """Send and receive until something fails; the supervisor starts it again, on a new connection."""
        try:
            if self._connection is None or self._connection.is_closed():
                await self._connect()
                self._received(Notice("", settings=True, all=True))  # whatever was missed
            assert self._connection is not None
            await self._send_wanted(self._connection)
        except Exception:
            if self._connection is not None:
                self._connection.terminate()  # whatever state it is in
            raise

    async def _send_wanted(self, connection: asyncpg.Connection[asyncpg.Record]) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._wanted.wait()
            self._wanted.clear()
            pending = self._take()
            try:
                for notice in pending:
                    text = msgspec.json.encode(notice).decode()
                    await connection.execute(_SEND, CHANNEL, text, timeout=10)
                if not pending:
                    self.alone = await connection.fetchval(_ALONE, timeout=10)
            except BaseException:
                self._put_back(pending)
                raise
            await asyncio.sleep(SPACING_SECONDS)

    def _put_back(self, notices: list[Notice]) -> None:
        for notice in notices:
            self._ready.update(notice.ready)
            self._changed.update(notice.changed)
            self._settings = self._settings or notice.settings
        self._wanted.set()

    def _take(self) -> list[Notice]:
        notices = [Notice(self._me, ready=part) for part in _parts(self._ready)]
        notices += [Notice(self._me, changed=part) for part in _parts(self._changed)]
        if self._settings:
            notices.append(Notice(self._me, settings=True))
        self._ready, self._changed, self._settings = set(), set(), False
        return notices


def _parts(names: Iterable[str]) -> Iterator[list[str]]:
    """The names in lists that fit into a notice."""
    part: list[str] = []
    size = 0
    for name in names:
        part.append(name)
        size += len(msgspec.json.encode(name)) + 1
        if size > MOST_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
