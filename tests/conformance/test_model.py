"""The broker on a real PostgreSQL against the model, driven by the same random operations.

``QUEENSTREAM_LONG=1`` runs it for longer. Hypothesis prints the failing example and how to repeat it.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import uuid
from collections.abc import Coroutine, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from queenstream import config
from queenstream.broker.app import Broker
from queenstream.broker.messaging.catalog import Subscription
from queenstream.broker.messaging.pop import Target
from queenstream.broker.schemas import messages as wire
from queenstream.broker.storage import sql
from tests.conformance.model import Ack, Cursor, DeadLetter, Message, Options, Queue, ready

T = TypeVar("T")

LONG = bool(os.environ.get("QUEENSTREAM_LONG"))
EXAMPLES, STEPS = (1500, 60) if LONG else (120, 50)
LEAST_STEPS = 10_000 if LONG else 1_500

PARTITIONS = ("a", "b", "c")
GROUPS = ("one", "two", wire.QUEUE_MODE)
STATUSES = ("completed", "completed", "completed", "completed", "failed", "dlq", "retry", "none")
_numbers = itertools.count(1)


def fulfil(future: asyncio.Future[Any], outcome: Any) -> None:
    if isinstance(outcome, BaseException):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


class World:
    """A broker with a clock that only the test turns, and an event loop to run it in."""

    def __init__(self, url: str) -> None:
        self.runner = asyncio.Runner()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.broker = Broker(config.load({"port": 0}, {}, None), url, clock=lambda: self.now)
        self.steps = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(work)

    def fetch(self, query: str, *args: Any) -> list[Any]:
        return self.run(self.broker.database.hot(query, *args))


class Taken:
    """A lease that was handed out, whether or not it still holds."""

    def __init__(self, group: str, lease: str, messages: list[tuple[str, str, int]]) -> None:
        self.group = group
        self.lease = lease
        self.messages = messages  # queue, partition, index


class Machine(RuleBasedStateMachine):
    """Random pushes, pops, acks, seeks and turns of the clock, on two queues of one namespace."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self.world = world
        self.namespace = f"space{next(_numbers)}"
        self.queues: dict[str, Queue] = {}
        self.taken: list[Taken] = []
        self.seen: dict[tuple[str, str, str], list[int]] = {}  # every delivery, in its order
        self.skipped: set[tuple[str, str, str, int]] = set()  # by a subscription or a seek

    @property
    def now(self) -> datetime:
        return self.world.now

    # The queues

    @initialize(
        limits=st.tuples(st.integers(0, 3), st.integers(0, 3)),
        delays=st.tuples(st.sampled_from([0, 1000]), st.sampled_from([0, 1000, 5000])),
    )
    def configure(self, limits: tuple[int, int], delays: tuple[int, int]) -> None:
        plain = Options(30, limits[0], delays[0], 0, 5)
        delayed = Options(20, limits[1], delays[1], 10, 1)
        for kind, options in (("plain", plain), ("delayed", delayed)):
            name = f"{kind}-{self.namespace}"
            self.queues[name] = Queue(name, options)
            self.queues[name].partition("Default")
            self.world.run(self._configure(name, options))

    async def _configure(self, name: str, options: Options) -> None:
        values = wire.Options(
            lease_time=options.lease_seconds, retry_limit=options.retry_limit,
            retry_delay=options.retry_delay_ms, delayed_processing=options.delay_seconds,
            priority=options.priority, ttl=0,
        )  # fmt: skip
        broker = self.world.broker
        await broker.database.admin("configure", name, self.namespace, None, *msgspec.structs.astuple(values))
        await broker.directory.ensure(name, ["Default"])

    def queue(self, kind: int) -> Queue:
        return list(self.queues.values())[kind]

    # Push

    @rule(
        kind=st.integers(0, 1),
        items=st.lists(
            st.tuples(st.sampled_from(PARTITIONS), st.none() | st.integers(0, 40)), min_size=1, max_size=8
        ),
    )
    def push(self, kind: int, items: list[tuple[str, int | None]]) -> None:
        """New and repeated transaction ids, over several partitions."""
        self.world.steps += 1
        queue = self.queue(kind)
        sent = [
            wire.PushItem(
                queue.name,
                msgspec.Raw(msgspec.json.encode(f"{partition} {number}")),
                partition,
                None if number is None else f"t{number}",
            )
            for partition, number in items
        ]
        results = self.world.run(self.world.broker.pusher.push(sent, None))
        assert [r.index for r in results] == list(range(len(items)))
        for item, result in zip(sent, results, strict=True):
            partition = queue.partition(item.partition)
            partition.id = partition.id or result.partition_id
            assert result.partition_id == partition.id
            assert item.transaction_id in (None, result.transaction_id)
            first = partition.by_transaction.get(result.transaction_id)
            assert result.status == ("queued" if first is None else "duplicate")
            if first is None:
                data = bytes(item.payload).decode()
                queue.push(partition, Message(int(result.message_id), result.transaction_id, self.now, data))
            else:
                assert int(result.message_id) == partition.messages[first].id

    # Pop

    @rule(
        kinds=st.sampled_from([(0,), (0,), (1,), (1,), (0, 1)]),
        group=st.sampled_from(GROUPS),
        mode=st.sampled_from(["all", "all", "new"]),
        batch=st.sampled_from([1, 2, 3, 10]),
        partitions=st.sampled_from([1, 1, 2, 4]),
        auto_ack=st.sampled_from([False, False, False, True]),
        partition=st.sampled_from([None, None, None, *PARTITIONS]),
        together=st.sampled_from([1, 1, 2]),
    )
    def pop(
        self, kinds: tuple[int, ...], group: str, mode: str, batch: int, partitions: int, auto_ack: bool,
        partition: str | None, together: int,
    ) -> None:  # fmt: skip
        """Of one queue, of one partition, or of the whole namespace; some of them at the same time."""
        self.world.steps += 1
        queues = [self.queue(kind) for kind in kinds]
        if len(queues) > 1:
            target = Target(group, namespace=self.namespace)
            partition = None
        else:
            target = Target(group, queues[0].name, partition)
        for queue in queues:
            self.subscribe(queue, group, mode)
        answers = self.world.run(
            self._pop(target, mode, batch=batch, partitions=partitions, auto_ack=auto_ack, together=together)
        )
        for popped in answers:
            self.check_pop(queues, group, partition, popped, batch, partitions, auto_ack)
        self.resolve(queues, group)

    async def _pop(
        self, target: Target, mode: str, *, batch: int, partitions: int, auto_ack: bool, together: int
    ) -> list[wire.Popped | None]:
        answers: list[asyncio.Future[wire.Popped | None]] = []
        for _ in range(together):
            answer: asyncio.Future[wire.Popped | None] = asyncio.get_running_loop().create_future()
            answers.append(answer)
            self.world.broker.popper.pop(
                target,
                Subscription(mode),
                batch=batch,
                partitions=partitions,
                auto_ack=auto_ack,
                wait_seconds=0,
                answer=lambda popped, _, answer=answer: fulfil(answer, popped),  # type: ignore[misc]
            )
        return [await answer for answer in answers]

    async def _ack(self, acks: list[wire.Ack]) -> list[wire.AckResult]:
        answer: asyncio.Future[list[wire.AckResult]] = asyncio.get_running_loop().create_future()
        self.world.broker.acker.submit(acks, None, lambda results: fulfil(answer, results))
        return await answer

    def subscribe(self, queue: Queue, group: str, mode: str) -> None:
        if group not in queue.groups and mode == "new":
            for name, partition in queue.partitions.items():
                places = range(len(partition.messages))
                self.skipped.update((queue.name, group, name, index) for index in places)
        queue.subscribe(group, mode)

    def check_pop(
        self, queues: Sequence[Queue], group: str, partition: str | None, popped: wire.Popped | None,
        batch: int, partitions: int, auto_ack: bool,
    ) -> None:  # fmt: skip
        """The broker chose among the ready partitions; the rest must be as the model says."""
        if popped is None:
            assert not ready(queues, group, partition, self.now), (
                "a pop gave nothing though there is something"
            )
            if partition is None:
                self.touch_all(queues, group)
            return
        assert popped.success
        assert popped.consumer_group == group
        assert (popped.lease_id is None) == auto_ack
        by_name = {queue.name: queue for queue in queues}
        room = batch
        claims = [
            (by_name[queue], name, list(messages))
            for (queue, name), messages in itertools.groupby(
                popped.messages, lambda m: (m.queue, m.partition)
            )
        ]
        assert 1 <= len(claims) <= partitions
        assert len(claims) == popped.partitions_claimed
        assert len({(queue.name, name) for queue, name, _ in claims}) == len(claims)
        assert (popped.queue, popped.partition) == (claims[0][0].name, claims[0][1])
        out: list[tuple[str, str, int]] = []
        for queue, name, messages in claims:
            assert partition in (None, name)
            above = [q for q in queues if q.options.priority > queue.options.priority]
            assert not ready(above, group, partition, self.now), "the higher priority comes first"
            cursor = queue.groups[group][name]
            assert queue.deliverable(cursor, self.now), "leased, delayed or empty"
            queue.touch(cursor, self.now)
            expected = queue.expected(cursor, room, self.now, auto_ack)
            self.check_messages(queue, cursor, expected, messages, popped)
            queue.take(cursor, expected, popped.lease_id, self.now)
            room -= len(expected)
            out += [(queue.name, name, index) for index in expected]
        if room > 0 and len(claims) < partitions:
            assert not ready(queues, group, partition, self.now), "a ready partition was left out"
        if popped.lease_id is not None:
            self.taken.append(Taken(group, popped.lease_id, out))

    def check_messages(
        self,
        queue: Queue,
        cursor: Cursor,
        expected: list[int],
        messages: list[wire.Message],
        popped: wire.Popped,
    ) -> None:
        stored = cursor.partition.messages
        got = [
            (int(m.id), m.transaction_id, m.created_at, bytes(m.data).decode(), m.retry_count)
            for m in messages
        ]
        assert got == [
            (
                stored[i].id,
                stored[i].transaction,
                stored[i].created_at,
                stored[i].data,
                cursor.tries.get(i, 0),
            )
            for i in expected
        ]
        for message in messages:
            assert message.partition_id == cursor.partition.id
            assert message.lease_id == popped.lease_id
            assert message.consumer_group == cursor.group
        key = (queue.name, cursor.group, cursor.partition.name)
        self.seen.setdefault(key, []).extend(expected)

    def touch_all(self, queues: Sequence[Queue], group: str) -> None:
        """A pop that found nothing has looked at every partition."""
        for queue in queues:
            for cursor in queue.groups[group].values():
                queue.touch(cursor, self.now)

    def resolve(self, queues: Sequence[Queue], group: str) -> None:
        """Leases that ran out and leave nothing: ask the database whether the pop came by."""
        for queue in queues:
            for cursor in queue.groups[group].values():
                if queue.ambiguous(cursor, self.now) and cursor.lease is not None:
                    found = self.world.fetch(
                        "select 1 from queen.cursors where lease_id = $1 and partition_id = $2",
                        uuid.UUID(cursor.lease.id),
                        int(cursor.partition.id),
                    )
                    if not found:
                        queue.touch(cursor, self.now)

    # Ack

    @precondition(lambda self: self.taken)
    @rule(
        recent=st.lists(st.integers(0, 5), min_size=1, max_size=2, unique=True),
        statuses=st.lists(st.sampled_from(STATUSES), min_size=1, max_size=8),
        order=st.permutations(range(6)),
        named=st.sampled_from([True, True, True, False]),
        repeats=st.integers(0, 2),
    )
    def ack_some(
        self, recent: list[int], statuses: list[str], order: list[int], named: bool, repeats: int
    ) -> None:
        """Mixed statuses in any order, for leases that hold and for such that do not, some of them twice."""
        acks: list[Ack] = []
        for which in recent:
            taken = self.taken[-1 - which % len(self.taken)]
            for at, (queue, partition, index) in enumerate(taken.messages):
                status = statuses[at % len(statuses)]
                if status != "none":
                    lease = taken.lease if named else None
                    error = f"error {at}" if at % 2 else None
                    acks.append(Ack(queue, partition, taken.group, index, status, lease, error))
        acks = [ack for _, ack in sorted(enumerate(acks), key=lambda pair: (order[pair[0] % 6], pair[0]))]
        self.check_ack([*acks, *acks[:repeats]])

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 3))
    def complete(self, which: int) -> None:
        """The common case: all of a lease."""
        taken = self.taken[-1 - which % len(self.taken)]
        self.check_ack([Ack(q, p, taken.group, i, "completed", taken.lease) for q, p, i in taken.messages])

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 3), place=st.integers(0, 3), status=st.sampled_from(STATUSES[3:-1]))
    def ack_one(self, which: int, place: int, status: str) -> None:
        taken = self.taken[-1 - which % len(self.taken)]
        queue, partition, index = taken.messages[place % len(taken.messages)]
        self.check_ack([Ack(queue, partition, taken.group, index, status, taken.lease)])

    def check_ack(self, acks: list[Ack]) -> None:
        if not acks:
            return
        self.world.steps += 1
        groups: dict[tuple[str, str, str], list[int]] = {}
        sent: list[wire.Ack] = []
        for at, ack in enumerate(acks):
            partition = self.queues[ack.queue].partitions[ack.partition]
            transaction = partition.messages[ack.index].transaction
            status: Any = ack.status
            sent.append(wire.Ack(transaction, partition.id, status, ack.error, ack.group, ack.lease))
            groups.setdefault((ack.queue, ack.partition, ack.group), []).append(at)
        results = self.world.run(self._ack(sent))
        for (name, partition_name, group), places in groups.items():
            queue = self.queues[name]
            cursor = queue.groups[group][partition_name]
            verdicts = queue.ack(cursor, [acks[at] for at in places], self.now)
            for at, verdict in zip(places, verdicts, strict=True):
                result = results[at]
                got = (result.success, result.dlq, result.redelivered, result.lease_released)
                assert got == (verdict.success, verdict.dead, verdict.again, verdict.released), (
                    acks[at],
                    result,
                )
                assert result.success == (result.error is None)
                assert (result.index, result.queue_name, result.partition_name) == (at, name, partition_name)

    # Leases and time

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 4), seconds=st.sampled_from([1, 15, 60]))
    def extend(self, which: int, seconds: int) -> None:
        self.world.steps += 1
        lease = self.taken[-1 - which % len(self.taken)].lease
        expected = [queue.extend(lease, seconds, self.now) for queue in self.queues.values()]
        rows = self.world.fetch(
            sql.bind("select queen.extend($1, $2, $3) as until"), uuid.UUID(lease), seconds, self.now
        )
        until = self.now + timedelta(seconds=seconds) if any(expected) else None
        assert rows[0]["until"] == until

    @precondition(lambda self: self.taken)
    @rule(which=st.integers(0, 4))
    def give_back(self, which: int) -> None:
        """A client that went away before its answer was written."""
        self.world.steps += 1
        lease = self.taken[-1 - which % len(self.taken)].lease
        for queue in self.queues.values():
            queue.give_back(lease)
        self.world.fetch(sql.bind("select queen.release($1, $2)"), [uuid.UUID(lease)], self.now)

    @rule(seconds=st.sampled_from([0.5, 1, 4, 10, 16, 31]))
    def turn(self, seconds: float) -> None:
        """Leases run out, delays and retries become due."""
        self.world.steps += 1
        self.world.now += timedelta(seconds=seconds)

    # Seek

    @rule(
        kind=st.integers(0, 1),
        group=st.sampled_from(GROUPS),
        partition=st.none() | st.sampled_from(PARTITIONS),
        back_seconds=st.sampled_from([None, None, 0, 1, 10, 40]),
    )
    def seek(self, kind: int, group: str, partition: str | None, back_seconds: int | None) -> None:
        """To the end, or to a time."""
        queue = self.queue(kind)
        if group not in queue.groups or not (partition is None or partition in queue.partitions):
            return
        self.world.steps += 1
        at = None if back_seconds is None else self.now - timedelta(seconds=back_seconds)
        before = {name: cursor.place for name, cursor in queue.groups[group].items()}
        moved = queue.seek(group, partition, at)
        for name, cursor in queue.groups[group].items():
            passed = range(before[name], cursor.place)
            self.skipped.update((queue.name, group, name, index) for index in passed)
        number = None if partition is None else int(queue.partitions[partition].id)
        rows = self.world.fetch(
            sql.bind(
                "select queen.seek(g.id, $3, $4, $5) as moved from queen.groups g "
                "join queen.queues q on q.id = g.queue_id where q.name = $1 and g.name = $2"
            ),
            queue.name, group, number, at, self.now,
        )  # fmt: skip
        assert rows[0]["moved"] == moved

    # The end

    def teardown(self) -> None:
        if self.queues:
            self.drain()
            self.check_dead_letters()
            self.check_seen()

    def drain(self) -> None:
        """Let every lease run out, and complete all that is left, for every group."""
        for _ in range(6):  # each failed try costs at most one round
            self.world.now += timedelta(seconds=120)
            for kind, queue in enumerate(self.queues.values()):
                for group in queue.groups:
                    self.drain_group(kind, queue, group)
        for queue in self.queues.values():
            for cursor in queue.cursors():
                assert cursor.place == len(cursor.partition.messages) or not queue.visible(cursor, self.now)

    def drain_group(self, kind: int, queue: Queue, group: str) -> None:
        taken = len(self.taken)
        while True:
            self.pop((kind,), group, "all", 50, 4, False, None, 1)
            if len(self.taken) == taken:
                return
            taken = len(self.taken)
            self.complete(0)

    def check_dead_letters(self) -> None:
        rows = self.world.fetch(
            "select q.name, p.name, d.group_name, d.transaction_id, d.tries, d.error, d.cause "
            "from queen.dead_letters d join queen.queues q on q.id = d.queue_id "
            "join queen.partitions p on p.id = d.partition_id where q.namespace = $1 order by d.id",
            self.namespace,
        )
        stored = [DeadLetter(*tuple(row)) for row in rows]
        modelled = [letter for queue in self.queues.values() for letter in queue.dead_letters]
        assert sorted(stored, key=repr) == sorted(modelled, key=repr)

    def check_seen(self) -> None:
        """Every group has seen all of its messages, first in their order."""
        for queue in self.queues.values():
            for group, cursors in queue.groups.items():
                for name, cursor in cursors.items():
                    first = list(dict.fromkeys(self.seen.get((queue.name, group, name), [])))
                    missed = set(range(len(cursor.partition.messages))) - set(first)
                    assert all((queue.name, group, name, index) in self.skipped for index in missed)
                    fresh = [i for i in first if (queue.name, group, name, i) not in self.skipped]
                    assert fresh == sorted(fresh), "order inside a partition"


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    world.run(world.broker.start())
    try:
        yield world
    finally:
        world.run(world.broker.stop())
        world.runner.close()


@pytest.mark.slow
@pytest.mark.timeout(3600 if LONG else 300)
def test_the_broker_behaves_like_the_model(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    started = time.perf_counter()
    run_state_machine_as_test(
        lambda: Machine(world),  # type: ignore[arg-type]  # any maker of machines will do
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            suppress_health_check=[HealthCheck.too_slow],
        ),
    )
    seconds = time.perf_counter() - started
    with capsys.disabled():
        print(f" {world.steps} steps, {world.steps / seconds:.0f} steps/s", end="")  # noqa: T201
    assert world.steps >= LEAST_STEPS
