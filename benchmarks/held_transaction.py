"""Push and pop while another session holds a transaction open: nothing dead can be cleaned away."""

from __future__ import annotations

import argparse
import asyncio
import time

import asyncpg

from harness import databases, load, report, servers
from harness.roles import Consume, Order, Push

QUESTION = "push and pop after ten minutes under somebody's open transaction, against the same without it"
UPDATES_PER_SECOND = 800  # of cursors: what pops of 100 and acks make at about 40,000 messages/s

# One statement is one pop or one ack for all cursors: a new version of each row and of its index entries.
LEASE = """
update queen.cursors set ready_at = clock_timestamp() + interval '300 s', lease_id = gen_random_uuid(),
    lease_to = acked_id + 1, lease_to_seq = acked_seq + 1, lease_count = 1, leased_at = clock_timestamp()
"""
FREE = """
update queen.cursors set ready_at = clock_timestamp(), last_lease_id = lease_id, lease_id = null,
    lease_to = null, lease_to_seq = null, lease_count = null, leased_at = null, acked_at = clock_timestamp()
"""


async def hold(url: str) -> asyncpg.Connection[asyncpg.Record]:
    """A transaction with a number and a snapshot, left open."""
    # The embedded server would end it after five minutes.
    settings = {"idle_in_transaction_session_timeout": "0"}
    connection = await asyncpg.connect(url, server_settings=settings)
    await connection.execute("create table if not exists elsewhere (at timestamptz)")
    await connection.execute("begin isolation level repeatable read")
    await connection.execute("insert into elsewhere values (now())")
    return connection


async def churn(url: str, updates: int, most_seconds: float) -> int:
    """Update the cursors as the traffic of minutes would."""
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off"})
    done, ends = 0, time.perf_counter() + most_seconds
    try:
        while done < updates and time.perf_counter() < ends:
            for statement in (LEASE, FREE):
                done += int((await connection.execute(statement)).split()[-1])
    finally:
        await connection.close()
    return done


def measure(out: report.Report, address: str, seconds: float) -> tuple[float, float]:
    rates = []
    for role in (Push(50, 100), Consume(8, 100, "bench", until_empty=True)):
        done = load.run(Order([role], seconds, address=address))
        assert not done.results[0].errors, done.results[0].error
        out.clients(done.cpu_share)
        rates.append(done.results[0].rate)
    return rates[0], rates[1]


async def compare(
    out: report.Report, options: argparse.Namespace, stacks: dict[str, servers.Stack]
) -> dict[str, list[tuple[float, float]]]:
    """Both stacks go through the same traffic; only in "held" a transaction is open all the time."""
    minutes, times, seconds = (1, 3, 0.8) if options.quick else (10, 6, 4.0)
    updates = UPDATES_PER_SECOND * 60 * minutes
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in stacks}
    # The load runs in processes of its own; a thread waits for it while this loop keeps the session.
    for stack in stacks.values():
        await asyncio.to_thread(measure, out, stack.address, seconds)
    held = await hold(stacks["held"].url)
    try:
        for name, stack in stacks.items():
            done = await churn(stack.url, updates, 5.0 if options.quick else 240.0)
            if done < updates:
                short = done // UPDATES_PER_SECOND
                out.note(
                    f"{name}: {done:,} of {updates:,} updates were made: as many as {short} s would make"
                )
            # What the churn left leased or ready is put in order by a drain.
            await asyncio.to_thread(measure, out, stack.address, seconds)
        for _ in range(times):
            for name, stack in stacks.items():
                rates[name].append(await asyncio.to_thread(measure, out, stack.address, seconds))
        dead = await held.fetchval("select n_dead_tup from pg_stat_user_tables where relname = 'cursors'")
    finally:
        await held.close()
    print(f"cursor updates: {updates:,}; dead rows in cursors under the open transaction: {dead:,}")
    out.note(
        f"{minutes} minutes are compressed: SQL updates the cursors as often as pops and acks of 100"
        " messages do at 40,000 messages/s"
    )
    return rates


def run(out: report.Report, options: argparse.Namespace) -> None:
    with servers.stack() as held, servers.stack() as free:
        report.postgres_version(out, held.url)
        databases.check_durable(held.url)
        rates = asyncio.run(compare(out, options, {"held": held, "free": free}))
    middle = {name: [report.median(c) for c in zip(*rows, strict=True)] for name, rows in rates.items()}
    out.table(
        ["", "push/s", "pop 100 + ack/s"],
        [["a transaction open", *middle["held"]], ["none open", *middle["free"]]],
    )
    out.figures = dict(middle)
    for column, what in enumerate(("push", "pop")):
        pairs = zip(rates["held"], rates["free"], strict=True)
        ratio = report.median([held_row[column] / free_row[column] for held_row, free_row in pairs])
        out.at_least(f"{what}, with the transaction against without", ratio, 0.8)


if __name__ == "__main__":
    report.main(QUESTION, run)
