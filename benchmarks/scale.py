"""Push and pop with very many partitions and messages waiting, against few."""

from __future__ import annotations

import argparse
import asyncio
import contextlib

import asyncpg

from harness import databases, load, report, servers
from harness.roles import Consume, Order, Push
from queenstream import postgres
from queenstream.broker.storage import sql
from queenstream.broker.storage.database import prepare

QUESTION = "push and pop with very many partitions and messages waiting, against 100 partitions and 10,000"
STEP = 20_000  # partitions filled by one statement

# Ids rise with the round, so inside a partition in the order of seq.
FILL = """
insert into queen.messages (partition_id, id, seq, created_at, transaction_id, payload)
select p.id, ((round * $4::bigint + (p.n - 1) / 60000) << 16) + (p.n - 1) % 60000 + 1, round,
    clock_timestamp(), md5(random()::text) || substr(md5(random()::text), 1, 4), $5
from (select id, row_number() over (order by id) as n from queen.partitions) p
cross join generate_series(1, $3) as round
where p.n > $1 and p.n <= $2
order by p.id, round
"""


async def fill(url: str, partitions: int, each: int) -> None:
    """Lay the messages into the tables as if they had been pushed, set by set, and subscribe a group."""
    await prepare(url)
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off", "jit": "off"})
    try:
        made = await connection.fetchrow(
            sql.bind("select queue_id, partition_ids from queen.ensure_partitions('bench', $1)"),
            [f"p{number}" for number in range(partitions)],
        )
        assert made is not None
        batches = partitions // 60_000 + 1
        for first in range(0, partitions, STEP):
            last = min(first + STEP, partitions)
            await connection.execute(FILL, first, last, each, batches, load.PAYLOAD, timeout=600)
        await connection.execute(f"select setval('queen.batches', {(each + 1) * batches})")
        await connection.fetchval(
            sql.bind("select queen.ensure_group($1, 'bench', 'all', null)"), made["queue_id"], timeout=600
        )
        await connection.execute("vacuum analyze", timeout=600)
        await connection.execute("checkpoint", timeout=600)
    finally:
        await connection.close()


def run(out: report.Report, options: argparse.Namespace) -> None:
    rounds, seconds, many, each = (2, 0.8, 10_000, 30) if options.quick else (5, 4.0, 100_000, 50)
    sizes = {"few": (100, 100), "many": (many, each)}
    batch = min(each, 50)  # what a pop gets, in both
    rates: dict[str, list[tuple[float, float]]] = {name: [] for name in sizes}
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(postgres.ephemeral())
        report.postgres_version(out, server.url)
        addresses = {}
        for name, (partitions, waiting) in sizes.items():
            databases.query(server.url, f"create database {name}")
            url = server.url.replace("/queen?", f"/{name}?")
            asyncio.run(fill(url, partitions, waiting))
            addresses[name] = opened.enter_context(servers.broker(url))[0]
            # Every partition once: the broker knows their names, as one that runs for a while does.
            warm = Push(20, 100, partitions, most=partitions, walk=True)
            load.run(Order([warm], 60, address=addresses[name]))
        for _ in range(rounds):
            for name, (partitions, _) in sizes.items():
                push = Push(50, 100, partitions)
                pushed = load.run(Order([push], seconds, address=addresses[name]))
                popped = load.run(
                    Order([Consume(8, batch, "bench", until_empty=True)], seconds, address=addresses[name])
                )
                for done in (pushed, popped):
                    assert not done.results[0].errors, done.results[0].error
                    out.clients(done.cpu_share)
                rates[name].append((pushed.results[0].rate, popped.results[0].rate))
    middle = {name: [report.median(c) for c in zip(*rows, strict=True)] for name, rows in rates.items()}
    out.table(
        ["", "push/s", f"pop {batch} + ack/s"],
        [[f"{p:,} partitions, {p * w:,} waiting", *middle[name]] for name, (p, w) in sizes.items()],
    )
    out.figures = {name: {"push": row[0], "pop": row[1]} for name, row in middle.items()}
    pairs = list(zip(rates["many"], rates["few"], strict=True))
    out.at_least("push, many against few", report.median([a[0] / b[0] for a, b in pairs]), 0.7)
    out.at_least("pop, many against few", report.median([a[1] / b[1] for a, b in pairs]), 0.7)
    out.note(f"each push of 100 goes to 100 different partitions; pops take {batch}, so one partition each")


if __name__ == "__main__":
    report.main(QUESTION, run)
