"""Queues and streams of a real broker, read and written as an engine does it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from queenstream import AsyncQueen
from queenstream.broker.app import Broker
from queenstream.connectors import Context, Reader, Writer, reader_for, writer_for
from queenstream.connectors.broker.queues import QueueReader
from queenstream.connectors.broker.streams import StreamReader
from queenstream.core.windows import from_us
from queenstream.errors import BrokerUnreachable, ConfigError
from queenstream.pipeline.endpoints import Queue, Stream
from tests.conftest import Clock, StartBroker
from tests.processes import free_port


@pytest.fixture
async def queen(broker: Broker) -> AsyncIterator[AsyncQueen]:
    async with AsyncQueen(broker.address) as client:
        yield client


class Readers:
    """Opens readers, and closes those that are left."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._opened: list[Reader] = []

    async def open(
        self,
        source: Queue | Stream,
        positions: Mapping[str, Any] | None = None,
        *,
        exclusive: bool = False,
        rewound: bool = False,
    ) -> Reader:
        reader = reader_for(source, Context("p", source.slug, self.url, exclusive, rewound))
        await reader.open(positions or {})
        self._opened.append(reader)
        return reader

    async def kill(self, reader: Reader) -> None:
        """It is gone, as its process would be: nothing is given back, nothing renewed."""
        assert isinstance(reader, QueueReader | StreamReader)
        self._opened.remove(reader)
        await reader._leases.close()
        await reader._queen.close()

    async def close(self) -> None:
        for reader in self._opened:
            await reader.close()


@pytest.fixture
async def readers(broker: Broker) -> AsyncIterator[Readers]:
    made = Readers(broker.address)
    yield made
    await made.close()


async def numbers(reader: Reader, count: int) -> list[int]:
    """The ``n`` of the next ``count`` records; fails if they do not come."""
    found: list[int] = []
    while len(found) < count:
        batch = await reader.read(10_000, 10.0)
        assert batch is not None
        assert not batch.empty, f"only {found} came"
        found += [record["n"] for record in batch.records]
    return found


async def nothing(reader: Reader) -> None:
    batch = await reader.read(10_000, 0.0)
    assert batch is not None
    assert batch.records == []


async def push(queen: AsyncQueen, queue: str, partition: str, *values: int) -> None:
    await queen.queue(queue).partition(partition).push([{"n": value} for value in values])


async def lag(queen: AsyncQueen, queue: str = "in", group: str = "p") -> int:
    return (await queen.admin.group(group)).queues[queue].lag


# Reading queues


async def test_messages_become_records_with_their_times(queen: AsyncQueen, readers: Readers) -> None:
    await push(queen, "in", "ann", 1, 2)
    reader = await readers.open(Queue("in"))
    batch = await reader.read(100, 5.0)
    assert batch is not None
    assert batch.records == [{"n": 1}, {"n": 2}]
    assert batch.times is not None
    for time in batch.times:
        assert abs((from_us(time) - datetime.now(UTC)).total_seconds()) < 60
    [(partition, (id, at))] = reader.changes().items()
    assert (partition, at) == ("ann", batch.times[-1])
    assert isinstance(id, int)
    assert reader.changes() == {}


async def test_an_envelope_has_the_whole_message(queen: AsyncQueen, readers: Readers) -> None:
    await queen.queue("in").partition("ann").push({"n": "1"}, transaction_id="t1")
    reader = await readers.open(Queue("in", envelope=True, schema="n int"))
    batch = await reader.read(1, 5.0)
    assert batch is not None
    [record] = batch.records
    assert record["data"] == {"n": 1}
    assert (record["queue"], record["partition"], record["transaction_id"]) == ("in", "ann", "t1")
    assert isinstance(record["created_at"], datetime)
    columns = Queue("in", envelope=True, schema="n int").columns
    assert columns is not None
    assert set(record) == set(columns.names)


