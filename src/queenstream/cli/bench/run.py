"""Running ``queen bench``: prepare a queue, drive the load, show it, put away what was made."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

import uvloop

from queenstream.cli.bench.connections import Connection, Tally, connect, drive
from queenstream.cli.bench.display import Lines, Meter, Screen, Summary, View, summarize
from queenstream.cli.bench.end_to_end import EndToEnd, Latency
from queenstream.cli.bench.load import Consume, Push, Weigher, pushers
from queenstream.cli.support.target import Target, in_path, must
from queenstream.errors import QueenstreamError

FILL_SECONDS = 600.0
FILL_CONNECTIONS, FILL_BATCH = 16, 100
STALL_SECONDS = 10.0  # a queue that is not empty gives a message within this time


class BenchFailed(QueenstreamError):
    """The run has ended, and not all was well."""


@dataclass(frozen=True)
class Plan:
    """What all three have in common. ``queue``: None for a fresh one."""

    target: Target
    queue: str | None
    keep: bool
    seconds: float
    output: str  # json or table


class Run:
    """One run: its names, its view, and what a signal ends."""

    def __init__(self, plan: Plan, command: str, view: View) -> None:
        self.plan, self.command, self.view = plan, command, view
        self.target = plan.target
        name = f"bench-{os.urandom(4).hex()}"
        self.queue = plan.queue or name
        self.group = name  # of our own, so that nobody's messages are taken
        self.stopped = False
        self._tally: Tally | None = None

    def stop(self) -> None:
        """A signal: end early, with all that belongs to the end. A second one: drop what is in flight."""
        if self._tally is not None:
            self._tally.stop()
            if self.stopped:
                self._tally.hurry()
        self.stopped = True

    async def call(self, method: str, path: str, body: Any = None, *, also: tuple[int, ...] = ()) -> int:
        """One call beside the load; the loop goes on meanwhile, so that signals are heard."""
        return await asyncio.to_thread(must, self.target, method, path, body, also=also)

    async def watch(
        self, phase: str, tally: Tally, work: Coroutine[Any, Any, None], of_messages: int = 0
    ) -> float:
        """Run the work and show it; gives the share of a core that we took."""
        self._tally = tally
        if self.stopped:
            tally.stop()
        meter = Meter(phase, tally, of_messages)
        spent, began = time.process_time(), time.perf_counter()
        task = asyncio.create_task(work)
        try:
            every = self.view.every_seconds
            for number in itertools.count(1):
                left = began + number * every - time.perf_counter()
                await asyncio.wait({task}, timeout=max(0.0, left) if every else None)
                if task.done():
                    break
                self.view.show(meter.read())
            await task
        finally:
            if not task.done():  # what shows it has failed: let the load end in order all the same
                tally.stop()
                await asyncio.wait({task}, timeout=2 * tally.grace)
            task.cancel()
            self._tally = None
        return (time.process_time() - spent) / (time.perf_counter() - began)

    def summary(self, tally: Tally, cpu_share: float, payload_bytes: int, *, whole: bool = True) -> Summary:
        """What was found, ready to be shown."""
        found = summarize(
            tally,
            command=self.command,
            url=self.target.url,
            queue=self.queue,
            payload_bytes=payload_bytes,
            whole=whole,
            cpu_share=cpu_share,
        )
        found.error = self.target.hide(found.error)
        found.interrupted = self.stopped
        return found

    def warn_if_slow(self, summary: Summary, wanted: float, got: float) -> None:
        """Say so when fewer messages were sent than was asked for."""
        if wanted and got < 0.95 * wanted:
            summary.warnings.append(
                f"{got:,.0f} messages/s were sent, not {wanted:,.0f}: all connections waited for answers;"
                " the broker is at its limit, or more --connections are needed"
            )


@contextlib.asynccontextmanager
async def prepared(run: Run, *, must_exist: bool = False, new_group: bool = False) -> AsyncIterator[None]:
    """The queue is there inside the block; what we made is gone after it, however it ends."""
    queue = f"/api/v1/resources/queues/{in_path(run.queue)}"
    made = ""  # the path of what is to be deleted
    if run.plan.queue is None:
        await run.call("POST", "/api/v1/configure", {"queue": run.queue})
        made = queue
    else:
        status = await run.call("GET", queue, also=(404,))
        if status == 404 and must_exist:
            raise BenchFailed(
                f"there is no queue {run.queue} at {run.target.url}; without --queue one is made"
            )
        if new_group:
            made = f"/api/v1/consumer-groups/{in_path(run.group)}/queues/{in_path(run.queue)}"
    try:
        yield
    except BaseException:
        with contextlib.suppress(QueenstreamError):  # the first trouble is the one to tell
            await _delete(run, made)
        raise
    await _delete(run, made)


async def _delete(run: Run, path: str) -> None:
    if not path or run.plan.keep:
        return
    try:
        await run.call("DELETE", path, also=(404,))
    except QueenstreamError as error:
        what = f"queue {run.queue}" if run.plan.queue is None else f"consumer group {run.group}"
        raise BenchFailed(
            f"the {what} could not be deleted and is still there: {error} (--keep leaves it on purpose)"
        ) from None


async def produce(run: Run, role: Push) -> Summary:
    """Push for a while."""
    role.queue = run.queue
    async with prepared(run):
        tally = Tally(run.plan.seconds)
        share = await run.watch("produce", tally, _driven(run, tally, pushers(tally, run.target, role)))
        found = run.summary(tally, share, tally.count * role.payload)
        found.extra = {
            "partitions": role.partitions, "batch": role.batch, "connections": role.connections,
            "payload_bytes": role.payload,
        }  # fmt: skip
        run.warn_if_slow(found, role.rate, tally.rate())
        run.view.end(found)
    return found


async def consume(run: Run, role: Consume, fill: Push, messages: int) -> Summary:
    """Drain a queue that was filled for it, or pop from a given one for a while."""
    role.queue = fill.queue = run.queue
    own_group = not role.group
    role.group = role.group or run.group
    fresh = run.plan.queue is None
    async with prepared(run, must_exist=True, new_group=own_group):
        if fresh:
            fill.most = messages
            role.most = await _fill(run, fill)
        tally = Tally(run.plan.seconds)
        connections = [Weigher(tally, run.target, role) for _ in range(role.connections)]
        work = _driven(run, tally, connections, role.most)
        share = await run.watch("consume", tally, work, role.most)
        found = run.summary(tally, share, tally.payload_bytes, whole=not fresh)
        found.extra = {
            "group": role.group, "batch": role.batch, "connections": role.connections,
            "auto_ack": role.auto_ack, "filled": role.most,
        }  # fmt: skip
        if tally.count < role.most and not run.stopped and not tally.errors:
            found.warnings.append("the time was over before the queue was empty; give more --seconds")
        run.view.end(found)
    return found


async def _fill(run: Run, role: Push) -> int:
    tally = Tally(FILL_SECONDS, strict=True)
    work = _driven(run, tally, pushers(tally, run.target, role))
    await run.watch("fill", tally, work, role.most)
    if tally.errors:
        raise BenchFailed(
            f"filling the queue failed after {tally.count} messages: {run.target.hide(tally.error)}"
        )
    if tally.count < role.most and not run.stopped:
        raise BenchFailed(f"filling took longer than {FILL_SECONDS:g} s; ask for fewer --messages")
    return tally.count


async def end_to_end(run: Run, role: Latency) -> Summary:
    """Send at a steady rate, and see when it arrives."""
    role.queue, role.group = run.queue, run.group
    async with prepared(run, new_group=True):
        if run.plan.queue is not None:
            # The group begins here, not at the queue's first message: what others sent is not for us.
            query = f"consumerGroup={in_path(role.group)}&subscriptionMode=new&autoAck=true"
            await run.call("GET", f"/api/v1/pop/queue/{in_path(role.queue)}?{query}")
        measured = EndToEnd(run.target, role, run.plan.seconds)
        tally, flight = measured.tally, measured.flight

        async def work() -> None:
            await measured.connect()
            await measured.run()

        share = await run.watch("e2e", tally, work())
        found = run.summary(tally, share, tally.count * role.payload)
        sent_rate = flight.sent / found.seconds if found.seconds > 0 else 0.0
        found.extra = {
            "sent": flight.sent, "lost": flight.missing, "repeated": flight.repeated,
            "wanted_rate": role.rate, "partitions": role.partitions, "connections": role.producers,
            "consumers": role.consumers, "payload_bytes": role.payload,
        }  # fmt: skip
        run.warn_if_slow(found, role.rate, sent_rate)
        run.view.end(found)
    return found


async def _driven(run: Run, tally: Tally, connections: Sequence[Connection], of_messages: int = 0) -> None:
    """Connect, run, and give up on a queue that gives no more although there must be some."""
    seconds = tally.ends - tally.started
    await connect(run.target, connections)
    tally.restart(seconds)
    if not of_messages:
        await drive(tally, connections)
        return
    watchdog = asyncio.create_task(_stalled(tally, of_messages))
    try:
        await drive(tally, connections)
    finally:
        watchdog.cancel()


async def _stalled(tally: Tally, of_messages: int) -> None:
    count = -1
    while tally.count != count:
        count = tally.count
        await asyncio.sleep(STALL_SECONDS)
    missing = of_messages - count
    tally.fail(f"{missing} messages did not come within {STALL_SECONDS:g} s", missing)
    tally.stop()


async def _with_signals(run: Run, work: Coroutine[Any, Any, Summary]) -> Summary:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, run.stop)
    return await work


def start(plan: Plan, command: str, role: Push | Consume | Latency, fill: Push | None = None) -> None:
    """Run a command to its end; raises when requests failed or messages were lost."""
    view: View = Lines() if plan.output == "json" else Screen()
    run = Run(plan, command, view)
    if isinstance(role, Push):
        work = produce(run, role)
    elif isinstance(role, Consume):
        assert fill is not None
        work = consume(run, role, fill, fill.most)
    else:
        work = end_to_end(run, role)
    try:
        found = uvloop.run(_with_signals(run, work))
    finally:
        view.close()
    if found.errors:
        raise BenchFailed(f"{found.errors:,} failed, the first: {found.error}")
