"""What ``queen up`` runs: the database, one broker or several on one port, and demo traffic."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import uvloop

from queenstream import config, postgres
from queenstream.broker.app import Broker
from queenstream.broker.auth import access
from queenstream.broker.storage.database import connect, prepare
from queenstream.cli.support import logs
from queenstream.cli.support.exit_codes import PortTaken
from queenstream.errors import QueenstreamError

log = logging.getLogger("queenstream.up")

RESTARTS, RESTART_WINDOW_SECONDS = 5, 60.0
DEMO_END_SECONDS, GROUP_END_SECONDS = 20.0, 5.0


def run(settings: config.Settings, *, demo: bool) -> None:
    """Serve until a signal comes."""
    access.refuse_exposure(settings)
    if access.is_exposed(settings):
        log.warning(
            "everybody who reaches %s:%s may administer this broker without a token (--insecure); "
            "set a key: queen keys new", settings.host, settings.port,
        )  # fmt: skip
    check_port(settings.host, settings.port)
    with stop_signals() as stopping, database(settings) as (url, embedded):
        if stopping.is_set():
            return
        if settings.workers == 1:
            uvloop.run(serve(settings, url, embedded, demo=demo))
        else:
            asyncio.run(prepare(url))
            supervise(settings, url, embedded, demo=demo)


class Stopping:
    """Set by a signal that comes before (or outside of) the event loop."""

    def __init__(self) -> None:
        self._set = False

    def set(self, *_: object) -> None:
        self._set = True

    def is_set(self) -> bool:
        return self._set


@contextlib.contextmanager
def stop_signals() -> Iterator[Stopping]:
    """From here on a signal ends us in order: PostgreSQL is stopped in any case."""
    stopping = Stopping()
    before = {number: signal.signal(number, stopping.set) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def check_port(host: str, port: int) -> None:
    """A port that is taken is said before anything is started."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(
                f"port {port} on {host} is in use; stop what listens there or choose another with --port"
            ) from None
        raise PortTaken(f"cannot listen on {host}:{port}: {error}; choose another --host or --port") from None


@contextlib.contextmanager
def database(settings: config.Settings) -> Iterator[tuple[str, Path | None]]:
    """The URL of the database, and the data folder if it is the embedded one.

    That one is restarted when it dies, and stopped by the last broker. If it does not stay up, serving ends
    as by a signal, and then with the reason.
    """
    if settings.pg:
        yield settings.pg, None
        return
    with contextlib.ExitStack() as stack:
        if settings.ephemeral:
            server = stack.enter_context(postgres.ephemeral())
        else:
            server = postgres.start(settings.data)
        supervisor = postgres.Supervisor(server, on_failure=lambda: os.kill(os.getpid(), signal.SIGTERM))
        try:
            with supervisor:
                yield server.url, server.data
        finally:
            if settings.ephemeral or asyncio.run(brokers_connected(server.url)) == 0:
                supervisor.server.stop()
            else:
                log.info("another broker uses the database: it stays up")
        if supervisor.failure is not None:
            raise supervisor.failure


async def brokers_connected(url: str) -> int:
    """How many connections of other brokers the database has."""
    try:
        connection = await connect(url, application_name="queenstream-stop")
    except QueenstreamError:
        return 0
    try:
        count: int = await connection.fetchval(
            "select count(*) from pg_stat_activity where application_name = 'queenstream'"
        )
        return count
    finally:
        await connection.close(timeout=5)


def announce(settings: config.Settings, port: int) -> None:
    """Where it is and what to try: for people on a terminal, as JSON in a pipe."""
    address = config.http_address(settings.host, port)
    if not sys.stdout.isatty():
        line = {"event": "ready", "address": address, "console": f"{address}/", "workers": settings.workers}
        sys.stdout.write(json.dumps(line) + "\n")
    else:
        where: object = settings.data
        if settings.pg or settings.ephemeral:
            where = "in your PostgreSQL" if settings.pg else "in a temporary folder, gone at the end"
        item = '{"items":[{"queue":"orders","payload":{"hello":"world"}}]}'
        sys.stdout.write(
            f"\n  Queenstream is ready\n\n"
            f"  broker    {address}\n"
            f"  console   {address}/\n"
            f"  data      {where}\n\n"
            f"  try       curl -s {address}/api/v1/push -d '{item}'\n"
            f"  then      curl -s '{address}/api/v1/pop/queue/orders?autoAck=true'\n\n"
            f"  Ctrl-C stops it.\n\n"
        )
    sys.stdout.flush()