async def test_payloads_that_do_not_fit_are_failures_and_are_passed(
    queen: AsyncQueen, readers: Readers
) -> None:
    await queen.queue("in").push([{"n": 1}, {"n": "x"}, {"n": 3}])
    reader = await readers.open(Queue("in", schema="n int"))
    batch = await reader.read(100, 5.0)
    assert batch is not None
    assert (batch.records, len(batch.times or [])) == ([{"n": 1}, {"n": 3}], 2)
    [(payload, error)] = batch.failures
    assert payload == {"n": "x"}
    assert "n must be a whole number" in str(error)
    reader.changes()
    await reader.commit()
    assert await lag(queen) == 0


async def test_a_commit_acknowledges_what_changes_covered(queen: AsyncQueen, readers: Readers) -> None:
    await push(queen, "in", "ann", 1, 2)
    reader = await readers.open(Queue("in"))
    await numbers(reader, 2)
    reader.changes()
    await nothing(reader)
    assert not reader.drained()  # there may be more of ann, once this is committed
    await push(queen, "in", "bob", 3)
    await numbers(reader, 1)  # the next batch is under way while the first one is committed
    await reader.commit()
    assert await lag(queen) == 1
    reader.changes()
    await reader.commit()
    assert await lag(queen) == 0
    await nothing(reader)
    assert reader.drained()


async def test_closing_gives_back_what_was_not_committed(queen: AsyncQueen, readers: Readers) -> None:
    await push(queen, "in", "ann", 1, 2)
    first = await readers.open(Queue("in"))
    await numbers(first, 2)
    await first.close()
    assert await numbers(await readers.open(Queue("in")), 2) == [1, 2]


async def test_after_a_kill_what_was_stored_is_passed_over(queen: AsyncQueen, readers: Readers) -> None:
    """Killed after the positions were stored and before the acknowledgement; and with more in hand."""
    await push(queen, "in", "ann", 1, 2)
    await push(queen, "in", "bob", 3)
    reader = await readers.open(Queue("in"), exclusive=True)
    await numbers(reader, 3)
    positions = reader.changes()
    await push(queen, "in", "new", 4)
    await numbers(reader, 1)
    await readers.kill(reader)
    await push(queen, "in", "ann", 5)

    reader = await readers.open(Queue("in"), positions, exclusive=True)
    assert sorted(await numbers(reader, 2)) == [4, 5]  # at once, though a lease lasts five minutes
    reader.changes()
    await reader.commit()
    assert await lag(queen) == 0
    [message] = await queen.queue("in").group("other").partition("new").pop()
    assert message.retry_count == 0


async def test_killed_again_and_again_nothing_goes_to_the_dead_letters(
    queen: AsyncQueen, readers: Readers
) -> None:
    await queen.queue("in").config(retry_limit=1).create()
    await push(queen, "in", "ann", 1)
    for _ in range(4):
        reader = await readers.open(Queue("in"), exclusive=True)
        assert await numbers(reader, 1) == [1]
        await readers.kill(reader)
    assert await queen.dlq("in").list() == []


async def test_another_run_without_a_checkpoint_keeps_its_leases(queen: AsyncQueen, readers: Readers) -> None:
    await push(queen, "in", "ann", 1)
    first = await readers.open(Queue("in"))
    await numbers(first, 1)
    await nothing(await readers.open(Queue("in")))


async def test_a_group_that_was_deleted_is_passed_up_to_the_positions(
    queen: AsyncQueen, readers: Readers
) -> None:
    await push(queen, "in", "ann", 1, 2)
    reader = await readers.open(Queue("in", start="latest"))
    await nothing(reader)
    await push(queen, "in", "ann", 3)
    await numbers(reader, 1)
    positions = reader.changes()
    await reader.commit()
    await queen.admin.delete_group("p")
    await push(queen, "in", "ann", 4)
    assert await numbers(await readers.open(Queue("in", start="latest"), positions), 1) == [4]


