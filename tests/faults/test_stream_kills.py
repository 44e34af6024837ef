"""Brokers and consumers are killed: every window is acknowledged once, in order, and nothing is missing.

``QUEENSTREAM_LONG=1`` kills for two minutes; ``QUEENSTREAM_SEED`` repeats the choices of an earlier run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.processes import Up, free_port

SECONDS = 120.0 if os.environ.get("QUEENSTREAM_LONG") else 8.0
SETTLE_SECONDS = 40.0
KEYS = tuple(f"key-{n}" for n in range(5))
QUEUES = ("left", "right")
GROUP = "g"
LEASE_MS = 2000  # what a killed consumer held comes again soon

ROOT = Path(__file__).parents[2]


# A consumer, as a process of its own


def note(out: int, event: str, **more: Any) -> None:
    """One line, in one write: it is there though the process is killed right after it."""
    os.write(out, json.dumps({"event": event, "at": time.monotonic(), **more}).encode() + b"\n")


def acknowledge(http: httpx.Client, addresses: list[str], window: dict[str, Any]) -> dict[str, Any] | None:
    """Ask until somebody answers: the broker that took the ack may be dead before it said so."""
    body = {"windowId": window["id"], "leaseId": window["leaseId"], "success": True}
    while True:
        try:
            answer = http.post(f"{random.choice(addresses)}/api/v1/stream/ack", json=body)
        except httpx.HTTPError:
            time.sleep(0.05)
            continue
        if answer.status_code == 503:
            time.sleep(0.05)
            continue
        return answer.json() if answer.status_code == 200 else None


def consume(journal: str, addresses: list[str]) -> None:
    """Poll, write down what came, work a little, acknowledge, write that down; for ever."""
    out = os.open(journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    body = {"streamName": "s", "consumerGroup": GROUP, "timeout": 1000}
    with httpx.Client(timeout=10) as http:
        while True:
            try:
                answer = http.post(f"{random.choice(addresses)}/api/v1/stream/poll", json=body)
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            if answer.status_code == 503:
                time.sleep(0.05)
            elif answer.status_code == 200:
                window = answer.json()["window"]
                held = [message["data"] for message in window["messages"]]
                names = {name: window[name] for name in ("id", "key", "start", "attempt", "complete")}
                note(out, "got", messages=held, **names)
                time.sleep(random.random() * 0.03)
                acked = acknowledge(http, addresses, window)
                if acked is not None:
                    note(out, "acked", id=window["id"], acked=acked["acked"])
            elif answer.status_code != 204:
                note(out, "odd", status=answer.status_code, text=answer.text)


# The test


class Producer(threading.Thread):
    """Numbered messages for every key, each pushed again until a broker has said that it has it."""

    def __init__(self, addresses: list[str], chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.addresses = addresses
        self.chance = chance
        self.stored: Counter[str] = Counter()
        self.ending = threading.Event()
        self.odd: list[str] = []

    def run(self) -> None:
        with httpx.Client(timeout=10) as http:
            while not self.ending.is_set():
                for key in self.chance.sample(KEYS, 2):
                    self.push(http, key, self.chance.randint(1, 5))
                time.sleep(0.01)

    def push(self, http: httpx.Client, key: str, count: int) -> None:
        first, queue = self.stored[key], self.chance.choice(QUEUES)
        items = [
            {"queue": queue, "partition": key, "transactionId": f"{key}-{n}", "payload": n}
            for n in range(first, first + count)
        ]
        while True:
            try:
                answer = http.post(f"{self.chance.choice(self.addresses)}/api/v1/push", json={"items": items})
            except httpx.HTTPError:
                time.sleep(0.05)
                continue
            if answer.status_code == 201:
                self.stored[key] += count
                return
            if answer.status_code != 503:
                self.odd.append(answer.text)
            time.sleep(0.05)


class Cluster:
    """Two brokers on one database and four consumers; any of them may be killed, and is started again."""

    def __init__(self, url: str, journal: Path) -> None:
        self.url = url
        self.journal = journal
        self.ports = [free_port(), free_port()]
        self.addresses = [f"http://127.0.0.1:{port}" for port in self.ports]
        self.brokers = [self._broker(port) for port in self.ports]
        self.consumers: list[subprocess.Popen[bytes]] = []
        self.kills: Counter[str] = Counter()

    def _broker(self, port: int) -> Up:
        return Up("--pg", self.url, "--port", str(port), "--log-level", "error")

    def start_consumers(self) -> None:
        self.consumers = [self._consumer() for _ in range(4)]

    def _consumer(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.faults.test_stream_kills", str(self.journal), *self.addresses]
        return subprocess.Popen(command, cwd=ROOT)

    def kill_one(self, chance: random.Random) -> None:
        which = chance.randrange(6)
        if which < 2:
            self.brokers[which].stop(signal.SIGKILL)
            time.sleep(chance.random() * 0.3)
            self.brokers[which] = self._broker(self.ports[which])
            self.kills["broker"] += 1
        else:
            self._end(self.consumers[which - 2])
            self.consumers[which - 2] = self._consumer()
            self.kills["consumer"] += 1

    def _end(self, consumer: subprocess.Popen[bytes]) -> None:
        consumer.kill()
        consumer.wait()

    def get(self, path: str, **query: Any) -> dict[str, Any]:
        """From the first broker that answers."""
        deadline = time.monotonic() + 20
        while True:
            for address in self.addresses:
                try:
                    answer = httpx.get(f"{address}/api/v1/resources/streams{path}", params=query, timeout=10)
                except httpx.HTTPError:
                    continue
                if answer.status_code == 200:
                    found: dict[str, Any] = answer.json()
                    return found
            assert time.monotonic() < deadline, "no broker answers"
            time.sleep(0.1)

    def settled(self) -> bool:
        """Whether every window is acknowledged, and no new one comes of messages that were not placed."""
        found = self._done()
        time.sleep(1.0)
        return found is not None and found == self._done()

    def _done(self) -> int | None:
        """How many windows are done; None: some are not."""
        shown = self.get("/s")
        [group] = shown["groups"]
        if shown["windows"]["open"] or group["lag"] or group["leased"]:
            return None
        return int(group["done"])

    def stop(self) -> None:
        for consumer in self.consumers:
            self._end(consumer)
        for broker in self.brokers:
            broker.stop()


def define(address: str) -> None:
    for queue in QUEUES:
        body: dict[str, Any] = {"queue": queue, "options": {"ttl": 0}}
        assert httpx.post(f"{address}/api/v1/configure", json=body).status_code in (200, 201)
    body = {
        "name": "s", "namespace": "tests", "source_queue_names": list(QUEUES), "partitioned": True,
        "window_duration_ms": 500, "window_grace_period_ms": 0, "window_lease_timeout_ms": LEASE_MS,
        "retry_limit": 10_000,
    }  # fmt: skip
    answer = httpx.post(f"{address}/api/v1/stream/define", json=body)
    assert answer.status_code == 201, answer.text


def check(lines: list[dict[str, Any]], stored: Counter[str]) -> set[str]:
    """What the consumers wrote down; gives the windows that came."""
    assert not [line for line in lines if line["event"] == "odd"]
    acked = Counter(line["id"] for line in lines if line["event"] == "acked" and line["acked"])
    assert [id for id, count in acked.items() if count > 1] == [], "acknowledged twice"
    got = sorted((line for line in lines if line["event"] == "got"), key=lambda line: float(line["at"]))
    contents: dict[str, list[int]] = {}
    order: dict[str, list[dict[str, Any]]] = {key: [] for key in KEYS}
    for line in got:
        assert line["complete"] is True
        if line["id"] in contents:
            assert contents[line["id"]] == line["messages"], "a window that comes again is the same"
        else:
            contents[line["id"]] = line["messages"]
            order[line["key"]].append(line)
    for key, windows in order.items():
        starts = [datetime.fromisoformat(window["start"]) for window in windows]
        assert starts == sorted(starts), "the windows of a key come in order"
        held = [n for window in windows for n in window["messages"]]
        assert held == list(range(stored[key])), "every message once, in its order"
    return set(contents)


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 2 * SETTLE_SECONDS + 60)
def test_windows_survive_kills_of_brokers_and_consumers(
    database_url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("QUEENSTREAM_SEED", "0")) or random.randrange(1, 1_000_000)
    chance = random.Random(seed)
    journal = tmp_path / "journal"
    journal.touch()
    cluster = Cluster(database_url, journal)
    try:
        for broker in cluster.brokers:
            broker.ready()
        define(cluster.addresses[0])
        cluster.start_consumers()
        producer = Producer(cluster.addresses, random.Random(seed))
        producer.start()
        ends = time.monotonic() + SECONDS
        while time.monotonic() < ends:
            time.sleep(chance.uniform(0.3, 1.0))
            cluster.kill_one(chance)
        producer.ending.set()
        producer.join(30)
        assert not producer.odd
        deadline = time.monotonic() + SETTLE_SECONDS
        while not cluster.settled():
            assert time.monotonic() < deadline, (
                f"seed {seed}: not all windows are done: {cluster.get('/s')} "
                f"{cluster.get('/s/explain', consumerGroup=GROUP)}"
            )
            time.sleep(0.2)
        [group] = cluster.get("/s")["groups"]
        shown = cluster.get("/s")
    finally:
        cluster.stop()
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    windows = check(lines, producer.stored)
    assert (group["dead"], group["done"], shown["windows"]["closed"]) == (0, len(windows), len(windows))
    assert shown["late"] == 0
    again = sum(line["event"] == "got" for line in lines) - len(windows)
    with capsys.disabled():
        print(  # noqa: T201
            f" seed {seed}: {cluster.kills['broker']} brokers and {cluster.kills['consumer']} consumers "
            f"killed, {len(windows)} windows, {again} came again",
            end="",
        )


if __name__ == "__main__":
    consume(sys.argv[1], sys.argv[2:])
