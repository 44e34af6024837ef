"""Pop 100 + ack, 8 consumers, 100 partitions, against the push rate at batch 100."""

from __future__ import annotations

import argparse

from harness import cpu, databases, load, report, servers
from harness.roles import Consume, Order, Push

QUESTION = "pop of 100 and ack, 8 consumers, 100 partitions, against push of 100 on 50 connections"


def run(out: report.Report, options: argparse.Namespace) -> None:
    rounds, seconds = (3, 1.0) if options.quick else (7, 4.0)
    push, consume = Push(50, 100), Consume(8, 100, "bench", until_empty=True)
    rows: list[tuple[float, float, float, float, float, float]] = []
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        load.run(Order([push], seconds / 2, address=stack.address))
        load.run(Order([consume], seconds, address=stack.address))
        for _ in range(rounds):
            pushed = load.run(Order([push], seconds, address=stack.address))
            with cpu.measured(stack.broker_pid, stack.postmaster_pid) as spent:
                popped = load.run(Order([consume], seconds, address=stack.address))
            first, second = pushed.results[0], popped.results[0]
            assert not first.errors + second.errors, first.error or second.error
            out.clients(pushed.cpu_share)
            out.clients(popped.cpu_share)
            each = 1e6 / max(1, second.count)
            rows.append(
                (
                    first.rate,
                    second.rate,
                    spent.broker * each,
                    spent.postgres * each,
                    first.p99_ms,
                    second.p99_ms,
                )
            )
    push_rate, pop_rate, broker, postgres, push_slow, pop_slow = (
        report.median(column) for column in zip(*rows, strict=True)
    )
    out.table(
        ["", "messages/s", "p99 ms", "broker µs", "PostgreSQL µs"],
        [["push 100", push_rate, push_slow, "", ""], ["pop 100 + ack", pop_rate, pop_slow, broker, postgres]],
    )
    out.figures = {
        "push_rate": push_rate, "pop_rate": pop_rate, "push_p99_ms": push_slow, "pop_ack_p99_ms": pop_slow,
        "broker_us": broker, "postgres_us": postgres,
    }  # fmt: skip
    out.at_least("pop + ack against push", report.median([row[1] / row[0] for row in rows]), 1.0)


if __name__ == "__main__":
    report.main(QUESTION, run)