async def test_without_positions_a_known_group_goes_on(queen: AsyncQueen, readers: Readers) -> None:
    await push(queen, "in", "ann", 1)
    reader = await readers.open(Queue("in"))
    await numbers(reader, 1)
    reader.changes()
    await reader.commit()
    await push(queen, "in", "ann", 2)
    assert await numbers(await readers.open(Queue("in"), exclusive=True), 1) == [2]


async def test_going_back(queen: AsyncQueen, readers: Readers) -> None:
    """To positions in the past: also in partitions that were not read then."""
    await push(queen, "in", "ann", 1, 2)
    reader = await readers.open(Queue("in"))
    await numbers(reader, 2)
    positions = reader.changes()
    await reader.commit()
    await push(queen, "in", "ann", 3)
    await push(queen, "in", "bob", 4, 5)
    await numbers(reader, 3)
    reader.changes()
    await reader.commit()
    await readers.kill(reader)

    reader = await readers.open(Queue("in"), positions, exclusive=True, rewound=True)
    found = await numbers(reader, 3)
    assert sorted(found) == [3, 4, 5]
    assert found.index(4) < found.index(5)
    await nothing(reader)


async def test_another_database_is_not_taken_for_the_old_one(queen: AsyncQueen, readers: Readers) -> None:
    await push(queen, "in", "ann", 1)
    reader = await readers.open(Queue("in"), {"ann": [1 << 60, 1_000_000]})
    with pytest.raises(
        ConfigError, match="this is another broker's database; start afresh with another checkpoint"
    ):
        await reader.read(1, 5.0)


async def test_where_a_new_group_starts(queen: AsyncQueen, readers: Readers, clock: Clock) -> None:
    await push(queen, "in", "ann", 1)
    clock.turn(60)
    half = clock()
    clock.turn(60)
    await push(queen, "in", "ann", 2)
    assert await numbers(await readers.open(Queue("in", group="a")), 2) == [1, 2]
    assert await numbers(await readers.open(Queue("in", group="b", start=half)), 1) == [2]
    assert await numbers(await readers.open(Queue("in", group="c", start=half.isoformat())), 1) == [2]
    latest = await readers.open(Queue("in", group="d", start="latest"))
    await nothing(latest)
    await push(queen, "in", "bob", 3)
    assert await numbers(latest, 1) == [3]


async def test_one_partition_alone(queen: AsyncQueen, readers: Readers) -> None:
    await push(queen, "in", "ann", 1)
    await push(queen, "in", "bob", 2)
    reader = await readers.open(Queue("in", partition="bob"))
    assert await numbers(reader, 1) == [2]
    await nothing(reader)


async def test_a_batch_takes_from_many_partitions(queen: AsyncQueen, readers: Readers) -> None:
    async with queen.queue("in").buffered(partition_key="key") as producer:
        for n in range(5000):
            await producer.push({"n": n, "key": f"k{n % 500}"})
    reader = await readers.open(Queue("in"))
    assert reader.lag() is None  # the group is new
    found = await numbers(reader, 5000)
    assert sorted(found) == list(range(5000))
    for key in range(500):
        mine = [n for n in found if n % 500 == key]
        assert mine == sorted(mine)
    assert len(reader.changes()) == 500
    await reader.commit()
    assert await lag(queen) == 0
    await push(queen, "in", "k0", 7)
    assert (await readers.open(Queue("in"))).lag() == 1


async def test_a_lease_is_held_as_long_as_it_takes(queen: AsyncQueen, readers: Readers) -> None:
    await queen.queue("in").config(lease_time=1).create()
    await push(queen, "in", "ann", 1)
    reader = await readers.open(Queue("in"))
    await numbers(reader, 1)
    assert await queen.queue("in").group("p").wait(2.5).pop() == []  # nobody else gets it
    reader.changes()
    await reader.commit()
    assert await lag(queen) == 0


