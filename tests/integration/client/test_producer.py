"""Buffered pushes: put together, in order, none lost; against a real broker."""

from __future__ import annotations

import asyncio
import threading
import time
from dataclasses import dataclass
from typing import Any

import pytest

from queenstream import AsyncQueen, Backpressure, Queen
from queenstream.broker.app import Broker
from queenstream.client._base.buffer import Pressure
from queenstream.errors import (
    BadAnswer,
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    ConfigError,
    InvalidRequest,
    PayloadInvalid,
    TooLarge,
)
from tests.integration.client.conftest import InThread, StartServer
from tests.integration.client.servers import Served, answer
from tests.processes import free_port


async def data(queen: AsyncQueen, queue: str = "q") -> list[Any]:
    popped = await queen.queue(queue).batch(10_000).partitions(100).auto_ack().pop()
    return [message.data for message in popped]


async def silent(serve: StartServer) -> Served:
    """A server that takes requests and never answers: what is sent stays pending."""
    return await serve(lambda first, body: "silence")


# Pushing


async def test_everything_is_stored_in_order(queen: AsyncQueen) -> None:
    async with queen.queue("q").buffered(batch_size=50) as producer:
        for n in range(1000):
            await producer.push(n)
    assert await data(queen) == list(range(1000))
    stats = producer.stats
    assert (stats.accepted, stats.stored, stats.pending, stats.failed) == (1000, 1000, 0, 0)
    assert 20 <= stats.batches < 200


async def test_order_inside_a_key_over_several_lanes(queen: AsyncQueen) -> None:
    async with queen.queue("q").buffered(
        batch_size=7, max_concurrency=4, partition_key="data.user"
    ) as producer:
        for n in range(600):
            await producer.push({"user": f"u{n % 12}", "n": n})
    messages = await queen.queue("q").batch(10_000).partitions(100).pop()
    found: dict[str, list[int]] = {}
    for message in messages:
        found.setdefault(message.partition, []).append(message.data["n"])
    assert found == {f"u{user}": list(range(user, 600, 12)) for user in range(12)}


async def test_results_can_be_waited_for(queen: AsyncQueen) -> None:
    async with queen.queue("q").partition("ann").buffered() as producer:
        pushed = [await producer.push(n, transaction_id=f"t{n % 2}") for n in range(3)]
        results = [await one.result() for one in pushed]
        assert [(r.transaction_id, r.status) for r in results] == [
            ("t0", "queued"),
            ("t1", "queued"),
            ("t0", "duplicate"),
        ]
        assert (await pushed[0].result()) is results[0]
        assert producer.stats.duplicates == 1
    [message] = await queen.queue("q").partition("ann").pop()
    assert message.id == results[0].message_id


async def test_an_answer_that_is_none_fails_the_batch(serve: StartServer) -> None:
    server = await serve(lambda *_: answer(201, b"[]"))
    async with AsyncQueen(server.address) as queen:
        producer = queen.queue("q").buffered()
        pushed = await producer.push(1)
        with pytest.raises(BadAnswer, match="0 results for 1 messages"):
            await pushed.result(10)
        with pytest.raises(BadAnswer):
            await producer.close()


async def test_partitions(queen: AsyncQueen) -> None:
    @dataclass
    class Order:
        shop: str
        user: str

    async with queen.queue("q", type=Order).buffered(partition_key=["shop", "data.user"]) as producer:
        await producer.push(Order("x", "ann"))
        await producer.push(Order("x", "bob"), partition="mine")
    async with queen.queue("q", type=Order).buffered(partition_key=lambda order: order.user) as producer:
        await producer.push(Order("y", "cid"))
    async with queen.queue("q").partition("fixed").buffered() as plain:
        await plain.push(1)
    popped = await queen.queue("q").batch(10).partitions(10).pop()
    assert {message.partition for message in popped} == {"x:ann", "mine", "cid", "fixed"}


async def test_a_key_that_is_missing_is_refused_at_once(queen: AsyncQueen) -> None:
    async with queen.queue("q").buffered(partition_key="data.user") as producer:
        with pytest.raises(PayloadInvalid, match=r"has no data\.user, which names its partition"):
            await producer.push({"n": 1})
        with pytest.raises(PayloadInvalid, match="cannot be written as JSON"):
            await producer.push({"user": "ann", "n": object()})
        await producer.push({"user": "ann"})
    assert await data(queen) == [{"user": "ann"}]


