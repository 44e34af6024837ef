"""Brokers that are away, slow, or die in the middle: nothing is lost, nothing is done twice."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest

from queenstream import AsyncMessages, AsyncQueen, AsyncWindow, Message, Queen
from queenstream.broker.app import Broker
from queenstream.client._async import retry
from queenstream.errors import BadAnswer, BrokerUnreachable, ServerFailed, Unavailable
from tests.conftest import StartBroker
from tests.integration.client.conftest import Process, StartServer
from tests.integration.client.servers import answer
from tests.integration.streams.streaming import eventually
from tests.processes import free_port

BUSY = answer(503, b'{"error":"stopping"}', "Retry-After: 1")
PUSHED = (
    b'[{"index":0,"transaction_id":"t","message_id":"1","partition_id":"p","trace_id":null,'
    b'"queueName":"q","status":"queued"}]'
)


def nobody() -> str:
    return f"http://127.0.0.1:{free_port()}"


# Several addresses


async def test_requests_are_spread(serve: StartServer) -> None:
    servers = [await serve(lambda first, body: answer(201, PUSHED)) for _ in range(3)]
    async with AsyncQueen([server.address for server in servers]) as queen:
        for _ in range(30):
            await queen.queue("q").push(1)
    assert [len(server.requests) for server in servers] == [10, 10, 10]
    assert [server.connections for server in servers] == [1, 1, 1]  # kept and used again


async def test_one_that_is_down_costs_nothing(broker: Broker) -> None:
    async with AsyncQueen([nobody(), broker.address, nobody()]) as queen:
        began = time.monotonic()
        for n in range(20):
            await queen.queue("q").push(n)
        assert time.monotonic() - began < 5
        messages = await queen.queue("q").batch(100).pop()
        assert [message.data for message in messages] == list(range(20))


async def test_one_that_is_busy_is_passed_over(broker: Broker, serve: StartServer) -> None:
    busy = await serve(lambda first, body: BUSY)
    async with AsyncQueen([busy.address, broker.address]) as queen:
        for n in range(10):
            assert (await queen.queue("q").push(n)).status == "queued"
        assert len(await queen.queue("q").batch(100).pop()) == 10
    assert busy.requests  # it was asked, and asked again no more than now and then
    assert len(busy.requests) < 10


async def test_a_broker_that_stops_is_replaced_by_the_other(start_broker: StartBroker) -> None:
    first, second = await start_broker(), await start_broker()
    async with AsyncQueen([first.address, second.address]) as queen:
        for n in range(6):
            await queen.queue("q").push(n)
        await first.stop()
        for n in range(6, 12):
            await queen.queue("q").push(n)
        messages = await queen.queue("q").batch(100).wait("5s").pop()
        assert [message.data for message in messages] == list(range(12))


async def test_the_synchronous_client_too(broker: Broker, serve: StartServer) -> None:
    busy = await serve(lambda first, body: BUSY)

    def work() -> None:
        with Queen([nobody(), broker.address, busy.address]) as queen:
            for n in range(20):
                queen.queue("q").push(n)
            assert [m.data for m in queen.queue("q").batch(100).pop()] == list(range(20))

    await asyncio.to_thread(work)


# Time


async def test_nobody_there() -> None:
    first, second = nobody(), nobody()
    began = time.monotonic()
    async with AsyncQueen([first, second], timeout="400ms") as queen:
        with pytest.raises(BrokerUnreachable) as caught:
            await queen.queue("q").push(1)
    assert 0.2 < time.monotonic() - began < 3
    assert f"{first}: the connection was refused" in str(caught.value)
    assert f"{second}: the connection was refused" in str(caught.value)
    assert "queen up" in str(caught.value)


async def test_a_server_that_never_answers(serve: StartServer) -> None:
    server = await serve(lambda first, body: "silence")

    def work() -> float:
        began = time.monotonic()
        with (
            Queen(server.address, timeout="400ms") as queen,
            pytest.raises(BrokerUnreachable, match="no answer"),
        ):
            queen.queue("q").push(1)
        return time.monotonic() - began

    began = time.monotonic()
    async with AsyncQueen(server.address, timeout="400ms") as queen:
        with pytest.raises(BrokerUnreachable, match="no answer in time"):
            await queen.queue("q").push(1)
    assert 0.3 < time.monotonic() - began < 3
    assert 0.3 < await asyncio.to_thread(work) < 3


async def test_a_silent_one_does_not_take_all_the_time(
    broker: Broker, serve: StartServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "ATTEMPT_SECONDS", 0.3)
    silent = await serve(lambda first, body: "silence")
    async with AsyncQueen([silent.address, broker.address], timeout="10s") as queen:
        began = time.monotonic()
        for n in range(4):
            await queen.queue("q").push(n, transaction_id=str(n))
        assert time.monotonic() - began < 5


# What is repeated


@pytest.mark.parametrize("first_time", ["close", BUSY], ids=["no answer", "503"])
async def test_a_push_is_repeated_with_its_ids(serve: StartServer, first_time: Any) -> None:
    bodies: list[bytes] = []

    def behave(first: str, body: bytes) -> Any:
        bodies.append(body)
        return first_time if len(bodies) == 1 else answer(201, PUSHED)

    server = await serve(behave)
    async with AsyncQueen(server.address) as queen:
        assert (await queen.queue("q").push({"n": 1})).status == "queued"
    assert len(bodies) == 2
    assert bodies[0] == bodies[1]
    assert b'"transactionId"' in bodies[0]


async def test_what_is_not_safe_is_not_repeated(serve: StartServer) -> None:
    server = await serve(lambda first, body: "close")
    async with AsyncQueen(server.address, timeout="5s") as queen:
        with pytest.raises(BrokerUnreachable):
            await queen.queue("q").auto_ack().pop()  # what the answer held would be gone
    assert len(server.requests) == 1
    busy = await serve(lambda first, body: BUSY)
    async with AsyncQueen(busy.address, timeout="5s") as queen:
        with pytest.raises(Unavailable, match="stopping"):
            await queen.queue("q").auto_ack().pop()
    assert len(busy.requests) == 1


async def test_what_was_never_sent_is_always_repeated(broker: Broker) -> None:
    async with AsyncQueen([nobody(), nobody(), broker.address]) as queen:
        for _ in range(6):
            assert await queen.queue("q").auto_ack().pop() == []


async def test_refusals_are_not_repeated(serve: StartServer) -> None:
    server = await serve(lambda first, body: answer(500, b'{"error":"broken"}'))
    async with AsyncQueen(server.address) as queen:
        with pytest.raises(ServerFailed, match="broken"):
            await queen.queue("q").push(1)
    assert len(server.requests) == 1


async def test_a_503_that_stays_is_said(serve: StartServer) -> None:
    server = await serve(lambda first, body: BUSY)
    async with AsyncQueen(server.address, timeout="300ms") as queen:
        with pytest.raises(Unavailable, match="stopping"):
            await queen.queue("q").push(1)


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH\r\n\r\n", answer(200, b"<html>hello</html>")])
async def test_another_kind_of_server(serve: StartServer, data: bytes) -> None:
    server = await serve(lambda first, body: data)

    def work() -> None:
        with Queen(server.address, timeout="2s") as queen, pytest.raises(BadAnswer):
            queen.queue("q").push(1)

    async with AsyncQueen(server.address, timeout="2s") as queen:
        with pytest.raises(BadAnswer):
            await queen.queue("q").push(1)
    await asyncio.to_thread(work)


async def test_a_connection_that_the_server_closes_is_not_used_again(serve: StartServer) -> None:
    ending = answer(201, PUSHED, "Connection: close")
    server = await serve(lambda first, body: ending)
    async with AsyncQueen(server.address) as queen:
        for _ in range(3):
            await queen.queue("q").push(1)
    assert server.connections == 3


# A broker that dies and comes back


async def restart(process: Process) -> None:
    await asyncio.to_thread(process.kill)
    await asyncio.sleep(0.3)  # long enough to be missed by everybody
    await asyncio.to_thread(process.start)


class Seen:
    """What the consumers of one group got, and in which order."""

    def __init__(self) -> None:
        self.order: dict[str, list[int]] = {}
        self.all: set[int] = set()

    def add(self, partition: str, number: int) -> None:
        self.order.setdefault(partition, []).append(number)
        self.all.add(number)

    def in_order(self) -> bool:
        """Each for the first time after those before it: what comes again begins where it broke off."""
        return all(list(dict.fromkeys(got)) == sorted(set(got)) for got in self.order.values())


async def push_until(over: asyncio.Task[None], queen: AsyncQueen) -> tuple[int, int]:
    """Numbers into four partitions through a buffer, some without it; gives how many."""
    buffered = plain = 0
    chain = queen.queue("q").buffered(batch_size=20, partition_key=lambda n: f"p{n % 4}")
    async with chain as producer:
        while not over.done() or buffered % 20:  # in the end five for the last window of each partition
            await producer.push(buffered)
            buffered += 1
            if buffered % 50 == 0:
                await queen.queue("q").partition("plain").push(1_000_000 + plain)
                plain += 1
            await asyncio.sleep(0.002)
    assert (producer.stats.stored, producer.stats.failed) == (buffered, 0)
    return buffered, plain


def in_a_thread(address: str, seen: Seen, stop: threading.Event) -> None:
    def handle(message: Message[Any]) -> None:
        seen.add(message.partition, message.data)

    with Queen(address) as queen:
        queue = queen.queue("q").group("threads").batch(20).concurrency(2)
        assert queue.each().consume(handle, stop=stop).failed == 0


async def test_kill_9_in_the_middle_of_everything(process: Process) -> None:
    """Consumers of both clients, of messages and of windows, and pushes of both kinds: the broker dies."""
    messages, windows, threads = Seen(), Seen(), Seen()
    stop, stop_threads = asyncio.Event(), threading.Event()

    async def consume(batch: AsyncMessages[Any]) -> None:
        for message in batch:
            messages.add(message.partition, message.data)
        await asyncio.sleep(0.002)

    async def handle(window: AsyncWindow[Any]) -> None:
        for message in window.messages:
            windows.add(window.key, message.data)

    async with AsyncQueen(process.address) as queen:
        await queen.queue("q").config(lease_time=2, ttl=0, retry_delay=0, retry_limit=1000).create()
        chain = queen.stream("s").sources(["q"]).partitioned().count(5).lease_timeout(2).retry_limit(1000)
        await chain.define()
        workers = [
            asyncio.create_task(
                queen.queue("q").group("g").batch(20).concurrency(3).consume(consume, stop=stop)
            ),
            asyncio.create_task(queen.consumer("s", "g").process(handle, concurrency=2, stop=stop)),
        ]
        thread = asyncio.to_thread(in_a_thread, process.address, threads, stop_threads)
        threaded = asyncio.create_task(thread)
        buffered, plain = await push_until(asyncio.create_task(restart(process)), queen)
        everything = {*range(buffered), *range(1_000_000, 1_000_000 + plain)}

        async def all_came() -> bool:
            return messages.all == threads.all == everything and windows.all >= set(range(buffered))

        try:
            await eventually(all_came, 20)
        finally:
            stop.set()
            stop_threads.set()
            await asyncio.gather(*workers, threaded)
        stored = await queen.queue("q").group("count").batch(10_000).partitions(10).pop()
    assert sorted(message.data for message in stored) == sorted(everything)  # every push exactly once
    assert [worker.result().failed for worker in workers] == [0, 0]
    assert messages.in_order()
    assert windows.in_order()
    assert threads.in_order()
