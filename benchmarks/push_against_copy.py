"""Push, batch 100, 50 connections, against COPY into a table with the same columns and indexes."""

from __future__ import annotations

import argparse

from harness import databases, load, report, servers
from harness.roles import Copy, Order, Push

QUESTION = "push, 100 messages a request, 50 connections, against COPY into the same table and indexes"


def run(out: report.Report, options: argparse.Namespace) -> None:
    rounds, seconds = (3, 1.0) if options.quick else (7, 4.0)
    push, copies = Push(50, 100), {"COPY 100": Copy(4, 100), "COPY 1000": Copy(4, 1000)}
    rates: dict[str, list[float]] = {name: [] for name in ("push", *copies)}
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        databases.make_limit_table(stack.url)
        load.run(Order([push], seconds / 2, address=stack.address))
        slow: list[float] = []
        for _ in range(rounds):
            done = load.run(Order([push], seconds, address=stack.address))
            assert not done.results[0].errors, done.results[0].error
            out.clients(done.cpu_share)
            rates["push"].append(done.results[0].rate)
            slow.append(done.results[0].p99_ms)
            for name, copy in copies.items():
                limit = load.run(Order([copy], seconds, url=stack.url))
                rates[name].append(limit.results[0].rate)
    middle = {name: report.median(values) for name, values in rates.items()}
    out.table(
        ["", "messages/s", "lowest", "highest"],
        [[name, middle[name], min(values), max(values)] for name, values in rates.items()],
    )
    best = max(copies, key=lambda name: middle[name])
    ratios = {
        name: report.median([ours / theirs for ours, theirs in zip(rates["push"], rates[name], strict=True)])
        for name in copies
    }
    out.figures = {"rates": middle, "ratios": ratios, "better": best, "push_p99_ms": report.median(slow)}
    out.at_least(f"push against {best} (the better)", ratios[best], 0.5)


if __name__ == "__main__":
    report.main(QUESTION, run)
