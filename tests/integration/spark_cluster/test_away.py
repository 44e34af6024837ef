"""PostgreSQL is away for a while: who has reached it before waits, who tries an address does not."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from queenstream import postgres
from queenstream.engines.spark.datasource.database import PATIENCE_SECONDS, Database, asked, connected
from queenstream.errors import DatabaseUnusable, Unavailable
from tests.processes import folder, free_port


class Restartable:
    """A server that comes back on the same port."""

    def __init__(self, place: Path) -> None:
        self._data = place / "data"
        self._port = free_port()
        self.start()

    def start(self) -> None:
        self._server = postgres.start(self._data, port=self._port)
        assert self._server.tcp_url is not None
        self.url = self._server.tcp_url

    def kill(self) -> None:
        os.kill(self._server.pid, signal.SIGKILL)
        psutil.wait_procs([psutil.Process(self._server.pid)], timeout=10)

    def stop(self) -> None:
        self._server.stop()


@pytest.fixture(scope="module")
def restartable() -> Iterator[Restartable]:
    with folder() as place:
        started = Restartable(place)
        try:
            yield started
        finally:
            started.stop()


def one(database: Database) -> int:
    return int(database.row("select 1")[0])


def test_a_question_waits_until_the_server_is_back(restartable: Restartable) -> None:
    assert asked(restartable.url, one) == 1
    restartable.kill()
    away = pytest.raises(Unavailable, match=r"cannot reach PostgreSQL at 127\.0\.0\.1:\d+/queen")
    with away, connected(restartable.url):
        pass
    back = threading.Timer(0.5, restartable.start)
    back.start()
    assert asked(restartable.url, one) == 1
    back.join()


def test_a_question_that_breaks_off_is_asked_again(restartable: Restartable) -> None:
    tries = []

    def broken_once(database: Database) -> int:
        tries.append(database)
        if len(tries) == 1:
            restartable.kill()
            restartable.start()
        return one(database)

    assert asked(restartable.url, broken_once) == 1
    assert len(tries) == 2


def test_a_task_waits_for_its_connection(restartable: Restartable) -> None:
    restartable.kill()
    back = threading.Timer(0.5, restartable.start)
    back.start()
    with connected(restartable.url, patient=True) as database:
        assert one(database) == 1
    back.join()


@pytest.mark.parametrize(("right", "wrong"), [("/queen", "/nothing"), ("postgres:", "postgres:wrong")])
def test_what_is_wrong_for_good_is_said_at_once(restartable: Restartable, right: str, wrong: str) -> None:
    started = time.monotonic()
    with pytest.raises(DatabaseUnusable, match="check host, port and user"):
        asked(restartable.url.replace(right, wrong), one)
    assert time.monotonic() - started < PATIENCE_SECONDS / 3
