"""Kills while pipelines run on Spark: of the driver, executors, Python workers, PostgreSQL and the broker.

The sinks hold what an undisturbed run gives, all of it and nothing twice. The driver is started again by the
test, as by whoever supervises it; everything else it has to survive by itself. Five kills, one of each kind,
mostly two at a time; ``QUEENSTREAM_LONG=1``: twenty, one after the other. ``QUEENSTREAM_SEED`` repeats the
choices of an earlier run.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import psutil
import pytest

from queenstream import Queen, postgres
from queenstream.client._base.payloads import encode
from queenstream.core.records import moment
from queenstream.engines.spark.tasks import rows as flow
from queenstream.testing import PipelineDriver
from tests.faults.spark_job import Record, joined, plain
from tests.integration.spark_cluster.driving import Driver, spark_home, stored
from tests.processes import Up, clean_environment, folder, free_port
from tests.sparks import QUICK

KINDS = ("driver", "executor", "python", "postgres", "broker")
LONG = bool(os.environ.get("QUEENSTREAM_LONG"))
TURNS = 4 if LONG else 1  # of each kind
PATIENCE_SECONDS = 300.0
LATEST_SECONDS = 4.0  # a round is done by then, mostly: a kill comes sooner
BEGINNING = datetime(2026, 1, 31, tzinfo=UTC)
USERS = ("ann", "bob", "cem")
RECORDS = 25  # in a round; so its last number does not end with 3, which would fail

Round = dict[str, list[Record]]


def ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


def reached(number: int) -> datetime:
    """How far event time is after a round."""
    return BEGINNING + timedelta(seconds=10 * number + 9)


def round_of(number: int, chance: random.Random) -> Round:
    """Ten seconds of events for all queues.

    What is late comes first, so that it is late by what the round before has shown, wherever Spark cuts its
    batches; what follows is in order, so that nothing else is late.
    """
    begin = reached(number - 1)
    start = RECORDS * number
    late = [] if number == 0 else [
        {"n": -start - n, "user": "late", "value": 0, "at": ms(begin - timedelta(seconds=60 + n))}
        for n in range(3)
    ]  # fmt: skip

    def side() -> list[Record]:
        times = sorted(chance.randint(1_000, 9_000) for _ in range(RECORDS))
        records: list[Record] = [
            {
                "n": start + n,
                "user": chance.choice(USERS),
                "value": chance.randint(1, 9),
                "at": ms(begin) + at,
            }
            for n, at in enumerate(times)
        ]
        records[-1]["at"] = ms(reached(number))
        return late + records

    events = [{"user": chance.choice(USERS), "n": start + n} for n in range(RECORDS)]
    return {"left": side(), "right": side(), "events": events}


def undisturbed(rounds: list[Round]) -> dict[str, list[Record]]:
    """What the sinks hold where nobody is killed."""
    with PipelineDriver(joined()) as both, PipelineDriver(plain()) as single:
        for each in rounds:
            both.send_together({name: each[name] for name in ("left", "right")})
            single.send(*each["events"])
        found = {"totals": both.rows("totals"), "late": both.late(), "dead": both.dead_letters()}
        found["copies"] = single.rows("copies")
    return {name: msgspec.json.decode(encode(rows)) for name, rows in found.items()}


class Scene:
    """PostgreSQL, a broker on it, and the driver: any of them may be killed, and comes back."""

    def __init__(self, place: Path) -> None:
        self._place = place
        self._state = place / "state"
        self._ports = free_port(), free_port()
        self._start_postgres()
        url = self._server.tcp_url
        assert url is not None
        self._url = url
        self.address = f"http://127.0.0.1:{self._ports[1]}"
        self._broker = self._start_broker()
        environment = clean_environment(
            QUEEN_PG=url,
            SPARK_LOCAL_IP="127.0.0.1",
            SPARK_HOME=str(spark_home(place / "spark")),
            JDK_JAVA_OPTIONS=QUICK,
        )
        job = "tests.faults.spark_job", self.address, str(self._state)
        self.driver = Driver(place / "driver.log", environment, *job)
        self.kills: Counter[str] = Counter()

    def _start_postgres(self) -> None:
        self._server = postgres.start(self._place / "data", port=self._ports[0])

    def _start_broker(self) -> Up:
        broker = Up("--pg", self._url, "--port", str(self._ports[1]), "--log-level", "error")
        broker.ready()
        return broker

    def push(self, given: Round) -> None:
        """A queue's records of a round at once: Spark sees all of them or none."""
        with Queen(self.address) as queen:
            for name, records in given.items():
                queen.queue(name).push(records)

    def kill(self, kind: str, chance: random.Random) -> None:
        """kill -9; what is not Spark's to start again is back after a while."""
        self.kills[kind] += 1
        match kind:
            case "driver":
                self.driver.kill()
                self.driver.start()
            case "executor":
                self._kill_one(self.driver.executors, chance)
            case "python":
                self._kill_one(self.driver.python_workers, chance)
            case "postgres":
                _kill_tree(self._server.pid)
                time.sleep(chance.uniform(0, 3))
                self._start_postgres()
            case "broker":
                self._broker.stop(signal.SIGKILL)
                time.sleep(chance.uniform(0, 3))
                self._broker = self._start_broker()

    def _kill_one(self, look: Callable[[], list[psutil.Process]], chance: random.Random) -> None:
        found = self.driver.wait_until("a process to kill", look, PATIENCE_SECONDS)
        with contextlib.suppress(psutil.NoSuchProcess):  # it had come to its end
            chance.choice(found).kill()

    def settle(self, number: int, copies: int) -> None:
        """Until both pipelines are done with a round."""

        def done() -> bool:
            return self._watermark() == reached(number) and len(self.rows("copies")) >= copies

        self.driver.wait_until(f"the end of round {number}", done, PATIENCE_SECONDS)

    def wait_for(self, queue: str, rows: int) -> None:
        """Until a queue has so many rows."""
        self.driver.wait_until(
            f"row {rows} of {queue}", lambda: len(self.rows(queue)) >= rows, PATIENCE_SECONDS
        )

    def _watermark(self) -> datetime | None:
        """How far event time is for the batch after the last one that is done."""
        done = [each for each in (self._state / "joined/spark/commits").glob("*") if each.name.isdecimal()]
        if not done:
            return None
        newest = max(done, key=lambda each: int(each.name))
        at = flow.from_watermark(json.loads(newest.read_text().splitlines()[1])["nextBatchWatermarkMs"])
        return None if at is None else moment(at)

    def rows(self, queue: str) -> list[Record]:
        """All that is in a queue."""
        return stored(self._url, queue)

    def stop(self) -> None:
        self.driver.kill()
        self._broker.stop()
        self._server.stop()


