"""``queen up`` as a user runs it: a process, signals, exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

import asyncpg
import httpx
import psutil
import pytest

from queenstream import postgres
from tests.processes import QUEEN, clean_environment, folder, free_port, other_postgres, up


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [QUEEN, *args], capture_output=True, text=True, timeout=30, env=clean_environment(**environment)
    )


def push(address: str, *payloads: Any, queue: str = "q") -> None:
    items = [{"queue": queue, "payload": payload} for payload in payloads]
    assert httpx.post(f"{address}/api/v1/push", json={"items": items}).status_code == 201


def pop(address: str, queue: str = "q") -> list[Any]:
    answer = httpx.get(f"{address}/api/v1/pop/queue/{queue}", params={"batch": 100, "autoAck": True})
    return [m["data"] for m in answer.json()["messages"]] if answer.status_code == 200 else []


def test_ready_in_time_and_stopped_cleanly() -> None:
    with folder() as place, up("--data", str(place / "warm"), "--port", "0") as first:
        first.ready()
        assert first.stop(signal.SIGINT) == 0
        with up("--data", str(place / "warm"), "--port", "0") as running:
            address = running.ready()
            assert running.ready_seconds < 5
            assert httpx.get(f"{address}/health/ready").status_code == 200
            push(address, 1)
            server = postgres.find(place / "warm")
            assert server is not None
            assert running.stop(signal.SIGTERM) == 0
            assert postgres.find(place / "warm") is None
        with up("--data", str(place / "warm"), "--port", "0") as again:
            assert pop(again.ready()) == [1]


def test_a_stop_lets_requests_in_flight_finish_and_answers_who_waits() -> None:
    with up("--ephemeral", "--port", "0") as running:
        address = running.ready()
        answers: list[int] = []

        def wait() -> None:
            query = {"wait": True, "timeout": 20_000}
            answer = httpx.get(f"{address}/api/v1/pop/queue/q", params=query, timeout=30)
            answers.append(answer.status_code)

        waiting = threading.Thread(target=wait)
        waiting.start()
        client = httpx.Client()
        for _ in range(200):
            if "queen_waiting_pops 1.0" in client.get(f"{address}/metrics").text:
                break
            time.sleep(0.02)
        started = time.monotonic()
        assert running.stop(signal.SIGTERM) == 0
        waiting.join(10)
        assert answers == [204]
        assert time.monotonic() - started < 10
        client.close()


def test_killed_broker_loses_nothing() -> None:
    with folder() as place:
        with up("--data", str(place / "data"), "--port", "0") as running:
            address = running.ready()
            push(address, *range(50))
            running.stop(signal.SIGKILL)
        server = postgres.find(place / "data")
        assert server is not None, "the database outlives a killed broker"
        with up("--data", str(place / "data"), "--port", "0") as again:
            assert pop(again.ready()) == list(range(50))
        assert postgres.find(place / "data") is None


def test_two_brokers_share_a_data_folder_and_the_last_one_stops_the_database() -> None:
    with folder() as place, up("--data", str(place / "data"), "--port", "0") as first:
        one = first.ready()
        with up("--data", str(place / "data"), "--port", "0") as second:
            two = second.ready()
            push(one, "a")
            assert pop(two) == ["a"]
            assert first.stop() == 0
            push(two, "b")
            assert pop(two) == ["b"]
            assert second.stop() == 0
        assert postgres.find(place / "data") is None


def test_workers_share_a_port_and_a_dead_one_is_replaced() -> None:
    with up("--ephemeral", "--port", "0", "--workers", "2") as running:
        address = running.ready()
        parent = psutil.Process(running.process.pid)

        def workers() -> list[psutil.Process]:
            alive = [p for p in parent.children() if p.status() != psutil.STATUS_ZOMBIE]
            return [p for p in alive if "spawn_main" in " ".join(p.cmdline())]

        assert len(workers()) == 2
        for number in range(20):
            push(address, number)  # a new connection each: both workers get some
        victim = workers()[0]
        victim.kill()
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            alive = [p for p in workers() if p.pid != victim.pid]
            if len(alive) == 2:
                break
            time.sleep(0.1)
        assert len(alive) == 2
        got: list[int] = []
        while len(got) < 20 and time.monotonic() < deadline:
            try:
                got += pop(address)
            except httpx.TransportError:
                time.sleep(0.05)  # the connection went to the worker that was killed
        assert got == list(range(20))
        assert running.stop() == 0
        assert not [p for p in psutil.process_iter(["ppid"]) if p.info["ppid"] == running.process.pid]


def test_idle_costs_next_to_nothing() -> None:
    """100 waiting consumers: under 2 % of a core and 120 MB, without PostgreSQL."""
    with up("--ephemeral", "--port", "0") as running:
        address = running.ready()
        port = int(address.rsplit(":", 1)[1])
        sockets = []
        for number in range(100):
            client = socket.create_connection(("127.0.0.1", port))
            path = f"/api/v1/pop/queue/q{number % 20}?wait=true&timeout=60000&consumerGroup=g{number % 5}"
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
            sockets.append(client)
        time.sleep(1)
        broker = psutil.Process(running.process.pid)
        before = broker.cpu_times()
        seconds = 5.0
        time.sleep(seconds)
        after = broker.cpu_times()
        used = (after.user + after.system) - (before.user + before.system)
        assert used / seconds < 0.02, f"{used / seconds:.1%} of a core while idle"
        assert broker.memory_info().rss < 120e6
        for client in sockets:
            client.close()


def test_a_server_of_ones_own() -> None:
    with other_postgres() as url, up("--pg", url, "--port", "0") as running:
        address = running.ready()
        push(address, *range(10))
        assert pop(address) == list(range(10))
        assert "p%40ss" not in httpx.get(f"{address}/metrics").text
        assert running.stop() == 0
        assert "p@ss" not in running.stderr
        assert "p%40ss" not in running.stderr


async def test_a_server_of_ones_own_that_cannot_be_used() -> None:
    with other_postgres() as url:
        wrong = run("up", "--pg", url.replace("p%40ss", "nonsense"), "--port", "0")
        missing = run("up", "--pg", url.replace("/postgres", "/nothing"), "--port", "0")
        connection = await asyncpg.connect(url)
        await connection.execute("create role weak login password 'weak'")
        await connection.close()
        weak = run("up", "--pg", url.replace("owner:p%40ss%20word", "weak:weak"), "--port", "0")
    for result, words in ((wrong, "password"), (missing, "nothing"), (weak, "grant it CREATE")):
        assert result.returncode == 3
        assert result.stderr.startswith("queen: ")
        assert words in result.stderr
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("args", "environment", "code", "words"),
    [
        (["--pg", "postgresql://me@127.0.0.1:1/x"], {}, 3, "is it running"),
        (["--port", "99999"], {}, 2, "port"),
        ([], {"QUEEN_PROT": "1"}, 2, "QUEEN_PORT"),
        (["--config", "/nowhere/queen.toml"], {}, 2, "/nowhere/queen.toml"),
        (["--no-such-flag"], {}, 2, "No such option"),
        (["--host", "256.1.1.1"], {}, 4, "choose another"),
    ],
)
def test_what_cannot_work_says_so(
    args: list[str], environment: dict[str, str], code: int, words: str
) -> None:
    result = run("up", "--port", "0", *args, **environment)
    assert result.returncode == code
    assert words in result.stderr
    assert "Traceback" not in result.stderr


def test_a_port_in_use() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("up", "--ephemeral", "--port", str(port))
    assert result.returncode == 4
    assert f"port {port} on 127.0.0.1 is in use" in result.stderr


def test_settings_come_from_flag_then_environment_then_file() -> None:
    with folder() as place:
        file = place / "queen.toml"
        by_file, by_environment, by_flag = free_port(), free_port(), free_port()
        file.write_text(f'port = {by_file}\nephemeral = true\nlog_format = "json"\n')
        with up("--config", str(file)) as running:
            assert running.ready().endswith(f":{by_file}")
        with up(QUEEN_CONFIG=str(file), QUEEN_PORT=str(by_environment)) as running:
            assert running.ready().endswith(f":{by_environment}")
        with up("--config", str(file), "--port", str(by_flag), QUEEN_PORT=str(by_environment)) as running:
            assert running.ready().endswith(f":{by_flag}")
            running.stop()
            assert all(line.startswith("{") for line in running.stderr.splitlines())


class Demo:
    """``queen up --demo`` on a terminal. Whatever it starts has its mark."""

    def __init__(self, data: Path) -> None:
        self._mark = uuid.uuid4().hex
        self._terminal, side = os.openpty()
        self.process = subprocess.Popen(
            [QUEEN, "up", "--data", data, "--port", "0", "--demo"],
            stdout=side,
            stderr=side,
            start_new_session=True,
            env=clean_environment(DEMO_MARK=self._mark),
        )
        os.close(side)
        self.text = ""

    def read_until(self, pattern: str, seconds: float) -> re.Match[str]:
        """Read until there is such a line."""
        deadline = time.monotonic() + seconds
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < deadline, f"no {pattern} on the terminal: {self.text}"
            if select.select([self._terminal], [], [], 0.5)[0]:
                self.text += os.read(self._terminal, 4096).decode()
        return found

    def processes(self) -> set[str]:
        """The names of what runs."""
        names = set()
        for process in psutil.process_iter(["name"]):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("DEMO_MARK") == self._mark:
                    names.add(process.info["name"])
        return names

    def interrupt(self) -> int:
        """Ctrl-C: the terminal tells all of the session's processes."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGINT)
        code = self.process.wait(40)
        os.close(self._terminal)
        return code


