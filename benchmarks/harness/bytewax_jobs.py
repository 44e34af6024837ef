"""The jobs of ``local_engine.py`` as they are written for Bytewax; only imported if it is installed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import bytewax.operators as op
from bytewax.dataflow import Dataflow, Stream
from bytewax.operators import windowing
from bytewax.testing import TestingSink, TestingSource, run_main

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
BATCH = 1_000  # records that the source hands over at once: larger ones are no faster

Record = dict[str, Any]
Job = Callable[[Sequence[Record]], list[Any]]


def filter_and_map(events: Sequence[Record]) -> list[Any]:
    flow, stream = _from(events)
    kept = op.filter("filter", stream, lambda event: event["value"] % 2 == 0)
    return _run(flow, op.map("map", kept, lambda event: {**event, "double": event["value"] * 2}))


def tumbling(events: Sequence[Record]) -> list[Any]:
    windower = windowing.TumblingWindower(length=timedelta(minutes=1), align_to=EPOCH)
    return _windowed(events, windower)


def sessions(events: Sequence[Record]) -> list[Any]:
    return _windowed(events, windowing.SessionWindower(gap=timedelta(seconds=10)))


def _windowed(events: Sequence[Record], windower: windowing.Windower[Any]) -> list[Any]:
    flow, stream = _from(events)
    keyed = op.key_on("key", stream, lambda event: event["user"])
    clock: windowing.EventClock[Record] = windowing.EventClock(
        ts_getter=lambda event: EPOCH + timedelta(milliseconds=event["at"]),
        wait_for_system_duration=timedelta(0),
        now_getter=lambda: EPOCH,  # else time passes on a busy machine, and events become late by it
    )
    # Count and sum at once; in order of arrival, as they do not depend on order: it is the faster way.
    made = windowing.fold_window(
        "window", keyed, clock, windower, lambda: (0, 0), _add, _merge, ordered=False
    )
    return _run(flow, made.down)


def _add(held: tuple[int, int], event: Record) -> tuple[int, int]:
    return held[0] + 1, held[1] + event["value"]


def _merge(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def _from(events: Sequence[Record]) -> tuple[Dataflow, Stream[Record]]:
    flow = Dataflow("benchmark")
    return flow, op.input("in", flow, TestingSource(events, batch_size=BATCH))


def _run(flow: Dataflow, stream: Stream[Any]) -> list[Any]:
    rows: list[Any] = []
    op.output("out", stream, TestingSink(rows))
    run_main(flow)
    return rows
