"""What the Spark benchmarks share: a PostgreSQL that listens on TCP, a queue full of messages, a session."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from harness import databases
from harness.servers import CannotRun
from queenstream import postgres
from queenstream.broker.storage.database import prepare
from queenstream.spark import session

DRIVER = "org.postgresql:postgresql:42.7.7"
CORES = os.cpu_count() or 1

# As 1,000 messages a push would leave them, in 64 partitions, 2 ms apart.
_FILL = """
insert into queen.messages (partition_id, id, seq, created_at, transaction_id, payload)
select 1 + i % 64, ((1 + i / 1000)::bigint << 16) + i % 1000, 1 + i / 64,
    timestamptz '2026-01-01' + i * interval '2 ms', md5(i::text),
    convert_to(format('{"user":"user-%s","action":"click","value":%s,"n":%s,"page":"/products/%s"}',
        $user$, $value$, i, i % 300), 'UTF8')
from generate_series(0, $messages$ - 1) i"""


@contextlib.contextmanager
def server() -> Iterator[postgres.Server]:
    """An embedded PostgreSQL with our schema, on a port too: Spark's JDBC source knows no other way."""
    base = Path(tempfile.mkdtemp(prefix="queenstream-bench-"))
    base.chmod(0o711)
    started = postgres.start(base / "data", port=0)
    try:
        asyncio.run(prepare(started.url))
        yield started
    finally:
        started.stop()
        shutil.rmtree(base, ignore_errors=True)


def fill(url: str, messages: int, user: str = "i % 5000", value: str = "i % 1000 + 0.5") -> None:
    """A queue ``events`` with so many messages; whose they are and what they say is SQL over ``i``."""
    rows = _FILL.replace("$messages$", str(messages)).replace("$user$", user).replace("$value$", value)
    databases.query(
        url,
        "insert into queen.queues (name, ttl_seconds) values ('events', 0)",
        "insert into queen.partitions (queue_id, name) select 1, 'user-' || i from generate_series(1, 64) i",
        rows,
        f"select setval('queen.batches', {messages // 1000 + 2})",
        "vacuum (freeze, analyze) queen.messages",
        "select pg_prewarm('queen.messages')" if _has_prewarm(url) else "select count(*) from queen.messages",
    )


def _has_prewarm(url: str) -> bool:
    return bool(
        databases.query(url, "select 1 from pg_available_extensions where name = 'pg_prewarm'")
    ) and bool(databases.query(url, "create extension if not exists pg_prewarm", "select 1"))


def start(
    *jars: Path, master: str = f"local[{CORES}]", conf: Mapping[str, str] | None = None
) -> SparkSession:
    """A session as our users get it, on all cores unless another master is named."""
    return session("benchmark", master, conf={"spark.jars": ",".join(map(str, jars)), **(conf or {})})


def jdbc_driver() -> Path:
    """PostgreSQL's JDBC driver, from Maven Central, kept between runs."""
    folder = Path(tempfile.gettempdir()) / "queenstream-bench-jars"
    _, name, version = DRIVER.split(":")
    found = folder / f"{name}-{version}.jar"
    if not found.exists():
        if shutil.which("mvn") is None:
            raise CannotRun("no mvn to fetch PostgreSQL's JDBC driver with (apt-get install maven)")
        command = [
            "mvn",
            "-q",
            "-B",
            "dependency:copy",
            f"-Dartifact={DRIVER}",
            f"-DoutputDirectory={folder}",
        ]
        if subprocess.run(command, check=False).returncode:
            raise CannotRun(f"Maven did not give {DRIVER}")
    return found


def seconds(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def side_by_side(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> float:
    """Run ``work(barrier, *arguments)`` in a process each; the time from all ready to all done."""
    context = multiprocessing.get_context("spawn")
    barrier: Barrier = context.Barrier(len(arguments) + 1)
    processes = [context.Process(target=work, args=(barrier, *each)) for each in arguments]
    for process in processes:
        process.start()
    barrier.wait(120)
    began = time.perf_counter()
    for process in processes:
        process.join()
    taken = time.perf_counter() - began
    if any(process.exitcode for process in processes):
        raise CannotRun("a process beside Spark failed; its error is above")
    return taken
