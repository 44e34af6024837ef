"""OpenTelemetry: a push and what is done with its message are one trace; without it, nothing happens."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

from queenstream import AsyncQueen
from queenstream.broker.app import Broker

ROOT = Path(__file__).parents[3]


class Spans(list[dict[str, Any]]):
    def named(self, name: str) -> dict[str, Any]:
        [found] = [span for span in self if span["name"] == name]
        return found

    def parent(self, name: str) -> str:
        """The name of the span above that one."""
        above = self.named(name)["parent"]
        return next(str(span["name"]) for span in self if span["id"] == above)


async def run(*arguments: str) -> bytes:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-W", "error::ResourceWarning", *arguments, cwd=ROOT, stdout=PIPE, stderr=PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, err.decode()
    return out


async def test_one_trace(broker: Broker) -> None:
    spans = Spans(json.loads(await run("-m", "tests.integration.client.tracing", broker.address)))
    # From the request through the queue to the handler, and through the queue after it.
    way = ["handler first", "process first", "send first", "request"]
    assert [spans.parent(name) for name in way[:-1]] == way[1:]
    assert spans.parent("process next") == "handler first"
    assert len({spans.named(name)["trace"] for name in [*way, "handler second"]}) == 1
    assert spans.parent("process buffered") == "request of buffered"
    send, process = spans.named("send first"), spans.named("process first")
    assert (send["kind"], process["kind"]) == ("PRODUCER", "CONSUMER")
    assert send["attributes"] == {
        "messaging.system": "queenstream",
        "messaging.operation.type": "send",
        "messaging.destination.name": "first",
        "messaging.batch.message_count": 1,
    }
    assert process["attributes"]["messaging.operation.type"] == "process"
    # A batch of several traces is linked to each; what is no context is none.
    batch = spans.named("process many")
    sent = {span["id"] for span in spans if span["name"] == "send many"}
    assert batch["parent"] is None
    assert len(batch["links"]) == 2
    assert set(batch["links"]) < sent
    # The synchronous client: one push of two, two handlers.
    threads = [span for span in spans if span["name"] == "process threads"]
    assert [span["parent"] for span in threads] == [spans.named("send threads")["id"]] * 2
    assert spans.named("send threads")["attributes"]["messaging.batch.message_count"] == 2


async def test_without_a_provider_nothing_is_sent(queen: AsyncQueen) -> None:
    await queen.queue("q").push(1)
    async with queen.queue("q").buffered() as producer:
        await producer.push(2)
    await queen.transaction().queue("q").push(3).commit()
    assert [message.trace_id for message in await queen.queue("q").batch(3).pop()] == [None] * 3


async def test_without_the_package_nothing_is_imported(broker: Broker) -> None:
    program = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "from queenstream import Queen\n"
        "with Queen(sys.argv[1]) as queen:\n"
        "    queen.queue('q').push(1)\n"
        "    print(queen.queue('q').limit(1).each().consume(lambda message: None).handled)\n"
    )
    assert await run("-c", program, broker.address) == b"1\n"
