"""A pipeline as a process, for tests to kill: python -m tests.integration.local.job FOLDER COUNT [SECONDS]

It reads numbers, counts them in windows, gives each a random tag (so that work done twice would show), and
writes both to files. It prints a line for each batch that its sinks have.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from queenstream.core.aggregates import count, sum_
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Files, Function, Generator
from queenstream.pipeline.shorthand import session, tumbling
from queenstream.pipeline.state import State


def numbered(total: int, pause_seconds: float) -> Generator[dict[str, Any]]:
    def numbers(taken: int) -> Iterator[dict[str, Any]]:
        for n in range(taken, total):
            if n % 50 == 0:
                time.sleep(pause_seconds)  # so that there are many batches to be killed in
            yield {"n": n, "user": n % 7, "at": n * 100}

    return Generator(numbers, name="numbers")


def tag(record: dict[str, Any]) -> dict[str, Any]:
    return {**record, "tag": uuid.uuid4().hex}


def running_total(key: int, record: dict[str, Any], state: State) -> dict[str, Any]:
    state.set("total", state.get("total", 0) + record["n"])
    return {"user": key, "n": record["n"], "total": state.get("total"), "tag": record["tag"]}


def job(folder: Path, total: int, pause_seconds: float) -> Pipeline[Any]:
    """The pipeline."""
    begin = (
        Pipeline("job")
        .source(numbered(total, pause_seconds))
        .transform("tag", tag)
        .event_time("at")
        .key_by("user")
    )
    totals = begin.stateful(running_total).to(Files(folder / "totals", format="ndjson"))
    windows = begin.window(tumbling("10s"), grace="1s").aggregate(n=count(), total=sum_("n"))
    sessions = begin.window(session("500ms")).aggregate(n=count())
    return (
        totals.union(windows.to(Files(folder / "windows", format="ndjson")))
        .union(sessions.to(Files(folder / "sessions", format="ndjson")))
        .to(Function(lambda rows: print(len(rows), flush=True), batch=True))  # noqa: T201 - the test waits for it
    )


if __name__ == "__main__":
    where, said, *pause = sys.argv[1:]
    run = job(Path(where), int(said), float(pause[0]) if pause else 0.0).start(
        engine="local", checkpoint=str(Path(where) / "state")
    )
    with run.stopping_on_signals():  # type: ignore[attr-defined]
        run.wait()
