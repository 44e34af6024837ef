"""Ten consumer groups at once, all deliveries together, against one group alone."""

from __future__ import annotations

import argparse

from harness import databases, load, report, servers
from harness.roles import Consume, Order, Push

QUESTION = "10 consumer groups at once (8 consumers each): all deliveries per second, against one group alone"


def run(out: report.Report, options: argparse.Namespace) -> None:
    rounds, seconds, groups = (3, 1.0, 10) if options.quick else (7, 4.0, 10)
    rows: list[tuple[float, float]] = []
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        load.run(Order([Push(50, 100)], seconds, address=stack.address))
        # New names in each round: every group finds all messages, and is subscribed before the clock runs.
        for number in range(rounds):
            alone = [Consume(8, 100, f"alone-{number}", until_empty=True)]
            many = [Consume(8, 100, f"many-{number}-{at}", until_empty=True) for at in range(groups)]
            rates = []
            for roles in (alone, many):
                first = [Consume(1, 1, role.group, auto_ack=True, until_empty=False) for role in roles]
                load.run(Order([*first], 0.01, address=stack.address))
                done = load.run(Order([*roles], seconds, address=stack.address))
                for result in done.results:
                    assert not result.errors, result.error
                out.clients(done.cpu_share)
                rates.append(sum(result.rate for result in done.results))
            rows.append((rates[0], rates[1]))
            load.run(Order([Push(50, 100)], seconds / 4, address=stack.address))
    one, ten = (report.median(column) for column in zip(*rows, strict=True))
    out.table(["", "deliveries/s"], [["one group", one], [f"{groups} groups", ten]])
    out.figures = {"one": one, "ten": ten}
    out.at_least("10 groups against one", report.median([row[1] / row[0] for row in rows]), 0.9)


if __name__ == "__main__":
    report.main(QUESTION, run)
