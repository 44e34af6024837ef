"""Checkpoints in a folder: one SQLite file for each pipeline, and a lock file beside it."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from queenstream.engines.local.checkpoints.backend import (
    PAGE,
    SCHEMA,
    Action,
    Forget,
    Insert,
    Query,
    Superseded,
    damaged,
    in_use,
)
from queenstream.errors import CheckpointError

T = TypeVar("T")


def checkpoint_file(folder: Path, pipeline: str) -> Path:
    """Where the checkpoints of a pipeline are in a folder."""
    return folder / f"{quote(pipeline, safe=' ')}.checkpoint"


class SqliteHome:
    """The file of one pipeline. It is worked on in one thread, as a commit waits for the disk."""

    def __init__(self, folder: Path, pipeline: str) -> None:
        self._pipeline = pipeline
        self._folder = folder
        self._path = checkpoint_file(folder, pipeline)
        self.where = str(self._path)
        self._connection: sqlite3.Connection | None = None
        self._lock: int | None = None
        self._thread = ThreadPoolExecutor(1, "queenstream checkpoint")

    async def open(self) -> bool:
        return await self._do(self._open)

    def _open(self) -> bool:
        if self._connection is None and self._path.exists():
            # A file of ours is never empty: it gets its name when its tables are in it.
            if self._path.stat().st_size == 0:
                raise damaged(self.where, "the file is empty")
            self._connect()
        return self._connection is not None

    def _connect(self) -> None:
        """Open the file, if it is whole."""
        # The thread that uses the connection is always the same one, but not the one that made it.
        connection = sqlite3.connect(self._path, isolation_level=None, timeout=10, check_same_thread=False)
        try:
            with self._explained():
                connection.execute("pragma journal_mode = wal")
                connection.execute("pragma synchronous = full")
                connection.execute("pragma cache_size = -65536")  # KiB
                [[found], *_] = connection.execute("pragma quick_check(1)").fetchall()
            if found != "ok":
                raise damaged(self.where, found)
        except BaseException:
            connection.close()
            raise
        self._connection = connection

    async def create(self) -> None:
        await self._do(self._create)

    def _create(self) -> None:
        if self._open():
            return
        fresh = self._path.with_name(self._path.name + ".new")
        for left in (fresh, fresh.with_name(fresh.name + "-journal")):  # of a run that was killed right here
            left.unlink(missing_ok=True)
        connection = sqlite3.connect(fresh, isolation_level=None)
        try:
            for statement in SCHEMA:
                # The rows of a table with a key need no number of their own besides.
                connection.execute(f"{statement} without rowid")
        finally:
            connection.close()
        _sync(fresh)
        fresh.rename(self._path)
        _sync(self._folder)
        self._connect()

    async def lock(self, holder: str) -> None:
        await self._do(self._take_lock, holder)

    def _take_lock(self, holder: str) -> None:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(
                self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644
            )
        except OSError as error:
            raise CheckpointError(
                f"the checkpoint folder {self._folder} cannot be used: {error.strerror}; "
                "make it writable, or name another one"
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            said = os.read(descriptor, 500).decode("utf-8", "replace")
            os.close(descriptor)
            raise in_use(self._pipeline, said or "another process") from None
        os.truncate(descriptor, 0)
        os.write(descriptor, holder.encode())
        self._lock = descriptor

    async def fetch(self, sql: str, *arguments: Any) -> list[Sequence[Any]]:
        return await self._do(self._fetch, sql, arguments)

    def _fetch(self, sql: str, arguments: Sequence[Any]) -> list[Sequence[Any]]:
        assert self._connection is not None
        with self._explained():
            return self._connection.execute(*_named(sql, arguments)).fetchall()

    async def pages(self, sql: str, *arguments: Any) -> AsyncGenerator[list[Sequence[Any]], None]:
        def begin() -> sqlite3.Cursor:
            assert self._connection is not None
            return self._connection.execute(*_named(sql, arguments))

        def go_on(cursor: sqlite3.Cursor) -> list[Sequence[Any]]:
            with self._explained():
                return cursor.fetchmany(PAGE)

        cursor = await self._do(begin)
        while page := await self._do(go_on, cursor):
            yield page

    async def transact(self, actions: Sequence[Action], done: Query | None = None) -> None:  # noqa: ARG002
        await self._do(self._transact, actions)

    def _transact(self, actions: Sequence[Action]) -> None:
        connection = self._connection
        assert connection is not None
        with self._explained():
            connection.execute("begin immediate")
            try:
                for action in actions:
                    _act(connection, action)
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    async def close(self) -> None:
        await self._do(self._close)
        self._thread.shutdown(wait=False)

    def _close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(sqlite3.Error):  # what is committed is on the disk
                self._connection.close()
            self._connection = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    async def _do(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work, *arguments)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """What SQLite says of the file, with what to do about it."""
        try:
            yield
        except sqlite3.OperationalError as error:
            raise CheckpointError(
                f"the checkpoint in {self.where} cannot be used: {error}; see that the disk has room and "
                "the folder is writable, then start again"
            ) from error
        except sqlite3.DatabaseError as error:  # malformed, or no database at all
            raise damaged(self.where, error) from error


def _act(connection: sqlite3.Connection, action: Action) -> None:
    if isinstance(action, Insert):
        marks = ", ".join("?" * len(action.columns))
        columns = ", ".join(action.columns)
        connection.executemany(f"insert into {action.table} ({columns}) values ({marks})", action.rows)  # noqa: S608
    elif isinstance(action, Forget):
        connection.executemany(
            "delete from items where part = ? and key = ? and epoch > ? and epoch <= ?",
            [(action.part, key, action.after, action.until) for key in action.keys],
        )
    elif connection.execute(*_named(action.sql, action.arguments)).rowcount < 1 and action.must:
        raise Superseded


def _named(sql: str, arguments: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    """PostgreSQL's ``$1`` as a name: Python, from 3.12 on, takes numbers for names anyway.

    >>> _named("select format from pipelines where name = $1", ["totals"])
    ('select format from pipelines where name = :a1', {'a1': 'totals'})
    """
    return sql.replace("$", ":a"), {f"a{number}": each for number, each in enumerate(arguments, 1)}


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