async def test_a_broker_that_is_away_is_waited_for(start_broker: StartBroker) -> None:
    port = free_port()
    broker = await start_broker(port=port)
    async with AsyncQueen(broker.address) as queen:
        await push(queen, "in", "ann", 1)
        readers = Readers(broker.address)
        reader = await readers.open(Queue("in"))
        assert await numbers(reader, 1) == [1]
        reader.changes()
        reader._queen._calls.timeout = 0.2  # type: ignore[attr-defined]  # it need not try for long here
        await broker.stop()
        await reader.commit()  # not now
        await nothing(reader)
        await start_broker(port=port)
        await push(queen, "in", "bob", 2)
        assert await numbers(reader, 1) == [2]
        reader.changes()
        await reader.commit()
        assert await lag(queen) == 0
        await readers.close()


async def test_a_wrong_address_is_said_at_once() -> None:
    readers = Readers(f"http://127.0.0.1:{free_port()}")
    with pytest.raises(BrokerUnreachable, match="no broker answered"):
        await readers.open(Queue("in"))


# Writing queues


async def writing(queen: AsyncQueen, url: str, sink: Queue) -> Writer:
    writer = writer_for(sink, Context("p", "out", url=url))
    await writer.open()
    return writer


async def stored(queen: AsyncQueen, queue: str = "out") -> dict[str, list[Any]]:
    """What a queue holds, by partition."""
    found: dict[str, list[Any]] = {}
    while messages := await queen.queue(queue).group("check").batch(1000).partitions(100).pop():
        for message in messages:
            found.setdefault(message.partition, []).append(message.data)
        await messages.ack()
    return found


async def test_a_repeat_of_an_epoch_stores_nothing(queen: AsyncQueen, broker: Broker) -> None:
    rows = [{"n": n, "user": f"u{n % 3}"} for n in range(30)]
    for _ in range(2):
        writer = await writing(queen, broker.address, Queue("out", partition_by="user"))
        assert await writer.write("g-0000000001", rows) == []
        assert await writer.write("g-0000000002", rows[:3]) == []
        await writer.close()
    found = await stored(queen)
    assert found == {f"u{k}": [row for row in rows + rows[:3] if row["user"] == f"u{k}"] for k in range(3)}


async def test_rows_of_different_epochs_generations_and_steps_are_all_stored(
    queen: AsyncQueen, broker: Broker
) -> None:
    for pipeline, step, epoch in [
        ("p", "a", "g-1"),
        ("p", "a", "g-2"),
        ("p", "a", "h-1"),
        ("p", "b", "g-1"),
        ("q", "a", "g-1"),
    ]:
        writer = writer_for(Queue("out"), Context(pipeline, step, url=broker.address))
        await writer.open()
        await writer.write(epoch, [1])
        await writer.close()
    assert await stored(queen) == {"Default": [1] * 5}


async def test_rows_the_broker_refuses_are_named_and_the_others_stored(
    queen: AsyncQueen, broker: Broker
) -> None:
    writer = await writing(queen, broker.address, Queue("out", partition_by="user"))
    rows: list[Any] = [{"user": f"u{n}"} for n in range(20)]
    rows[3] = {"user": None}
    rows[7] = {"user": "x" * 300}
    rows[11] = {"user": "u", "what": object()}
    rows[12] = {"user": "x" * 301}
    refused = dict(await writer.write("g-1", rows))
    await writer.close()
    assert list(refused) == [3, 7, 11, 12]
    assert "the row has no user, which names its partition" in str(refused[3])
    assert "cannot be written as JSON" in str(refused[11])
    assert sum(map(len, (await stored(queen)).values())) == 16


async def test_times_and_a_schema_are_written_as_json(queen: AsyncQueen, broker: Broker) -> None:
    writer = await writing(queen, broker.address, Queue("out", partition="one", schema="n int, at timestamp"))
    refused = await writer.write(
        "g-1", [{"n": "1", "at": datetime(2026, 1, 31, tzinfo=UTC), "x": 1}, {"n": "x"}]
    )
    await writer.close()
    assert [index for index, _ in refused] == [1]
    assert await stored(queen) == {"one": [{"n": 1, "at": "2026-01-31T00:00:00Z"}]}


