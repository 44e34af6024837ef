"""A primary and a streaming standby made of the embedded server's programs, each on a TCP port."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from queenstream import postgres
from queenstream.postgres._account import Account, account_for
from queenstream.postgres._binaries import Binaries, locate
from tests.processes import folder, free_port

READY_SECONDS = 60.0


@dataclass(frozen=True)
class Pair:
    """Both servers; ``url`` names them both."""

    primary: postgres.Server
    standby: Path
    standby_port: int
    account: Account
    binaries: Binaries

    @property
    def url(self) -> str:
        assert self.primary.tcp_url is not None
        head, _, rest = self.primary.tcp_url.rpartition("@")
        address, _, database = rest.partition("/")
        return f"{head}@{address},127.0.0.1:{self.standby_port}/{database}?target_session_attrs=read-write"

    def kill_primary(self) -> None:
        """As a machine that goes down: nothing is written any more, no connection is ended in order."""
        os.kill(self.primary.pid, signal.SIGKILL)

    def promote(self) -> None:
        """Make the standby the primary."""
        run(self.account, [self.binaries["pg_ctl"], "promote", "-D", str(self.standby), "-w", "-t", "60"])


def psql(pair: Pair, statement: str) -> str:
    """Run a statement on the first primary, through its socket; gives what it answers."""
    [(socket, port)] = postgres.hosts_of(pair.primary.url)
    where = [f"--host={socket}", f"--port={port}", "--username=postgres", "--dbname=queen"]
    how = ["--no-psqlrc", "--tuples-only", "--no-align", f"--command={statement}"]
    return run(pair.account, [pair.binaries["psql"], *where, *how])


def run(account: Account, argv: list[str]) -> str:
    answer = account.run(argv, timeout_seconds=READY_SECONDS)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout.strip()


@contextlib.contextmanager
def streaming_pair() -> Iterator[Pair]:
    """A primary whose commits wait until they are on the standby."""
    with folder() as place:
        place.chmod(0o777)  # the account that runs the servers makes the standby's folder
        primary = postgres.start(place / "primary", port=0)
        account = account_for(primary.data)
        binaries = locate(account)
        standby, port = place / "standby", free_port()
        pair = Pair(primary, standby, port, account, binaries)
        try:
            [(socket, primary_port)] = postgres.hosts_of(primary.url)
            run(account, [
                binaries["pg_basebackup"], f"--pgdata={standby}", f"--host={socket}",
                f"--port={primary_port}", "--username=postgres", "--wal-method=stream",
                "--checkpoint=fast", "--write-recovery-conf", "--no-sync",
            ])  # fmt: skip
            options = f"-c port={port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={place}"
            run(account, [
                binaries["pg_ctl"], "start", "-D", str(standby), "-w", "-t", "60", "-l",
                str(standby / "log"), "-o", options,
            ])  # fmt: skip
            # From here on what is answered is on both.
            psql(pair, "alter system set synchronous_standby_names = '*'")
            psql(pair, "select pg_reload_conf()")
            deadline = time.monotonic() + READY_SECONDS
            while psql(pair, "select sync_state from pg_stat_replication") != "sync":
                assert time.monotonic() < deadline
            yield pair
        finally:
            with contextlib.suppress(subprocess.SubprocessError):
                account.run(
                    [binaries["pg_ctl"], "stop", "-D", str(standby), "-m", "immediate"], timeout_seconds=30
                )
            primary.stop()
