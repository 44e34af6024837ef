"""A query is kept running whether or not anybody waits; how it ends, and when it does not go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from queenstream.engines.spark.supervisor import Supervisor

LONG = 20.0


class Failure(Exception):
    pass


class Controlled:
    """A query that ends when the test says so."""

    def __init__(self) -> None:
        self.over = threading.Event()
        self.failure: Exception | None = None

    @property
    def isActive(self) -> bool:
        return not self.over.is_set()

    @property
    def status(self) -> dict[str, Any]:
        return {"isTriggerActive": False}

    def awaitTermination(self) -> None:
        assert self.over.wait(LONG)
        if self.failure is not None:
            raise self.failure

    def stop(self) -> None:
        self.over.set()

    def fail(self, message: str = "it failed") -> None:
        self.failure = Failure(message)
        self.over.set()


class Run:
    """What a run brings to its supervisor."""

    def __init__(self, on_failure: Callable[[Exception], float] = lambda _: 0.0) -> None:
        self.queries: list[Controlled] = []
        self.begun = threading.Semaphore(0)
        self.ended_with: list[BaseException | None] = []
        self.supervisor = Supervisor("p", self._begin, on_failure, self.ended_with.append)
        self.supervisor.start()
        assert self.begun.acquire(timeout=LONG)

    def _begin(self) -> Controlled:
        self.queries.append(Controlled())
        self.begun.release()
        return self.queries[-1]


def test_a_query_goes_on_though_nobody_waits() -> None:
    run = Run()
    run.queries[0].fail()
    assert run.begun.acquire(timeout=LONG)
    assert not run.supervisor.wait(0)
    run.queries[1].stop()
    assert run.supervisor.wait(LONG)
    assert (run.ended_with, run.supervisor.error) == ([None], None)


def test_a_wait_has_one_limit_whatever_happens_meanwhile() -> None:
    run = Run()
    begun = time.monotonic()
    run.queries[0].fail()
    assert not run.supervisor.wait(0.2)
    assert time.monotonic() - begun < LONG / 2
    run.supervisor.stop()
    assert run.supervisor.wait(LONG)


def test_a_failure_that_does_not_pass_ends_the_run_with_its_error() -> None:
    def refuse(failure: Exception) -> float:
        raise ValueError(f"no use: {failure}") from failure

    run = Run(refuse)
    run.queries[0].fail()
    assert run.supervisor.wait(LONG)
    assert str(run.supervisor.error) == "no use: it failed"
    assert run.ended_with == [run.supervisor.error]
    assert len(run.queries) == 1


def test_a_stop_during_the_pause_before_a_restart_ends_the_run() -> None:
    run = Run(lambda _: LONG * 10)
    run.queries[0].fail()
    while not run.supervisor.recovering:
        time.sleep(0.001)
    run.supervisor.stop()
    assert run.supervisor.wait(LONG)
    assert (len(run.queries), run.supervisor.error, run.supervisor.recovering) == (1, None, False)


def test_a_query_that_cannot_begin_again_ends_the_run() -> None:
    run = Run()

    def broken() -> Controlled:
        raise OSError("no session")

    run.supervisor._begin = broken
    run.queries[0].fail()
    assert run.supervisor.wait(LONG)
    assert isinstance(run.supervisor.error, OSError)


def test_a_source_that_fails_ends_the_run_even_while_it_recovers() -> None:
    run = Run(lambda _: LONG * 10)
    run.queries[0].fail()
    while not run.supervisor.recovering:
        time.sleep(0.001)
    run.supervisor.fail(OSError("the folder is gone"))
    assert run.supervisor.wait(LONG)
    assert isinstance(run.supervisor.error, OSError)
    assert len(run.queries) == 1


def test_a_run_that_cannot_be_closed_says_so() -> None:
    supervisor: Supervisor[Controlled]
    query = Controlled()

    def close(_: BaseException | None) -> None:
        raise OSError("disk full")

    supervisor = Supervisor("p", lambda: query, lambda _: 0.0, close)
    with pytest.raises(RuntimeError, match="has not begun"):
        supervisor.stop()
    supervisor.start()
    query.stop()
    assert supervisor.wait(LONG)
    assert isinstance(supervisor.error, OSError)
