"""``queen`` without the time that imports take: a process that has imported it forks another for each run.

What runs is the same ``main()``, in a process, a folder and an environment of its own. Runs on a terminal,
and those that a test talks to, are started as a user starts them (``running.py``).
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NoReturn

_DIGITS = 16  # of a number that goes over a socket
_IMPORTED = (
    "queenstream.client._sync.client",
    "queenstream.pipeline.builder",
    "rich.table",
    "typer._adapters",
    "yaml",
)


class Forks:
    """Starts ``queen`` in forks of one process; that ends with ours."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="queenstream-test-forks-")
        self._path = str(Path(self._folder.name) / "socket")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(self._path)
            listening.listen()
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({listening.fileno()})"],
                pass_fds=[listening.fileno()],
                cwd=Path(__file__).parents[3],
                stdin=subprocess.PIPE,  # closed when we end, however that comes
            )

    def close(self) -> None:
        """No more runs."""
        self._process.kill()
        self._process.communicate()
        self._folder.cleanup()

    async def run(
        self, args: tuple[str, ...], environment: dict[str, str], sent: bytes
    ) -> tuple[int, bytes, bytes]:
        """A run to its end: its exit code, and what it wrote."""
        with contextlib.ExitStack() as opened:
            files = [opened.enter_context(tempfile.TemporaryFile()) for _ in range(3)]
            files[0].write(sent)
            files[0].seek(0)
            connection = opened.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(self._path)
            told = {"args": args, "environment": environment, "folder": str(Path.cwd())}
            text = json.dumps(told).encode()
            socket.send_fds(connection, [_number(len(text))], [file.fileno() for file in files])
            connection.sendall(text)
            connection.setblocking(False)
            pid, code = await _answer(connection), None
            try:
                code = await _answer(connection)
            finally:
                if code is None:
                    os.kill(pid, signal.SIGKILL)
            return code, _written(files[1]), _written(files[2])


async def _answer(connection: socket.socket) -> int:
    return int(await asyncio.get_running_loop().sock_recv(connection, _DIGITS))


def _number(value: int) -> bytes:
    return f"{value:{_DIGITS}}".encode()


def _written(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


# The process that forks


def serve(descriptor: int) -> None:
    """Answer each connection with the pid of a run, and with its exit code."""
    from queenstream import cli

    for name in (*map(cli.module_of, cli._COMMANDS), *_IMPORTED):
        importlib.import_module(name)
    gc.freeze()  # or the first collection of each fork would copy all of it
    listening = socket.socket(fileno=descriptor)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those who answer
    while sys.stdin not in select.select([listening, sys.stdin], [], [])[0]:
        connection, _ = listening.accept()
        if os.fork() == 0:
            listening.close()
            _answer_with_a_run(connection)
        connection.close()


def _answer_with_a_run(connection: socket.socket) -> NoReturn:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    size, files, _, _ = socket.recv_fds(connection, _DIGITS, 3)
    with connection.makefile("rb") as reading:
        told = reading.read(int(size))
    pid = os.fork()
    if pid == 0:
        connection.close()
        for number, file in enumerate(files):
            os.dup2(file, number)
        _run(**json.loads(told))
    connection.send(_number(pid))
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        connection.send(_number(code))
    os._exit(0)


def _run(args: list[str], environment: dict[str, str], folder: str) -> NoReturn:
    from queenstream.cli import main

    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = ["queen", *args]
    main()
    sys.exit()