async def test_a_large_epoch_goes_in_several_requests_and_keeps_its_order(
    queen: AsyncQueen, broker: Broker
) -> None:
    writer = await writing(queen, broker.address, Queue("out"))
    rows = [{"n": n, "text": "x" * 4000} for n in range(2500)]  # more bytes than one request takes
    assert await writer.write("g-1", rows) == []
    await writer.close()
    assert [row["n"] for row in (await stored(queen))["Default"]] == list(range(2500))


async def test_a_writer_waits_for_its_broker(start_broker: StartBroker) -> None:
    port = free_port()
    broker = await start_broker(port=port)
    async with AsyncQueen(broker.address) as queen:
        writer = await writing(queen, broker.address, Queue("out"))
        writer._queen._calls.timeout = 0.2  # type: ignore[attr-defined]
        await broker.stop()
        pushing = asyncio.get_running_loop().create_task(writer.write("g-1", [1, 2]))
        done, _ = await asyncio.wait({pushing}, timeout=0.5)
        assert not done
        await start_broker(port=port)
        assert await pushing == []
        await writer.close()
        assert await stored(queen) == {"Default": [1, 2]}


async def test_a_writer_waits_while_the_queue_is_full(queen: AsyncQueen, broker: Broker) -> None:
    await queen.queue("out").config(max_size=1).create()
    await queen.queue("out").push(1)
    writer = await writing(queen, broker.address, Queue("out"))
    pushing = asyncio.get_running_loop().create_task(writer.write("g-1", [2]))
    done, _ = await asyncio.wait({pushing}, timeout=0.3)
    assert not done
    await (await queen.queue("out").pop()).ack()
    assert await pushing == []
    await writer.close()


# Streams


async def test_windows_become_records(queen: AsyncQueen, readers: Readers, clock: Clock) -> None:
    await push(queen, "in", "ann", 1, 2)
    await push(queen, "in", "bob", 3)
    await queen.stream("s").sources(["in"]).partitioned().tumbling_time(60).grace_period(0).define()
    clock.turn(120)
    reader = await readers.open(Stream("s"))
    records: dict[str, Any] = {}
    while len(records) < 2:
        batch = await reader.read(10, 10.0)
        assert batch is not None
        assert batch.times is not None
        for record, time in zip(batch.records, batch.times, strict=True):
            assert from_us(time) == record["window_start"]
            records[record["key"]] = record
    assert [message["data"] for message in records["ann"]["messages"]] == [{"n": 1}, {"n": 2}]
    assert set(records["bob"]) == set(Stream("s").columns.names)  # type: ignore[union-attr]
    assert set(reader.changes()) == {"ann", "bob"}
    await reader.commit()
    [group] = await queen.admin.stream_groups("s")
    assert group.lag == 0


@pytest.mark.parametrize("kind", ["count", "sliding"])
async def test_a_window_that_comes_again_is_passed_over(
    queen: AsyncQueen, readers: Readers, clock: Clock, kind: str
) -> None:
    """Also count windows whose messages were stored in the same moment."""
    await push(queen, "in", "ann", *range(6))
    stream = queen.stream("s").sources(["in"]).grace_period(0).max_in_flight(3).lease_timeout(5)
    await (stream.count(2) if kind == "count" else stream.sliding_time(60, 20)).define()
    clock.turn(180)

    async def windows(reader: Reader, count: int) -> list[Any]:
        found: list[Any] = []
        while len(found) < count:
            batch = await reader.read(count - len(found), 10.0)
            assert batch is not None
            found += batch.records
        return found

    reader = await readers.open(Stream("s"))
    first = await windows(reader, 2)
    positions = reader.changes()
    last = await windows(reader, 1)
    await readers.kill(reader)
    clock.turn(10)  # its leases end
    reader = await readers.open(Stream("s"), positions)
    assert await windows(reader, 1) == last
    reader.changes()
    await reader.commit()
    [group] = await queen.admin.stream_groups("s")
    assert group.lag == 0
    await readers.kill(reader)

    reader = await readers.open(Stream("s"), {}, rewound=True)
    assert await windows(reader, 3) == first + last
