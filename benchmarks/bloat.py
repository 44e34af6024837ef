"""An hour's worth of traffic with retention on, compressed: dead rows and table sizes over time."""

from __future__ import annotations

import argparse
import json
import threading
import time
import urllib.request

from harness import databases, load, report, servers
from harness.roles import Consume, Order, Push, Role

QUESTION = "an hour's worth of traffic (3.6 million messages) in minutes, retention on: tables stay bounded"
HOUR = 3_600_000  # messages: 1,000 a second
KEEP_SECONDS = 3

SIZES = """
select relname, n_live_tup, n_dead_tup, pg_total_relation_size(relid) / 1e6 as mb
from pg_stat_user_tables where schemaname = 'queen' and relname in ('messages', 'cursors') order by relname
"""


def configure(address: str) -> None:
    options = {
        "retentionEnabled": True, "retentionSeconds": 10 * KEEP_SECONDS,
        "completedRetentionSeconds": KEEP_SECONDS,
    }  # fmt: skip
    body = json.dumps({"queue": "bench", "options": options}).encode()
    urllib.request.urlopen(f"http://{address}/api/v1/configure", body, 10).read()


def run(out: report.Report, options: argparse.Namespace) -> None:
    seconds, every = (12.0, 1.5) if options.quick else (180.0, 10.0)
    samples: list[tuple[float, int, int, float, int, float]] = []
    with servers.stack() as stack:
        report.postgres_version(out, stack.url)
        databases.check_durable(stack.url)
        configure(stack.address)
        done = threading.Event()
        started = time.perf_counter()

        def sample() -> None:
            while not done.wait(every):
                rows = {row["relname"]: row for row in databases.query(stack.url, SIZES)}
                m, c = rows["messages"], rows["cursors"]
                passed = time.perf_counter() - started
                samples.append(
                    (
                        passed,
                        m["n_live_tup"],
                        m["n_dead_tup"],
                        float(m["mb"]),
                        c["n_dead_tup"],
                        float(c["mb"]),
                    )
                )

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            traffic: list[Role] = [Push(20, 50), Consume(8, 100, "bench", wait_ms=1000)]
            outcome = load.run(Order(traffic, seconds, address=stack.address))
        finally:
            done.set()
            thread.join()
    pushed, popped = outcome.results
    assert not pushed.errors, pushed.error
    if popped.errors:  # retention may take a message that is out; that is no question of this benchmark
        out.note(f"{popped.errors} acks or pops were refused: {popped.error[-200:]}")
    out.clients(outcome.cpu_share)
    shown = samples[:: max(1, len(samples) // 10)]
    out.table(
        ["s", "messages", "dead", "MB", "dead cursors", "cursors MB"],
        [[f"{s[0]:.0f}", *s[1:]] for s in shown],
    )
    share = pushed.count / HOUR
    print(
        f"pushed {pushed.count:,} ({pushed.rate:,.0f}/s), delivered {popped.count:,}: {share:.0%} of an hour"
    )
    third = len(samples) // 3
    early = max((s[3] for s in samples[third : 2 * third]), default=0.0)
    late = max((s[3] for s in samples[2 * third :]), default=0.0)
    out.figures = {
        "pushed": pushed.count, "delivered": popped.count, "refused": popped.errors,
        "messages_mb": [s[3] for s in samples],
        "cursors_mb": [s[5] for s in samples], "dead_messages": [s[2] for s in samples],
        "dead_cursors": [s[4] for s in samples],
    }  # fmt: skip
    if options.quick:
        out.note("too short for autovacuum to settle: only the full form says whether it is bounded")
    else:
        out.at_most("messages, last third against the middle one, MB", late / early, 1.2)
    out.at_most("cursors at the end, MB", samples[-1][5], 20.0)


if __name__ == "__main__":
    report.main(QUESTION, run)
