"""Many workers in one group: each window goes to one of them."""

from __future__ import annotations

import threading
from typing import Any

from queenstream import Queen, Window

lock = threading.Lock()
seen: list[str] = []
together = threading.Barrier(2)


def work(window: Window[Any]) -> None:
    together.wait(timeout=10)  # passes only if two windows are worked on at the same time
    with lock:
        seen.append(window.key)


def main() -> None:
    with Queen() as queen:
        queen.stream("balance-work").delete()
        queen.queue("balance-jobs").delete()
        queen.queue("balance-jobs").create()
        # Windows of one key come in order, one at a time; keys are what is shared among workers.
        stream = queen.stream("balance-work", "docs").sources(["balance-jobs"]).partitioned()
        stream.tumbling_time(1).grace_period(0).define()
        push(queen, "first")

        # Two workers, here in one program; elsewhere, programs on different machines.
        def worker() -> None:
            queen.consumer("balance-work", "workers").process(work, limit=4)

        threads = [threading.Thread(target=worker) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print("two workers:", sorted(seen))

        # One worker that handles several windows at once: threads here, tasks with AsyncQueen.
        seen.clear()
        push(queen, "second")
        queen.consumer("balance-work", "workers").process(work, concurrency=4, limit=8)
        print("four at once:", sorted(seen))


def push(queen: Queen, round: str) -> None:
    """A message for each of eight keys."""
    transaction = queen.transaction()
    for number in range(8):
        lane = transaction.queue("balance-jobs").partition(f"job-{number}")
        transaction = lane.push([{"round": round}])
    transaction.commit()


if __name__ == "__main__":
    main()
