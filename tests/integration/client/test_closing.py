"""Ends: with a block, by hand, and without either."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from asyncio.subprocess import PIPE

import pytest

from queenstream import AsyncQueen, Queen
from queenstream.broker.app import Broker
from queenstream.errors import ClientClosed
from tests.integration.client.conftest import InThread


async def test_a_client_that_nobody_closed_warns(broker: Broker) -> None:
    clients = [AsyncQueen(broker.address)]
    await clients[0].queue("q").push(1)
    with pytest.warns(ResourceWarning, match="a client was not closed; use it in a with block"):
        clients.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of asyncio, about the connection
        gc.collect()


async def test_so_does_the_synchronous_one(broker: Broker) -> None:
    def work() -> None:
        queen = Queen(broker.address)
        queen.queue("q").push(1)
        del queen

    with pytest.warns(ResourceWarning, match="a client was not closed; use it in a with block"):
        await asyncio.to_thread(work)


async def test_one_that_was_never_used_does_not(broker: Broker) -> None:
    for client in (AsyncQueen(broker.address), Queen(broker.address)):
        client.queue("q").group("g")
    del client
    gc.collect()  # a warning would be an error


SYNC = """
import sys
from queenstream import Queen
with Queen(sys.argv[1]) as queen:
    producer = queen.queue("q").buffered(flush_interval="60s")
    producer.push(1)
"""
ASYNC = """
import asyncio, sys
from queenstream import AsyncQueen
async def main():
    async with AsyncQueen(sys.argv[1]) as queen:
        await queen.queue("q").buffered(flush_interval="60s").push(1)
asyncio.run(main())
"""


@pytest.mark.parametrize("program", [SYNC, ASYNC], ids=["sync", "async"])
async def test_a_producer_that_nobody_closed_warns(broker: Broker, program: str) -> None:
    """At the latest when the program ends."""
    command = (sys.executable, "-W", "always::ResourceWarning", "-c", program, broker.address)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    _, said = await process.communicate()
    assert b"ResourceWarning: a producer of q was not closed: 1 messages may be lost" in said


async def test_one_that_took_nothing_does_not(queen: AsyncQueen) -> None:
    queen.queue("q").buffered()
    gc.collect()  # a warning would be an error


async def test_a_block_closes_though_it_fails(broker: Broker) -> None:
    queen = AsyncQueen(broker.address)
    producer = queen.queue("q").buffered(flush_interval="60s")

    async def work() -> None:
        async with queen, producer:
            await queen.queue("q").push(1)
            await producer.push(2)
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await work()
    with pytest.raises(ClientClosed):
        await queen.queue("q").push(3)
    with pytest.raises(ClientClosed):
        await producer.push(3)
    async with AsyncQueen(broker.address) as other:
        messages = await other.queue("q").batch(10).pop()
        assert [message.data for message in messages] == [1, 2]  # what was taken is stored


async def test_no_connection_is_left(broker: Broker) -> None:
    async with AsyncQueen(broker.address) as queen:
        await asyncio.gather(*(queen.queue("q").push(n) for n in range(10)))
        opened = [connection for known in queen._calls._brokers.all for connection in known.idle]
        assert opened
    await asyncio.sleep(0)
    assert not any(connection.open for connection in opened)


async def test_closing_while_a_consumer_waits(broker: Broker) -> None:
    """A consumer has its own end; without one it learns that its client is gone."""
    queen = AsyncQueen(broker.address)
    await queen.queue("q").create()
    consuming = asyncio.create_task(queen.queue("q").wait("300ms").consume(lambda ms: None))
    await asyncio.sleep(0.1)
    await queen.close()
    with pytest.raises(ClientClosed, match="the client was closed"):
        await asyncio.wait_for(consuming, 5)


async def test_a_loop_may_be_closed_by_another_thread(in_thread: InThread, queen: AsyncQueen) -> None:
    """The message in hand goes back, and the loop ends with an error."""
    await queen.queue("q").push([1, 2])

    def work(queen: Queen) -> None:
        closing = threading.Thread(target=queen.close)
        loop = queen.queue("q").group("g").messages()
        assert next(loop).data == 1
        closing.start()
        closing.join()
        with pytest.raises(ClientClosed):
            next(loop)

    await in_thread(work)
    again = await queen.queue("q").group("g").batch(2).pop()
    assert [message.data for message in again] == [1, 2]


async def test_a_client_for_several_event_loops(broker: Broker) -> None:
    """One that outlives its event loop opens a new connection in the next."""
    queen = AsyncQueen(broker.address)

    async def push() -> str:
        return (await queen.queue("q").push(1)).status

    async def last() -> str:
        async with queen:
            return await push()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # of asyncio: the first loop left a connection open
        assert await asyncio.to_thread(lambda: asyncio.run(push())) == "queued"
        assert await asyncio.to_thread(lambda: asyncio.run(last())) == "queued"
        gc.collect()  # here, not in the middle of another test


async def test_nothing_is_said_at_exit(broker: Broker) -> None:
    """A whole program, with every warning on."""
    program = (
        "import sys; from queenstream import Queen\n"
        "with Queen(sys.argv[1]) as queen:\n"
        "    with queen.queue('q').buffered() as producer:\n"
        "        producer.push(1)\n"
        "    print([m.data for m in queen.queue('q').limit(1).messages()])\n"
    )
    command = (sys.executable, "-W", "error", "-X", "dev", "-c", program, broker.address)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert await process.communicate() == (b"[1]\n", b"")
    assert process.returncode == 0


async def test_a_fork_has_its_own_connections(broker: Broker, queen: AsyncQueen) -> None:
    """Parent and child go on with one client; every warning is on."""
    program = (
        "import os, sys; from queenstream import Queen\n"
        "with Queen(sys.argv[1]) as queen:\n"
        "    queen.queue('q').push(0)\n"
        "    child = os.fork()\n"
        "    for n in range(20):\n"
        "        assert queen.queue('q').push(n).status == 'queued'\n"
        "if child:\n"
        "    assert os.waitpid(child, 0)[1] == 0\n"
    )
    command = (sys.executable, "-W", "error", "-X", "dev", "-c", program, broker.address)
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=PIPE)
    assert await process.communicate() == (b"", b"")
    assert process.returncode == 0
    assert len(await queen.queue("q").batch(100).pop()) == 41
