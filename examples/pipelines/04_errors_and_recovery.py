"""Errors: retried, skipped, reported, or stored as dead letters and replayed; recovery from a checkpoint."""

from __future__ import annotations

import logging
import tempfile
from typing import Any

from queenstream import DeadLetters, Letters, Pipeline, Queen, Queue, retry

logging.getLogger("queenstream.local").setLevel(logging.ERROR)  # the failures below are meant

tries: dict[int, int] = {}
charged: list[int] = []


def charge(order: dict[str, Any]) -> dict[str, Any]:
    tries[order["id"]] = tries.get(order["id"], 0) + 1
    if order["amount"] < 0:
        raise ValueError("nobody pays a negative amount")
    if order["id"] == 2 and tries[2] < 3:
        raise ConnectionError("the bank is away")
    return {**order, "charged": True}


def report(error: Exception, record: dict[str, Any], step: str) -> None:
    print(f"{step} gave up on {record['id']}: {type(error).__name__}")


def known(order: dict[str, Any]) -> dict[str, Any]:
    if "amount" not in order:
        raise KeyError("amount")
    return order


def orders() -> Pipeline[Any]:
    # Only what another try may mend is tried again; the rest is a dead letter at once.
    policy = retry(3, delay="10ms", on=ConnectionError, then=DeadLetters("recovery-failed"), callback=report)
    return (
        Pipeline("orders")
        .source(Queue("recovery-orders"))
        # Without a policy the run would stop here ("fail"), with the order in its error.
        .transform("check", known, on_error="skip")
        .transform("charge", charge, on_error=policy)
        .to(lambda order: charged.append(order["id"]))
    )


def main() -> None:
    with Queen() as queen, tempfile.TemporaryDirectory() as folder:
        for name in ("recovery-orders", "recovery-failed", "recovery-failed.replay"):
            queen.queue(name).delete()
        queue = queen.queue("recovery-orders")
        queue.push([{"id": 1, "amount": 5}, {"id": 2, "amount": 7}, {"id": 3, "amount": -1}, {"id": 4}])
        run = orders().run(engine="local", until="caught_up", checkpoint=folder)
        print("charged", charged, "tries", tries, "errors", run.get_stats()["errors"])
        letters = Letters(queen, "recovery-failed")
        for letter in letters.find():
            print("put aside:", letter.record, letter.error, "after", letter.attempts)
            letters.replay(letters.edit(letter, record={**letter.record, "amount": 1}))

        # The next run goes on after what is done, and takes the mended letter in again.
        queue.push([{"id": 5, "amount": 1}])
        charged.clear()
        orders().run(engine="local", until="caught_up", checkpoint=folder)
        print("charged", sorted(charged))


if __name__ == "__main__":
    main()
