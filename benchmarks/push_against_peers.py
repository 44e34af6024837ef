"""Push, batch 1, 64 connections, against pgmq.send and Redis Streams, equally durable."""

from __future__ import annotations

import argparse
import contextlib

from harness import databases, load, report, servers
from harness.roles import Order, PgmqSend, Push, RedisAdd, Result

QUESTION = "push, one message a request, 64 connections, against peers with the same durability"

UNLIKE = {
    "pgmq.send": "pgmq keeps no order by partition, looks for no duplicates, and is called over"
    " PostgreSQL's own protocol (64 asyncpg connections, no broker in between)",
    "Redis XADD": "Redis looks for no duplicates and keeps all in memory beside the file; one XADD a request,"
    " 100 streams, appendfsync always; its client is cheaper than HTTP",
}
LEFT_OUT = (
    "left out: NATS JetStream (Debian's 2.9 cannot fsync before it answers: no sync_interval: always)"
    " and RabbitMQ (no plain client without a dependency)"
)


def run(out: report.Report, options: argparse.Namespace) -> None:
    rounds, seconds = (3, 1.5) if options.quick else (7, 4.0)
    orders: dict[str, Order] = {}
    found: dict[str, list[Result]] = {}
    with contextlib.ExitStack() as opened:
        stack = opened.enter_context(servers.stack())
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        orders["push"] = Order([Push(64, 1)], seconds, address=stack.address)
        if options.peers:
            with contextlib.suppress(servers.CannotRun):
                orders["pgmq.send"] = _pgmq(out, stack.url, seconds)
            with contextlib.suppress(servers.CannotRun):
                orders["Redis XADD"] = _redis(out, opened, seconds)
            out.note(LEFT_OUT)
        else:
            out.note("only our own rate; with --peers pgmq and Redis are installed, started and measured too")
        for at in range(rounds + 1):
            for name, order in orders.items():
                done = load.run(order)
                result = done.results[0]
                assert not result.errors, result.error
                if at:  # the first round warms up
                    out.clients(done.cpu_share)
                    found.setdefault(name, []).append(result)
    rows = {
        name: [report.median([getattr(r, what) for r in results]) for what in ("rate", "p50_ms", "p99_ms")]
        for name, results in found.items()
    }
    out.table(["", "messages/s", "p50 ms", "p99 ms"], [[name, *row] for name, row in rows.items()])
    out.figures = {"rates": {name: row[0] for name, row in rows.items()}, "push_p99_ms": rows["push"][2]}
    for name, target in (("pgmq.send", 4.0), ("Redis XADD", 0.8)):
        if name in found:
            pairs = zip(found["push"], found[name], strict=True)
            ratio = report.median([ours.rate / theirs.rate for ours, theirs in pairs])
            out.at_least(f"push against {name}", ratio, target)
            out.note(UNLIKE[name])


def _pgmq(out: report.Report, url: str, seconds: float) -> Order:
    try:
        text, version = servers.pgmq_sql()
    except servers.CannotRun as error:
        out.note(f"pgmq is left out: {error}")
        raise
    databases.query(url, "create schema if not exists pgmq", text, "select pgmq.create('bench')")
    out.machine["pgmq"] = version
    return Order([PgmqSend(64)], seconds, url=url)


def _redis(out: report.Report, opened: contextlib.ExitStack, seconds: float) -> Order:
    try:
        address, version = opened.enter_context(servers.redis())
    except servers.CannotRun as error:
        out.note(f"Redis is left out: {error}")
        raise
    out.machine["redis"] = version
    return Order([RedisAdd(64)], seconds, address=address)


if __name__ == "__main__":
    report.main(QUESTION, run)
