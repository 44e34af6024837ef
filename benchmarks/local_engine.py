"""The in-process engine against Bytewax on the same jobs, with many keys, and what an open window weighs."""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import psutil

from harness import report
from queenstream import Function, Memory, Pipeline, count, session, sum_, tumbling
from queenstream.core.batches import Batch
from queenstream.engines.local.engine import Engine

QUESTION = (
    "the local engine, one process: three jobs against Bytewax, up to a million keys, memory per window"
)
TARGETS = {"filter + map": 1.0, "tumbling count and sum": 3.0, "sessions": 3.0}
MANY_KEYS = 1_000_000

Record = dict[str, Any]
Job = Callable[[Sequence[Record]], list[Any]]


# The events, which both get


def even_events(number: int) -> list[Record]:
    """1,000 users in turn, a millisecond apart: every minute has a window of each."""
    return [{"user": f"user-{n % 1000}", "value": n % 7, "at": n} for n in range(number)]


def bursts(number: int) -> list[Record]:
    """100 of 1,000 users for 20 s, then another 100: each burst of a user is a session."""
    return [
        {"user": f"user-{n // 20_000 % 10 * 100 + n % 100}", "value": n % 7, "at": n} for n in range(number)
    ]


# Our jobs


def _finished(pipeline: Pipeline[Any]) -> list[Any]:
    rows: list[Any] = []
    pipeline.to(Function(rows.extend, name="rows", batch=True)).run(engine="local")
    return rows


def filter_and_map(events: Sequence[Record]) -> list[Any]:
    return _finished(
        Pipeline("benchmark")
        .source(Memory(events))
        .filter(lambda event: event["value"] % 2 == 0)
        .transform("double", lambda event: {**event, "double": event["value"] * 2})
    )


def in_windows(events: Sequence[Record]) -> list[Any]:
    return _finished(_counted(Pipeline("benchmark").source(Memory(events)), tumbling("1m")))


def in_sessions(events: Sequence[Record]) -> list[Any]:
    return _finished(_counted(Pipeline("benchmark").source(Memory(events)), session("10s")))


def _counted(pipeline: Pipeline[Any], window: Any) -> Pipeline[Any]:
    return pipeline.key_by("user").window(window, time="at").aggregate(n=count(), total=sum_("value"))


# Against Bytewax


def peer_jobs(out: report.Report) -> dict[str, Job]:
    try:
        from harness import bytewax_jobs
    except ImportError:
        out.note("Bytewax is not installed (uv sync --group bench): only our own rates")
        return {}
    return {
        "filter + map": bytewax_jobs.filter_and_map,
        "tumbling count and sum": bytewax_jobs.tumbling,
        "sessions": bytewax_jobs.sessions,
    }


def rate_of(job: Job, events: Sequence[Record]) -> tuple[float, int]:
    """Events a second, and how many rows came of them."""
    gc.collect()
    started = time.perf_counter()
    rows = job(events)
    return len(events) / (time.perf_counter() - started), len(rows)


def against_bytewax(out: report.Report, *, quick: bool) -> None:
    jobs = {"filter + map": filter_and_map, "tumbling count and sum": in_windows, "sessions": in_sessions}
    peers = peer_jobs(out)
    # Bytewax gets fewer events where it is slow: a rate does not depend on how long it is measured.
    sizes = {
        "filter + map": (400_000, 400_000),
        "tumbling count and sum": (300_000, 60_000),
        "sessions": (300_000, 60_000),
    }
    rounds = 3 if quick else 7
    table: list[list[Any]] = []
    for name, job in jobs.items():
        factor = 1 if quick else 3
        mine, theirs = (size * factor for size in sizes[name])
        make = bursts if name == "sessions" else even_events
        events = make(mine)
        ours: list[float] = []
        peer: list[float] = []
        for at in range(rounds + 1):  # the first warms up
            rate, rows = rate_of(job, events)
            ours += [rate] * (at > 0)
            if name in peers:
                other, _ = rate_of(peers[name], events[:theirs])
                peer += [other] * (at > 0)
        if name in peers:
            check_rows(job, peers[name], events[:theirs])
        table.append([name, report.median(ours), report.median(peer), rows])
        out.figures[name] = {"ours": report.median(ours), "bytewax": report.median(peer)}
    out.table(["events/s", "ours", "Bytewax", "our rows"], table)
    for name in jobs:
        if name in peers:
            figures = out.figures[name]
            out.at_least(f"{name} against Bytewax", figures["ours"] / figures["bytewax"], TARGETS[name])


