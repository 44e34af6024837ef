"""How long a message is on its way to a long-polling consumer, against one committed INSERT."""

from __future__ import annotations

import argparse

from harness import databases, load, report, servers
from harness.roles import Insert, Latency, Order

QUESTION = "push → long-polling consumer at 1,000 messages/s, against one committed single-row INSERT"


def run(out: report.Report, options: argparse.Namespace) -> None:
    rounds, seconds = (3, 2.0) if options.quick else (7, 8.0)
    rows: list[tuple[float, float, float, float]] = []
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        databases.make_limit_table(stack.url)
        send = Latency(rate=1000, consumers=16)
        load.run(Order([send], 1.0, address=stack.address))
        for _ in range(rounds):
            insert = load.run(Order([Insert()], seconds / 4, url=stack.url)).results[0]
            done = load.run(Order([send], seconds, address=stack.address))
            result = done.results[0]
            assert not result.errors, result.error
            out.clients(done.cpu_share)
            rows.append((insert.p50_ms, result.p50_ms, result.p99_ms, result.rate))
    insert_ms, p50, p99, rate = (report.median(column) for column in zip(*rows, strict=True))
    out.table(
        ["", "p50 ms", "p99 ms"],
        [["INSERT, committed", insert_ms, ""], [f"push → consumer at {rate:.0f}/s", p50, p99]],
    )
    out.figures = {"insert_p50_ms": insert_ms, "p50_ms": p50, "p99_ms": p99, "rate": rate}
    out.at_most("p50 against INSERT", report.median([row[1] / row[0] for row in rows]), 4.0)
    out.at_most("p99 in ms", p99, 30.0)


if __name__ == "__main__":
    report.main(QUESTION, run)
