"""Memory of the broker under full load with 1,000 connections."""

from __future__ import annotations

import argparse
import resource

from harness import cpu, databases, load, report, servers
from harness.roles import Consume, Order, Push

QUESTION = "resident memory of the broker under full load with 1,000 connections"
ROLES = (
    Push(250, 1),
    Push(150, 100),
    Consume(100, 100, "bench", wait_ms=30_000),
    Consume(500, 10, "quiet", queue="quiet", wait_ms=60_000),
)


def run(out: report.Report, options: argparse.Namespace) -> None:
    seconds = 8.0 if options.quick else 60.0
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        load.run(Order([Push(1, 1, queue="quiet")], 0.1, address=stack.address))
        load.run(Order([Consume(1, 100, "quiet", queue="quiet", until_empty=True)], 1, address=stack.address))
        with cpu.memory(stack.broker_pid) as idle:
            load.run(Order([Push(1, 1)], 0.5, address=stack.address))
        with cpu.memory(stack.broker_pid) as used:
            done = load.run(Order([*ROLES], seconds, address=stack.address))
    for result in done.results:
        assert not result.errors, result.error
    out.clients(done.cpu_share)
    rates = [result.rate for result in done.results]
    out.table(
        ["", "connections", "messages/s"],
        [
            ["push 1", 250, rates[0]],
            ["push 100", 150, rates[1]],
            ["pop 100 + ack", 100, rates[2]],
            ["long polls, nothing comes", 500, rates[3]],
        ],
    )
    half = used.samples[len(used.samples) // 2]
    print(
        f"at rest {idle.peak:.0f} MB, after half the time {half:.0f} MB, at the end {used.samples[-1]:.0f} MB"
    )
    out.figures = {"rest_mb": idle.peak, "half_mb": half, "end_mb": used.samples[-1], "peak_mb": used.peak}
    out.at_most("MB at the peak", used.peak, 200.0)


if __name__ == "__main__":
    report.main(QUESTION, run)