def check_rows(ours: Job, theirs: Job, events: Sequence[Record]) -> None:
    """The same job: as many rows, and as much in them."""
    mine, peers = ours(events), theirs(events)
    assert len(mine) == len(peers), f"{len(mine)} rows here, {len(peers)} there"
    if "total" in mine[0]:
        found = sorted((row["user"], row["n"], row["total"]) for row in mine)
        other = sorted((user, *values) for user, (_, values) in peers)
        for who, rows in (("we", found), ("Bytewax", other)):
            counted = sum(row[1] for row in rows)
            assert counted == len(events), f"{who} counted {counted} of {len(events)} events"
        assert found == other


# Many keys, and memory


def engine_rate(keys: int, events: int) -> float:
    """Events for each second of the processor through a keyed window, without source and sink."""
    plan = _counted(Pipeline("keys").source(Memory([])), tumbling("1h")).to(Function(print)).plan()
    engine = Engine(plan)

    async def run() -> float:
        taken = 0.0
        for first in range(0, events, 10_000):
            numbers = range(first, first + 10_000)
            # Neighbours in time are far apart by key.
            records = [{"user": f"user-{n * 7919 % keys}", "value": n % 7, "at": n} for n in numbers]
            started = time.process_time()
            await engine.process({"memory": Batch(records)})
            taken += time.process_time() - started
        return events / taken

    return asyncio.run(run())


def many_keys(out: report.Report, *, quick: bool) -> None:
    # Each of the many keys comes several times: to make a window is dearer than to add to it.
    events, rounds = (3 * MANY_KEYS, 1) if quick else (5 * MANY_KEYS, 3)
    rates: dict[int, list[float]] = {1_000: [], MANY_KEYS: []}
    for _ in range(rounds):
        for keys, found in rates.items():
            gc.collect()
            found.append(engine_rate(keys, events))
    few, many = (report.median(found) for found in rates.values())
    out.table(["keys", "events/s of CPU"], [["1,000", few], ["1,000,000", many]])
    out.figures["keys"] = {"few": few, "many": many}
    out.at_most("1,000 keys against 1,000,000", few / many, 2.0)


WEIGH = "--weigh"


def weigh() -> None:
    """In a process of its own: what a million open windows add to it."""
    process = psutil.Process()
    engine_rate(1, 10_000)  # everything that is loaded once
    gc.collect()
    before = process.memory_info().rss
    keep: list[Engine] = []
    plan = _counted(Pipeline("memory").source(Memory([])), tumbling("1h")).to(Function(print)).plan()
    keep.append(Engine(plan))

    async def fill() -> None:
        for first in range(0, MANY_KEYS, 10_000):
            numbers = range(first, first + 10_000)
            records = [{"user": f"user-{n}", "value": 1, "at": n} for n in numbers]
            await keep[0].process({"memory": Batch(records)})

    asyncio.run(fill())
    gc.collect()
    print(f"{(process.memory_info().rss - before) / MANY_KEYS:.0f}")


def memory(out: report.Report) -> None:
    answer = subprocess.run(
        [sys.executable, __file__, WEIGH], check=True, capture_output=True, text=True, env=os.environ
    )
    each = float(answer.stdout)
    out.figures["bytes_per_open_window"] = each
    out.note("an open window's bytes are with its key (about 60 of them) and a count and a sum")
    out.at_most("bytes for an open window of a key", each, 1_000)


def run(out: report.Report, options: argparse.Namespace) -> None:
    against_bytewax(out, quick=options.quick)
    many_keys(out, quick=options.quick)
    memory(out)


if __name__ == "__main__":
    if sys.argv[1:] == [WEIGH]:
        weigh()
    else:
        report.main(QUESTION, run)
