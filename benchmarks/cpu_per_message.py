"""CPU of broker and PostgreSQL for one message pushed, by batch size."""

from __future__ import annotations

import argparse

from harness import cpu, databases, load, report, servers
from harness.roles import Order, Push

QUESTION = "CPU per message pushed (broker + PostgreSQL), 200-byte payloads, 100 partitions"
SHAPES = {"1 x 64": (Push(64, 1), 50.0), "10 x 50": (Push(50, 10), 14.0), "100 x 50": (Push(50, 100), 12.0)}


def run(out: report.Report, options: argparse.Namespace) -> None:
    rounds, seconds = (2, 2.0) if options.quick else (5, 5.0)
    found: dict[str, list[tuple[float, float, float, float, float]]] = {name: [] for name in SHAPES}
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        load.run(Order([Push(50, 100)], 1.0, address=stack.address))
        for _ in range(rounds):
            for name, (role, _) in SHAPES.items():
                with cpu.measured(stack.broker_pid, stack.postmaster_pid) as spent:
                    done = load.run(Order([role], seconds, address=stack.address))
                result = done.results[0]
                assert not result.errors, result.error
                out.clients(done.cpu_share)
                each = 1e6 / result.count
                found[name].append(
                    (spent.broker * each, spent.postgres * each, result.rate, result.p50_ms, result.p99_ms)
                )
    middle = {
        name: [report.median(column) for column in zip(*rows, strict=True)] for name, rows in found.items()
    }
    out.table(
        ["batch x connections", "broker µs", "PostgreSQL µs", "messages/s", "p50 ms", "p99 ms"],
        [[name, *row] for name, row in middle.items()],
    )
    names = ("broker_us", "postgres_us", "rate", "p50_ms", "p99_ms")
    out.figures = {name: dict(zip(names, row, strict=True)) for name, row in middle.items()}
    for name, (_, target) in SHAPES.items():
        total = report.median([row[0] + row[1] for row in found[name]])
        out.at_most(f"µs per message, {name}", total, target)


if __name__ == "__main__":
    report.main(QUESTION, run)