def _kill_tree(pid: int) -> None:
    """PostgreSQL with all its processes, as a crash of the machine would."""
    server = psutil.Process(pid)
    doomed = [server, *server.children(recursive=True)]
    for each in doomed:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(doomed, timeout=10)


@pytest.fixture
def scene() -> Iterator[Scene]:
    with folder() as place:
        made = Scene(place)
        try:
            yield made
        finally:
            made.stop()


def plan_of_kills(chance: random.Random) -> list[tuple[str, ...]]:
    """Which kinds are killed in a round: each as often as the others, in any order.

    Two at a time take as long as one. Not so the driver: nobody starts it while PostgreSQL is away.
    """
    kinds = list(KINDS) * TURNS
    chance.shuffle(kinds)
    rounds: list[tuple[str, ...]] = [(kind,) for kind in kinds]
    if not LONG:
        others = [kind for kind in kinds if kind != "driver"]
        rounds = [("driver",), (others[0], others[1]), (others[2], others[3])]
        chance.shuffle(rounds)
    return rounds


def by_user(rows: list[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = {}
    for row in rows:
        found.setdefault(row["user"], []).append(row)
    return found


def sorted_rows(rows: list[Record]) -> list[str]:
    """Without the time at which a step failed, which is the clock's."""
    return sorted(repr({k: v for k, v in sorted(row.items()) if k != "failed_at"}) for row in rows)


@pytest.mark.slow
@pytest.mark.timeout((TURNS * len(KINDS) + 2) * PATIENCE_SECONDS)
def test_the_sinks_are_those_of_an_undisturbed_run(scene: Scene, capsys: pytest.CaptureFixture[str]) -> None:
    seed = int(os.environ.get("QUEENSTREAM_SEED", "0")) or random.randrange(1, 1_000_000)
    chance = random.Random(seed)
    kills = plan_of_kills(chance)
    rounds = [round_of(number, chance) for number in range(len(kills) + 2)]
    wanted = undisturbed(rounds)
    told = f"seed {seed}: {', '.join(' and '.join(kinds) for kinds in kills)}"

    def settle(number: int) -> None:
        so_far = sum(event["n"] % 7 != 0 for each in rounds[: number + 1] for event in each["events"])
        scene.settle(number, so_far)

    scene.push(rounds[0])
    scene.driver.start()
    settle(0)
    for number, kinds in enumerate(kills, start=1):
        scene.push(rounds[number])
        for kind in kinds:
            time.sleep(chance.uniform(0, LATEST_SECONDS / len(kinds)))  # there is no signal for it: any point
            scene.kill(kind, chance)
        settle(number)
    scene.push(rounds[-1])  # a driver that was just started closes no window before it has seen a record
    settle(len(kills) + 1)
    scene.wait_for("totals", len(wanted["totals"]))
    for name in ("totals", "copies"):
        assert by_user(scene.rows(name)) == by_user(wanted[name]), f"{name} after {told}"
    for name in ("late", "dead"):
        assert sorted_rows(scene.rows(name)) == sorted_rows(wanted[name]), f"{name} after {told}"
    assert scene.driver.starts == 1 + scene.kills["driver"], f"the driver gave up after {told}"
    assert [len(rows) > len(kills) for rows in wanted.values()] == [True] * 4
    with capsys.disabled():
        print(f" {told}", end="")  # noqa: T201
