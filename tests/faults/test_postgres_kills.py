"""kill -9 of the embedded PostgreSQL under ``queen up``: it is restarted, and nothing answered is lost."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from queenstream import postgres
from tests.processes import Up, folder, up

BACK_SECONDS = 15.0  # about two on a machine with nothing else to do


class Pusher:
    """Pushes one message after the other until told to stop, as a client does that tries again on 503."""

    def __init__(self, address: str) -> None:
        self.answered: list[str] = []
        self.refused: dict[int, int] = {}
        self._address = address
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        number = 0
        with httpx.Client(base_url=self._address, timeout=30) as http:
            while not self._stop.is_set():
                item = {"queue": "q", "transactionId": f"t{number}", "payload": number}
                answer = http.post("/api/v1/push", json={"items": [item]})
                if answer.status_code == 201:
                    self.answered.append(item["transactionId"])  # type: ignore[arg-type]
                    number += 1
                else:
                    self.refused[answer.status_code] = self.refused.get(answer.status_code, 0) + 1
                    self._stop.wait(0.05)

    def wait_for(self, more: int, seconds: float) -> None:
        """Wait until so many more were answered."""
        wanted, deadline = len(self.answered) + more, time.monotonic() + seconds
        while len(self.answered) < wanted:
            assert self._thread.is_alive()
            assert time.monotonic() < deadline, (len(self.answered), self.refused)
            time.sleep(0.02)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def postmaster(data: Path) -> int:
    """The process id of the server; 0 while there is none."""
    try:
        return int((data / "postmaster.pid").read_text().partition("\n")[0] or 0)
    except FileNotFoundError:
        return 0


def kill_postmaster(data: Path) -> None:
    """Kill it, and wait until another one runs; its processes may answer a little longer than it lives."""
    first = postmaster(data)
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + BACK_SECONDS
    while postmaster(data) in (0, first):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def pop_all(address: str) -> list[str]:
    """Every message, as one consumer gets them."""
    found: list[str] = []
    with httpx.Client(base_url=address, timeout=30) as http:
        while True:
            query: dict[str, Any] = {"batch": 1000, "autoAck": "true"}
            answer = http.get("/api/v1/pop/queue/q", params=query)
            if answer.status_code == 204 or not answer.json()["messages"]:
                return found
            found += [message["transactionId"] for message in answer.json()["messages"]]


def kill_and_check(running: Up, data: Path) -> None:
    address = running.ready()
    pusher = Pusher(address)
    try:
        pusher.wait_for(20, 20)
        kill_postmaster(data)
        pusher.wait_for(20, BACK_SECONDS)
    finally:
        pusher.stop()
    assert set(pusher.refused) <= {503}
    assert set(pusher.answered) <= set(pop_all(address))
    assert httpx.get(f"{address}/health/ready").status_code == 200
    assert "queen_postgres_restarts 1.0" in httpx.get(f"{address}/metrics").text
    brokers = httpx.get(f"{address}/api/v1/analytics/worker-metrics").json()["workers"]
    assert any(broker["postgresRestarts"] == 1 for broker in brokers)


def test_one_broker() -> None:
    with folder() as place, up("--data", str(place / "data"), "--port", "0") as running:
        kill_and_check(running, place / "data")
        assert running.stop() == 0
        assert "has died; starting it again" in running.stderr
        assert "runs again" in running.stderr
        assert postgres.find(place / "data") is None  # the new one is stopped as the first would have been


def test_workers() -> None:
    with folder() as place, up("--data", str(place / "data"), "--port", "0", "--workers", "2") as running:
        kill_and_check(running, place / "data")


def test_an_ephemeral_server_leaves_nothing_after_a_kill(tmp_path: Path) -> None:
    with folder() as place, up("--ephemeral", "--port", "0", TMPDIR=str(place)) as running:
        running.ready()
        [data] = place.glob("queenstream-*/data")
        kill_postmaster(data)
        assert running.stop() == 0
        assert list(place.iterdir()) == []


def test_a_server_that_cannot_start_ends_queen_up_with_its_log() -> None:
    with folder() as place:
        data = place / "data"
        with up("--data", str(data), "--port", "0") as running:
            address = running.ready()
            with (data / "queenstream.conf").open("a") as conf:
                conf.write("shared_buffers = 'nonsense'\n")
            os.kill(postmaster(data), signal.SIGKILL)
            health = httpx.get(f"{address}/health")
            while health.status_code == 200:
                health = httpx.get(f"{address}/health")
            assert running.process.wait(90) != 0
        assert "starts in a row failed" in running.stderr
        assert "nonsense" in running.stderr  # the last lines of PostgreSQL's log
