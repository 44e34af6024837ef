"""``queen`` as a user runs it: in a pipe, and on a terminal."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import fcntl
import functools
import json
import os
import pty
import re
import shutil
import signal
import struct
import tempfile
import termios
from collections.abc import AsyncIterator
from typing import Any

from tests.integration.cli.forking import Forks
from tests.processes import QUEEN, clean_environment

# Compiled once for all runs: most of the time of a short command is imports.
_COMPILED = tempfile.mkdtemp(prefix="queenstream-test-compiled-")
atexit.register(shutil.rmtree, _COMPILED, ignore_errors=True)
_CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def environment(**more: str) -> dict[str, str]:
    """What a run sees: nothing of the user's own, the broker by QUEEN_URL."""
    found = clean_environment(TERM="xterm-256color", XDG_CONFIG_HOME=_COMPILED, PYTHONPYCACHEPREFIX=_COMPILED)
    for name in ("PYTHONDONTWRITEBYTECODE", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        found.pop(name, None)
    return found | more


@functools.cache
def forks() -> Forks:
    """What starts ``queen`` quickly, for all tests of this process."""
    made = Forks()
    atexit.register(made.close)
    return made


class Done:
    """A run to files that has ended."""

    def __init__(self, code: int, out: bytes, err: bytes) -> None:
        self.code, self.out, self.err = code, out.decode(), err.decode()

    @property
    def rows(self) -> list[Any]:
        """What it printed, an object a line; the run must have gone well and said nothing else."""
        assert (self.code, self.err) == (0, "")
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def row(self) -> Any:
        """The one object that it printed."""
        [only] = self.rows
        return only

    def failed(self, code: int, *parts: str) -> None:
        """It ended with that code and said these things in one line on standard error."""
        assert self.code == code, self.err
        assert self.err.startswith("queen: ")
        assert self.err.count("\n") == 1, self.err
        for part in parts:
            assert part in self.err


class Queen:
    """Runs ``queen`` against one broker."""

    def __init__(self, url: str = "", **environment: str) -> None:
        self._environment = {**({"QUEEN_URL": url} if url else {}), **environment}

    async def start(self, *args: str, **more: Any) -> asyncio.subprocess.Process:
        """A run under way, with pipes on all sides."""
        pipe = asyncio.subprocess.PIPE
        known: dict[str, Any] = {"stdin": pipe, "stdout": pipe, "stderr": pipe, **more}
        return await asyncio.create_subprocess_exec(
            QUEEN, *args, env=environment(**self._environment), **known
        )

    async def __call__(self, *args: str, stdin: str | bytes = b"") -> Done:
        """A run to its end."""
        sent = stdin.encode() if isinstance(stdin, str) else stdin
        return Done(*await asyncio.wait_for(forks().run(args, environment(**self._environment), sent), 60))

    async def rows(self, *args: str, stdin: str | bytes = b"") -> list[Any]:
        """What a run printed, an object a line."""
        return (await self(*args, stdin=stdin)).rows

    def terminal(
        self, *args: str, columns: int = 120, **more: Any
    ) -> contextlib.AbstractAsyncContextManager[Terminal]:
        """A run on a terminal; ended at the end whatever happens."""
        return on_terminal([QUEEN, *args], environment(**self._environment), columns, **more)


@contextlib.asynccontextmanager
async def on_terminal(
    command: list[str], known: dict[str, str], columns: int = 120, **more: Any
) -> AsyncIterator[Terminal]:
    """A command on a terminal; ended at the end whatever happens."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    ends: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs, **more}
    process = await asyncio.create_subprocess_exec(
        *command,
        env=known,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),  # Ctrl-C reaches it
        **ends,
    )
    os.close(theirs)
    os.set_blocking(ours, False)
    running = Terminal(process, ours)
    try:
        yield running
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGKILL)
            await process.wait()
        running.close()


class Terminal:
    """What somebody at a terminal sees and types."""

    def __init__(self, process: asyncio.subprocess.Process, descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self._raw = b""
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def _read(self) -> None:
        try:
            got = os.read(self._descriptor, 65536)
        except OSError:  # the other end is closed
            got = b""
        if got:
            self._raw += got
        else:
            asyncio.get_running_loop().remove_reader(self._descriptor)
        self._changed.set()

    @property
    def raw(self) -> str:
        """Everything that was shown, with colours and movements."""
        return self._raw.decode(errors="replace")

    @property
    def text(self) -> str:
        """Everything that was shown, without them."""
        return _CODES.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.text.splitlines()]

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    async def until(self, shown: str, times: int = 1) -> None:
        """Wait until it is there, so many times."""
        async with asyncio.timeout(30):
            while self.text.count(shown) < times:
                self._changed.clear()
                await self._changed.wait()

    async def ended(self) -> int:
        """Wait for the end; gives the exit code."""
        code = await asyncio.wait_for(self.process.wait(), 30)
        self._read()
        return code

    def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