async def test_ttl_changes_nothing_else(queen: AsyncQueen) -> None:
    await queen.queue("q").namespace("shop").config(lease_time=7).create()
    async with queen.queue("q").buffered(ttl=5) as producer:
        await producer.push(1)
    async with queen.queue("new").namespace("shop").buffered(ttl=9) as producer:
        await producer.push(1)
    old, new = await queen.admin.queue("q"), await queen.admin.queue("new")
    assert (old.options.ttl, old.options.lease_time, old.namespace) == (5, 7, "shop")
    assert (new.options.ttl, new.namespace) == (9, "shop")


async def test_a_schema(queen: AsyncQueen) -> None:
    schema = "user string not null, amount double"
    async with queen.queue("q").buffered(schema=schema, partition_key="user") as producer:
        await producer.push({"user": "ann", "amount": "9.50"})
        bad = await producer.push({"user": "bob", "amount": "much"})
        await producer.push({"amount": 1})
        assert (await bad.result()).queue == "q.dead-letters"
    assert await data(queen) == [{"user": "ann", "amount": 9.5}]
    letters = await data(queen, "q.dead-letters")
    assert [(letter["record"], letter["queue"]) for letter in letters] == [
        ({"user": "bob", "amount": "much"}, "q"),
        ({"amount": 1}, "q"),
    ]
    assert "amount" in letters[0]["error"]
    assert (producer.stats.rejected, producer.stats.stored) == (2, 3)


async def test_rejects_where_the_user_says(queen: AsyncQueen) -> None:
    async with queen.queue("q").buffered(schema={"n": "bigint"}, dead_letters="rejects") as producer:
        await producer.push({"n": "x"})
    assert [letter["record"] for letter in await data(queen, "rejects")] == [{"n": "x"}]


async def test_types_and_large_ones(queen: AsyncQueen) -> None:
    typed: Any = queen.queue("q", type=dict)
    async with typed.buffered() as producer:
        with pytest.raises(PayloadInvalid, match="the queue takes dict, not int"):
            await producer.push(1)


async def test_what_is_too_large_fails_alone(start_broker: Any) -> None:
    broker = await start_broker(max_body_bytes=20_000)
    async with AsyncQueen(broker.address) as queen:
        producer = queen.queue("q").buffered(flush_interval="10s", max_concurrency=1)
        small = [await producer.push("x" * 1500) for _ in range(30)]
        large = await producer.push("y" * 30_000)
        with pytest.raises(TooLarge):
            await producer.close()
        assert {(await one.result()).status for one in small} == {"queued"}
        with pytest.raises(TooLarge):
            await large.result()
        assert (producer.stats.stored, producer.stats.failed) == (30, 1)


async def test_what_the_broker_refuses_fails_alone(queen: AsyncQueen) -> None:
    producer = queen.queue("q").buffered(flush_interval="10s", max_concurrency=1)
    pushed = [await producer.push(n, partition="x" * 10_000 if n == 3 else None) for n in range(8)]
    with pytest.raises(InvalidRequest):
        await producer.close()
    with pytest.raises(InvalidRequest):
        await pushed[3].result()
    assert await data(queen) == [0, 1, 2, 4, 5, 6, 7]
    assert (producer.stats.stored, producer.stats.failed, producer.stats.pending) == (7, 1, 0)


# When


async def test_a_free_lane_does_not_wait(queen: AsyncQueen) -> None:
    async with queen.queue("q").buffered(batch_size=1000) as producer:
        pushed = await producer.push(1)
        assert (await pushed.result(timeout=5)).status == "queued"


async def test_an_interval_gathers(queen: AsyncQueen) -> None:
    async with queen.queue("q").buffered(flush_interval="300ms", max_concurrency=1) as producer:
        began = time.monotonic()
        pushed = [await producer.push(n) for n in range(10)]
        await pushed[-1].result()
        assert 0.25 <= time.monotonic() - began < 5
        assert producer.stats.batches == 1


