"""``queen bridge`` as a process, both ways, with a real Kafka and a real broker."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest

from queenstream import AsyncQueen
from queenstream.broker.app import Broker
from tests.processes import QUEEN, clean_environment
from tests.servers.kafka import KafkaServer


async def bridge(broker: Broker, state: Path, *words: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        QUEEN, "bridge", *words, "--url", broker.address, "--output", "json",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env=clean_environment(XDG_STATE_HOME=str(state)),
    )  # fmt: skip


async def ended(process: asyncio.subprocess.Process) -> tuple[int | None, dict[str, Any], str]:
    async with asyncio.timeout(60):
        out, errors = await process.communicate()
    return process.returncode, json.loads(out or b"{}"), errors.decode()


async def messages(queen: AsyncQueen, queue: str, count: int) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            taken = await queen.queue(queue).group("test").batch(100).partitions(100).wait(5).pop()
            found += taken
            await queen.ack(taken)
    return found


async def test_a_topic_into_a_queue_and_back(kafka: KafkaServer, broker: Broker, tmp_path: Path) -> None:
    topic, back = kafka.topic(partitions=3), kafka.topic(partitions=3)
    values = [json.dumps({"n": n}) for n in range(60)]
    kafka.send(topic, values, keys=[None if n % 6 == 5 else f"u{n % 6}" for n in range(60)])
    there = (f"kafka://{kafka.servers}/{topic}", "queue://orders", "--once")
    code, told, errors = await ended(await bridge(broker, tmp_path, *there))
    assert (code, told.get("messages"), told.get("ended")) == (0, 60, "ended"), errors
    kafka.send(topic, [json.dumps({"n": 60})], keys=["u0"])
    code, told, errors = await ended(await bridge(broker, tmp_path, *there))  # it goes on, and only with that
    assert (code, told.get("messages")) == (0, 1), errors
    anew = (*there, "--checkpoint", str(tmp_path / "new"), "--group", "new")
    code, _, errors = await ended(await bridge(broker, tmp_path, *anew))
    assert code == 1
    assert "start_over" in errors or "--start-over" in errors
    code, _, errors = await ended(await bridge(broker, tmp_path, *anew, "--start-over"))
    assert code == 0, errors  # all of it again, which the queue knows
    async with AsyncQueen(broker.address) as queen:
        stored = await messages(queen, "orders", 61)
        assert sorted(message.data["n"] for message in stored) == list(range(61))
        for name in ("u0", "u3"):
            own = [message.data["n"] for message in stored if message.partition == name]
            assert own == sorted(own)
            assert len(own) in (10, 11)
        assert sum(message.partition == "Default" for message in stored) == 10
    back_again = ("queue://orders", f"kafka://{kafka.servers}/{back}", "--once", "--group", "back")
    code, told, errors = await ended(await bridge(broker, tmp_path, *back_again))
    assert (code, told.get("messages")) == (0, 61), errors
    copied = kafka.received(back)
    assert sorted(json.loads(message.value() or b"")["n"] for message in copied) == list(range(61))
    for key in (b"u0", b"u3"):
        own = [json.loads(m.value() or b"")["n"] for m in copied if m.key() == key]
        assert own == sorted(own)
        assert len(own) in (10, 11)


async def test_it_runs_until_ctrl_c_and_says_what_is_wrong(
    kafka: KafkaServer, broker: Broker, tmp_path: Path
) -> None:
    topic = kafka.topic()
    kafka.send(topic, [b'{"n": 1}'])
    running = await bridge(broker, tmp_path, f"kafka://{kafka.servers}/{topic}", "queue://live")
    async with AsyncQueen(broker.address) as queen:
        assert (await messages(queen, "live", 1))[0].data == {"n": 1}
    running.send_signal(signal.SIGINT)
    code, told, errors = await ended(running)
    assert (code, told.get("messages")) == (0, 1), errors
    kafka.send(topic, [b"{no json", b'{"n": 2}'])
    again = f"kafka://{kafka.servers}/{topic}", "queue://live", "--once"
    code, _, errors = await ended(await bridge(broker, tmp_path, *again))
    assert code == 1
    assert "no JSON" in errors
    code, told, errors = await ended(await bridge(broker, tmp_path, *again, "--on-bad", "skip"))
    assert (code, told.get("messages"), told.get("bad")) == (0, 1, 1), errors


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("queue://a", "queue://b"), 2, "is no bridge"),
        (("kafka://localhost:1/", "queue://b"), 2, "is no topic"),
        (("kafka://localhost:1/x", "queue://b", "--settings", "nowhere"), 2, "cannot be read"),
        (("kafka://localhost:1/x", "queue://b"), 3, "no Kafka server answers"),
    ],
)
async def test_mistakes_have_their_exit_code(
    broker: Broker, tmp_path: Path, words: tuple[str, ...], code: int, told: str
) -> None:
    found, _, errors = await ended(await bridge(broker, tmp_path, *words))
    assert found == code
    assert told in errors