def messages(address: str, queue: str) -> list[Any]:
    """The payloads of a queue."""
    answer = httpx.get(f"{address}/api/v1/messages", params={"queue": queue, "limit": 1000})
    return [each["data"] for each in answer.json()["messages"]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_demo_joins_windows_and_detects_and_leaves_nothing_running() -> None:
    with folder() as place:
        began = time.monotonic()
        demo = Demo(place / "data")
        try:
            address = demo.read_until(r"broker\s+(http://\S+)", 60)[1]
            curl = demo.read_until(r"try\s+curl -s (\S+) -d '([^']+)'", 5)
            assert httpx.post(curl[1], content=curl[2]).status_code == 201
            time_at = r"\d\d:\d\d:\d\d +"
            demo.read_until(time_at + r"revenue +(friends|mail|search) +\d+ orders +[\d,]+\.\d\d", 120)
            demo.read_until(time_at + r"pattern +bot-7 +rapid_clicks: 11", 30)
            warm = demo.read_until(time_at + r"anomaly +(fridge-\d) +(\d+\.\d) °C, usually [34]\.\d", 30)
            assert time.monotonic() - began < 120, "two minutes to the first results of all kinds"
            _look(address, fridge=warm[1], temperature=float(warm[2]))
            assert demo.processes() >= {"java", "queen"}
            assert postgres.find(place / "data") is not None
        finally:
            asked = time.monotonic()
            code = demo.interrupt()
        assert (code, "Traceback" in demo.text) == (0, False), demo.text
        assert time.monotonic() - asked < 20
        assert (demo.processes(), postgres.find(place / "data")) == (set(), None)


def _look(address: str, *, fridge: str, temperature: float) -> None:
    """What was said on the terminal is at the broker, and it is what was planted."""
    found = {(row["key"], row["value"]) for row in messages(address, "demo.anomalies")}
    numbers = [row for row in messages(address, "demo.readings") if row["temperature"] != "no signal"]
    planted = {(row["sensor"], row["temperature"]) for row in numbers if row["temperature"] > 8}
    assert (fridge, temperature) in {(key, round(value, 1)) for key, value in found}
    assert found <= planted, "nothing usual was found"
    assert {row["key"] for row in messages(address, "demo.matches")} == {"bot-7"}
    led = {row["order"]: row["campaign"] for row in messages(address, "demo.clicks") if "order" in row}
    sold = Counter(led.values())
    for row in messages(address, "demo.revenue"):
        assert 0 < row["orders"] <= sold[row["campaign"]]
    [broken, *_] = messages(address, "demo.failed")
    assert (broken["record"]["temperature"], broken["pipeline"]) == ("no signal", "demo.shop")
    groups = {group["name"] for group in httpx.get(f"{address}/api/v1/consumer-groups").json()}
    assert groups >= {"billing", "mailing"}
    shown = httpx.get(f"{address}/api/v1/pipelines/demo.shop").json()
    assert (shown["engine"], shown["state"]) == ("spark", "running")
    assert {"join", "aggregate", "stateful"} <= {node["kind"] for node in shown["plan"]["nodes"]}
    assert all("demo/pipeline.py" in node["where"] for node in shown["plan"]["nodes"])


def test_the_demo_says_that_there_is_no_java_and_runs_in_process() -> None:
    with up("--ephemeral", "--port", "0", "--demo", JAVA_HOME="/nowhere") as running:
        address = running.ready()
        deadline = time.monotonic() + 60
        while not messages(address, "demo.matches") and time.monotonic() < deadline:
            time.sleep(0.2)
        assert [row["key"] for row in messages(address, "demo.matches")][:1] == ["bot-7"]
        assert httpx.get(f"{address}/api/v1/pipelines/demo.shop").json()["engine"] == "local"
        assert running.stop() == 0
        told = [json.loads(line) for line in running.stdout.splitlines()]
        assert {row["key"] for row in told if row.get("pattern") == "rapid_clicks"} == {"bot-7"}
        assert "runs without Spark: JAVA_HOME is /nowhere, and no bin/java is there" in running.stderr
        assert "Traceback" not in running.stderr