async def test_a_full_batch_does_not_wait_for_the_interval(queen: AsyncQueen) -> None:
    async with queen.queue("q").buffered(batch_size=5, flush_interval="60s", max_concurrency=1) as producer:
        pushed = [await producer.push(n) for n in range(5)]
        await pushed[-1].result(timeout=10)


async def test_flush(queen: AsyncQueen) -> None:
    async with queen.queue("q").buffered(flush_interval="60s") as producer:
        for n in range(5):
            await producer.push(n)
        await producer.flush()
        assert await data(queen) == list(range(5))
        await producer.flush()
        await producer.push(5)
    assert await data(queen) == [5]


async def test_flush_does_not_wait_for_what_comes_later(queen: AsyncQueen) -> None:
    ending = False

    async def go_on() -> None:
        while not ending:
            await producer.push("more")
            await asyncio.sleep(0)

    pressure = Backpressure("block", threshold=100)
    async with queen.queue("q").buffered(batch_size=10, backpressure=pressure) as producer:
        others = asyncio.create_task(go_on())
        await asyncio.sleep(0.05)
        try:
            await producer.flush(timeout=3)
        finally:
            ending = True
            await others


# More than goes


async def test_block_waits(queen: AsyncQueen) -> None:
    events: list[Pressure] = []
    pressure = Backpressure("block", threshold=10, on_change=events.append)
    async with queen.queue("q").buffered(batch_size=5, backpressure=pressure) as producer:
        for n in range(200):
            await producer.push(n)
            assert producer.stats.pending <= 10
    assert await data(queen) == list(range(200))
    assert events[0] == Pressure(True, 10, "block")
    assert [event.on for event in events] == [True, False] * (len(events) // 2)
    assert events[1].pending <= 5
    assert producer.stats.pressures == len(events) // 2
    assert producer.stats.dropped == 0


async def test_error_raises(serve: StartServer) -> None:
    server = await silent(serve)
    async with AsyncQueen(server.address) as queen:
        producer = queen.queue("q").buffered(backpressure=Backpressure("error", threshold=3))
        for n in range(3):
            await producer.push(n)
        with pytest.raises(
            BufferFull, match="3 messages are pending and the threshold is 3; push more slowly"
        ):
            await producer.push(3)
        assert (producer.stats.accepted, producer.stats.dropped) == (3, 0)
        with pytest.raises(BrokerUnreachable):
            await producer.close(timeout=0.1)


@pytest.mark.parametrize("strategy", ["drop_newest", "drop_oldest"])
async def test_dropping(broker: Broker, strategy: Any) -> None:
    events: list[Pressure] = []
    pressure = Backpressure(strategy, threshold=4, on_change=events.append)
    async with AsyncQueen(broker.address) as queen:
        # A full second: everything is pushed before the first batch goes.
        chain = queen.queue("q").buffered(flush_interval="1s", max_concurrency=1, backpressure=pressure)
        async with chain as producer:
            pushed = [await producer.push(n) for n in range(7)]
        kept = [0, 1, 2, 3] if strategy == "drop_newest" else [3, 4, 5, 6]
        for n, one in enumerate(pushed):
            if n in kept:
                assert (await one.result()).status == "queued"
            else:
                with pytest.raises(BufferFull, match="dropped"):
                    await one.result()
        assert await data(queen) == kept
    assert (producer.stats.dropped, producer.stats.stored, producer.stats.pending) == (3, 4, 0)
    assert [event.on for event in events] == [True, False]


# Brokers that are away


async def test_a_broker_that_comes_later(start_broker: Any) -> None:
    port = free_port()
    async with AsyncQueen(f"http://127.0.0.1:{port}", timeout="300ms") as queen:
        producer = queen.queue("q").buffered()
        pushed = [await producer.push(n) for n in range(20)]
        with pytest.raises(BrokerUnreachable, match="20 buffered messages are not stored"):
            await producer.flush(timeout=0.5)
        with pytest.raises(BrokerUnreachable, match="the push was not answered within"):
            await pushed[0].result(timeout=0.1)
        await start_broker(port=port)
        await producer.close(timeout=20)
        assert await data(queen) == list(range(20))


async def test_close_does_not_wait_longer_than_it_says(serve: StartServer) -> None:
    server = await silent(serve)
    async with AsyncQueen(server.address, timeout="60s") as queen:
        producer = queen.queue("q").buffered()
        pushed = await producer.push(1)
        await server.asked.wait()
        began = time.monotonic()
        with pytest.raises(BrokerUnreachable, match="1 buffered messages are not stored"):
            await producer.close(timeout=0.2)
        assert time.monotonic() - began < 10  # a call would take 60
        with pytest.raises(BrokerUnreachable):
            await pushed.result(timeout=1)
        assert (producer.stats.failed, producer.stats.pending) == (1, 0)


async def test_a_push_that_waits_for_room_learns_that_it_is_too_late(serve: StartServer) -> None:
    server = await silent(serve)
    async with AsyncQueen(server.address) as queen:
        producer = queen.queue("q").buffered(backpressure=Backpressure("block", threshold=1))
        await producer.push(1)
        waiting = asyncio.create_task(producer.push(2))
        await asyncio.sleep(0.05)
        with pytest.raises(BrokerUnreachable):
            await producer.close(timeout=0.1)
        with pytest.raises(ClientClosed, match="the producer was closed"):
            await waiting


async def test_close_loses_nothing_that_was_taken(queen: AsyncQueen) -> None:
    """Pushes that wait for room when it closes are stored, or their callers know."""
    producer = queen.queue("q").buffered(batch_size=1, backpressure=Backpressure("block", threshold=1))
    waiting = [asyncio.create_task(producer.push(n)) for n in range(20)]
    await asyncio.sleep(0.01)
    await producer.close()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    taken = [one for one in outcomes if not isinstance(one, BaseException)]
    assert all(isinstance(one, ClientClosed) for one in outcomes if isinstance(one, BaseException))
    for one in taken:
        assert (await one.result(timeout=5)).status == "queued"
    assert len(await data(queen)) == len(taken) == producer.stats.stored


async def test_after_the_end(queen: AsyncQueen) -> None:
    producer = queen.queue("q").buffered()
    await producer.push(1)
    await producer.close()
    await producer.close()
    with pytest.raises(ClientClosed, match="the producer was closed; make a new one"):
        await producer.push(2)


async def test_what_is_wrong_shows_at_once(queen: AsyncQueen) -> None:
    with pytest.raises(ConfigError, match="batch_size is 0"):
        queen.queue("q").buffered(batch_size=0)
    with pytest.raises(ConfigError, match="flush_interval: "):
        queen.queue("q").buffered(flush_interval="soon")
    with pytest.raises(ConfigError, match="this needs a queue"):
        queen.queue().buffered()


# The synchronous client


async def test_the_synchronous_client_is_the_same(in_thread: InThread, queen: AsyncQueen) -> None:
    def work(queen: Queen) -> None:
        with queen.queue("q").buffered(batch_size=20, partition_key="user") as producer:

            def push(user: str) -> None:
                for n in range(100):
                    producer.push({"user": user, "n": n})

            threads = [threading.Thread(target=push, args=(f"u{n}",)) for n in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            last = producer.push({"user": "u0", "n": 100})
            assert last.result(timeout=10).status == "queued"
            producer.flush()
            assert producer.stats.stored == 401
        with pytest.raises(ClientClosed):
            producer.push({"user": "u0"})

    await in_thread(work)
    messages = await queen.queue("q").batch(10_000).partitions(100).pop()
    for user in range(4):
        found = [m.data["n"] for m in messages if m.partition == f"u{user}"]
        assert found == list(range(101 if user == 0 else 100))


async def test_threads_that_wait_for_room(in_thread: InThread, queen: AsyncQueen) -> None:
    def work(queen: Queen) -> int:
        producer = queen.queue("q").buffered(batch_size=1, backpressure=Backpressure("block", threshold=2))
        taken: list[int] = []

        def push(first: int) -> None:
            for n in range(first, first + 25):
                try:
                    producer.push(n)
                except ClientClosed:
                    return
                taken.append(n)

        threads = [threading.Thread(target=push, args=(first,)) for first in (0, 100, 200)]
        for thread in threads:
            thread.start()
        while producer.stats.stored < 10:
            time.sleep(0.005)
        producer.close()
        for thread in threads:
            thread.join()
        assert producer.stats.pending == 0
        return len(taken)

    count = await in_thread(work)
    assert len(await data(queen)) == count