def calm_collector() -> None:
    """What is there now stays; requests make few cycles, so look for them less often than is usual."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


def _end_group(group: int) -> None:
    """Wait for what a process has left in its group: Spark's Java ends a little after it."""
    deadline = time.monotonic() + GROUP_END_SECONDS
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < deadline:
            os.killpg(group, 0)
            time.sleep(0.05)
        os.killpg(group, signal.SIGKILL)


class Demo:
    """Demo traffic and a pipeline on it: processes beside the broker, which end before it does."""

    def __init__(self, address: str, *, wanted: bool) -> None:
        modules = ("run", "pipeline") if wanted else ()
        # In sessions of their own: Ctrl-C reaches us alone, and Spark ends in order instead of all at once.
        self._processes = [
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", f"queenstream.cli.demo.{module}", address], start_new_session=True
            )
            for module in modules
        ]

    def close(self) -> None:
        """Tell them to end, and wait until they have."""
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(DEMO_END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            _end_group(process.pid)


async def serve(
    settings: config.Settings,
    url: str,
    embedded: Path | None = None,
    *,
    worker: Any = None,
    demo: bool = False,
) -> None:
    """One broker until a signal comes; ``worker`` is told the port instead of the user."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    broker = Broker(settings, url, embedded=embedded)
    started = asyncio.create_task(broker.start(reuse_port=worker is not None))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
    if started.done():
        started.result()
        calm_collector()
        if worker is None:
            announce(settings, broker.port)
        else:
            worker.send(broker.port)
    else:
        started.cancel()
        await asyncio.gather(started, return_exceptions=True)
    traffic = Demo(broker.address, wanted=demo and broker.ready)
    try:
        await stopped
    finally:
        await asyncio.to_thread(traffic.close)  # while it ends, it still talks to the broker
    log.info("stopping: requests in flight finish")
    await broker.stop()


def _work(settings: config.Settings, url: str, embedded: Path | None, ready: Any) -> None:
    """What a worker process runs."""
    logs.configure(settings.log_level, settings.log_format)
    try:
        uvloop.run(serve(settings, url, embedded, worker=ready))
    except QueenstreamError as error:
        log.error("%s", error)
        sys.exit(1)


def supervise(settings: config.Settings, url: str, embedded: Path | None, *, demo: bool) -> None:
    """Several brokers on one port; one that dies is replaced, unless they keep dying."""
    context = multiprocessing.get_context("spawn")
    # Held, not listened on: it fixes the port that the workers share.
    held = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET, socket.SOCK_STREAM)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    held.bind((settings.host, settings.port))
    port = held.getsockname()[1]
    settings = config.replace(settings, port=port)

    def launch() -> tuple[BaseProcess, Any]:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(settings, url, embedded, theirs), daemon=False)
        process.start()
        theirs.close()
        return process, ours

    stopping = Stopping()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stopping.set)
    workers = [launch() for _ in range(settings.workers)]
    deaths: list[float] = []
    try:
        ready = all(_ready(process, pipe, stopping) for process, pipe in workers)
        if ready:
            announce(settings, port)
        with contextlib.closing(Demo(config.http_address(settings.host, port), wanted=demo and ready)):
            while not stopping.is_set():
                for at, (process, _) in enumerate(workers):
                    if process.is_alive() or stopping.is_set():
                        continue
                    deaths = [t for t in deaths if t > time.monotonic() - RESTART_WINDOW_SECONDS]
                    deaths.append(time.monotonic())
                    log.error("worker %s died with code %s", process.pid, process.exitcode)
                    if len(deaths) > RESTARTS:
                        raise QueenstreamError("the workers keep dying; the log above says why")
                    workers[at] = launch()
                time.sleep(0.2)
    finally:
        for process, _ in workers:
            if process.is_alive():
                process.terminate()
        for process, _ in workers:
            process.join(settings.drain_timeout + 15)
            if process.is_alive():
                process.kill()
        held.close()


def _ready(process: BaseProcess, pipe: Any, stopping: Stopping) -> bool:
    while process.is_alive() and not stopping.is_set():
        if pipe.poll(0.1):
            with contextlib.suppress(EOFError):
                pipe.recv()
                return True
            return False
    return False
