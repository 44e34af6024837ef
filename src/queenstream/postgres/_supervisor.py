"""Restarts the embedded server when it has died, with growing pauses and a limit."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from types import TracebackType

from queenstream.errors import PostgresError
from queenstream.postgres import _explain, _folder, _process
from queenstream.postgres._server import Server, restart

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
ATTEMPTS = 6  # in a row, before it is given up
STABLE_SECONDS = 60.0  # a server that has run for so long has recovered: attempts count from one again
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 0.5, 10.0
START_SECONDS = 60.0  # a start that takes longer is an attempt; the next one waits for the same start
_LOG_BYTES = 4096


class Supervisor:
    """A thread that looks after a server: when the postmaster has died, it starts the server again.

    PostgreSQL recovers by its log, on the same socket and port. Several processes may look after the same
    server; one of them restarts it, the others find it running. ``on_failure`` is called once, from the
    thread, when the server does not stay up; then ``failure`` says why.

    >>> with Supervisor(start("./data"), on_failure=stop_serving) as supervisor:  # doctest: +SKIP
    ...     serve()
    >>> supervisor.server.stop()  # doctest: +SKIP
    """

    def __init__(self, server: Server, *, on_failure: Callable[[], None]) -> None:
        self.server = server
        self.failure: PostgresError | None = None
        self._on_failure = on_failure
        self._attempts = 0
        self._up_since = time.monotonic()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="postgres-supervisor", daemon=True)

    def __enter__(self) -> Supervisor:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Stop looking after it; a restart under way is waited for. ``server`` is the one that runs."""
        self._closing.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._closing.wait(LOOK_SECONDS):
                if not _process.belongs(self.server.pid, self.server.data):
                    self._recover()
        except Exception as error:
            log.exception("the supervision of PostgreSQL ended")
            self._fail(error if isinstance(error, PostgresError) else PostgresError(str(error)))

    def _recover(self) -> None:
        died = time.monotonic()
        data = self.server.data
        if died - self._up_since >= STABLE_SECONDS:
            self._attempts = 0
        ends = _explain.tail(_folder.read_log(data, max(0, _folder.log_size(data) - _LOG_BYTES)))
        log.error(
            "PostgreSQL (pid %d) in %s has died; starting it again. Its log ends: %s",
            self.server.pid, data, ends,
        )  # fmt: skip
        while not self._closing.is_set():
            self._attempts += 1
            try:
                self.server = restart(self.server, timeout_seconds=START_SECONDS)
            except PostgresError as error:
                log.error("PostgreSQL did not start (attempt %d of %d): %s", self._attempts, ATTEMPTS, error)
                if self._attempts >= ATTEMPTS:
                    raise PostgresError(
                        f"PostgreSQL in {data} died and {ATTEMPTS} starts in a row failed;"
                        f" mend what its log names, then start again. The last failure: {error}"
                    ) from error
            else:
                self._up_since = time.monotonic()
                log.warning(
                    "PostgreSQL runs again (pid %d) after %.1f s", self.server.pid, self._up_since - died
                )
                return
            self._closing.wait(min(FIRST_PAUSE_SECONDS * 2 ** (self._attempts - 1), LONGEST_PAUSE_SECONDS))

    def _fail(self, error: PostgresError) -> None:
        self.failure = error
        self._on_failure()
