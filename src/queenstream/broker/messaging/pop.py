"""Pop and wait: a lane for each (target, group), in which requests are served together.

A waiting pop holds no database connection and does not poll. It is woken by a push in this process, by a
notification from another one, or by the time at which the database said that more will be ready (a delay,
a retry, the end of somebody's lease). A slow poll is the net under all of that.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter
from typing import Any

from msgspec import UNSET, Raw

from queenstream.broker.messaging.catalog import Directory, Queue, Subscription
from queenstream.broker.messaging.encryption import Keyring, message_identity
from queenstream.broker.messaging.rejection import Rejected
from queenstream.broker.ops.metrics import Metrics
from queenstream.broker.schemas.messages import Message, Popped
from queenstream.broker.storage import sql
from queenstream.broker.storage.database import Database
from queenstream.errors import PayloadAltered, QueenstreamError, Unavailable

log = logging.getLogger(__name__)

TOGETHER = 64  # pops served by one statement
NET_SECONDS = 10.0  # the slow poll
ATTEMPTS = 8  # to find the groups, when they are deleted all the time
SOON_SECONDS = 0.01  # no lane asks the database more often than this without a reason

COLUMNS = (
    "request, queue_name, partition_id, partition_name, ids, transactions, traces, payloads, keys, "
    "subjects, created, tries, wait_seconds"
)
_BY_MESSAGE = ("ids", "transactions", "traces", "payloads", "subjects", "created", "tries")
PAGE = 2000  # messages
_RELEASE = sql.bind("select queen.release($1, $2) as queues")
_POP = sql.bind("queen.pop($1, $2, $3, $4, $5, $6, $7, false, $8)")
_CONTENT = sql.bind(f"queen.window_content(popped.payloads[1], {PAGE}, $7)")
STATEMENT = f"select {COLUMNS} from {_POP}"  # noqa: S608
# Of a stream's own queue: the windows that were popped, with their first messages.
STREAM_STATEMENT = (
    f"select {COLUMNS}, content.* from {_POP} popped "  # noqa: S608
    f"left join lateral {_CONTENT} content on true"
)


Answer = Callable[[Any, "Waiter"], None]  # with what was popped (Popped, or a window's row), an error or None


@dataclass(frozen=True)
class Target:
    """What a pop asks for: one queue, one partition of it, or any queue of a namespace and/or task."""

    group: str
    queue: str | None = None
    partition: str | None = None
    namespace: str | None = None
    task: str | None = None
    stream: bool = False  # the queue holds a stream's windows: what is popped comes as a row


class Waiter:
    """One pop that wants an answer; ``answer`` is called with it, once."""

    __slots__ = (
        "answer",
        "auto_ack",
        "batch",
        "brief",
        "done",
        "lane",
        "lease",
        "partitions",
        "timer",
        "wait",
    )

    def __init__(
        self, batch: int, partitions: int, auto_ack: bool, wait: bool, answer: Answer, brief: bool = False
    ) -> None:
        self.lane: _Lane | None = None
        self.batch = batch
        self.partitions = partitions
        self.auto_ack = auto_ack
        self.wait = wait
        self.lease = uuid.uuid4()
        self.answer = answer
        self.brief = brief
        self.done = False
        self.timer: asyncio.TimerHandle | None = None

    def resolve(self, popped: Any) -> None:
        """What was popped, nothing, or why it failed."""
        if self.timer is not None:
            self.timer.cancel()
        if self.lane is not None:
            self.lane.waiters.pop(self, None)
        if not self.done:
            self.done = True
            self.answer(popped, self)


class _Lane:
    """The pops of one target and group, in the order they came."""

    __slots__ = ("dirty", "riding", "start_id", "subscription", "target", "task", "timer", "waiters")

    def __init__(self, target: Target, subscription: Subscription) -> None:
        self.target = target
        self.subscription = subscription
        self.start_id: int | None = None  # the last id drawn when the group asked first
        self.waiters: dict[Waiter, None] = {}  # in their order, and each can leave at once
        self.dirty = False
        self.riding = False  # its pops travel with a push
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None


class Ride:
    """Waiting pops that travel with a push into their queue, in its statement and its transaction.

    A message then reaches who waits for it with one commit instead of two.
    """

    __slots__ = ("arguments", "lane", "rows", "started", "waiters")

    def __init__(self, lane: _Lane, waiters: list[Waiter], arguments: tuple[Any, ...]) -> None:
        self.lane = lane
        self.waiters = waiters
        self.arguments = arguments
        self.rows: list[Any] | None = None  # what the statement gave, once it is committed
        self.started = perf_counter()


class Popper:
    """Serves pops. ``released`` is told the queues whose leases were given back."""

    def __init__(
        self,
        database: Database,
        directory: Directory,
        keyring: Keyring | None,
        metrics: Metrics,
        released: Callable[[set[str]], None],
        rejected: Callable[[Rejected], None],
        *,
        max_pop_bytes: int = 16 * 1024 * 1024,
    ) -> None:
        self._database = database
        self._directory = directory
        self._keyring = keyring
        self._metrics = metrics
        self._released = released
        self._rejected = rejected
        self._max_pop_bytes = max_pop_bytes
        self._lanes: dict[Target, _Lane] = {}
        self._by_queue: dict[str, set[_Lane]] = {}
        self._by_partition: dict[tuple[str, str], set[_Lane]] = {}
        self._anywhere: set[_Lane] = set()
        self._releases: set[asyncio.Task[None]] = set()
        self.paused = False
        self.closing = False

    @property
    def waiting(self) -> int:
        return sum(len(lane.waiters) for lane in self._lanes.values())

    def pop(
        self,
        target: Target,
        subscription: Subscription,
        *,
        batch: int,
        partitions: int,
        auto_ack: bool,
        wait_seconds: float,
        answer: Answer,
        brief: bool = False,
    ) -> Waiter:
        """Ask for messages; ``answer`` is called with what was popped, None, or an error."""
        waiter = Waiter(batch, partitions, auto_ack, wait_seconds > 0, answer, brief)
        if self.closing or (self.paused and not waiter.wait):
            waiter.resolve(None)
            return waiter
        lane = self._lanes.get(target)
        if lane is None:
            lane = _Lane(target, subscription)
            self._lanes[target] = lane
            self._index(lane, add=True)
        if waiter.wait:
            loop = asyncio.get_running_loop()
            waiter.timer = loop.call_later(wait_seconds, self.cancel, waiter)
        waiter.lane = lane
        # Where others wait, there was nothing for them, and whatever comes wakes the lane: no need to ask.
        others_wait = bool(lane.waiters)
        lane.waiters[waiter] = None
        if not (others_wait and waiter.wait):
            self._start(lane)
        return waiter

    def cancel(self, waiter: Waiter) -> None:
        """Its time is over, or its client has gone: nothing is to be leased for it."""
        waiter.resolve(None)
        if waiter.lane is not None:
            self._sweep(waiter.lane)

    def _index(self, lane: _Lane, *, add: bool) -> None:
        target = lane.target
        if target.queue is None:
            (self._anywhere.add if add else self._anywhere.discard)(lane)
            return
        index: dict[Any, set[_Lane]] = self._by_queue
        key: Any = target.queue
        if target.partition is not None:
            index, key = self._by_partition, (target.queue, target.partition)
        if add:
            index.setdefault(key, set()).add(lane)
        else:
            index[key].discard(lane)
            if not index[key]:
                del index[key]

    def _sweep(self, lane: _Lane) -> None:
        """Drop a lane in which nobody waits."""
        at_work = lane.task is not None or lane.riding
        if not lane.waiters and not at_work and self._lanes.get(lane.target) is lane:
            if lane.timer is not None:
                lane.timer.cancel()
            del self._lanes[lane.target]
            self._index(lane, add=False)

    # Waking

    def stored(self, touched: dict[str, set[str]], ride: Ride | None = None) -> None:
        """Messages were stored in these partitions of these queues, by this process; ``ride`` saw them."""
        seen = ride and ride.lane
        for queue, partitions in touched.items():
            for lane in self._by_queue.get(queue, ()):
                if lane is not seen:
                    self._wake(lane)
            if self._by_partition:
                for partition in partitions:
                    for lane in self._by_partition.get((queue, partition), ()):
                        self._wake(lane)
        for lane in self._anywhere:
            self._wake(lane)

    def changed(self, queues: Iterable[str]) -> None:
        """Something in these queues may be deliverable now: stored or freed, here or elsewhere."""
        for queue in queues:
            for lane in self._by_queue.get(queue, ()):
                self._wake(lane)
            for (name, _), lanes in self._by_partition.items():
                if name == queue:
                    for lane in lanes:
                        self._wake(lane)
        for lane in self._anywhere:
            self._wake(lane)

    def wake_all(self) -> None:
        for lane in self._lanes.values():
            self._wake(lane)

    def _wake(self, lane: _Lane) -> None:
        lane.dirty = True
        self._start(lane)

    def _start(self, lane: _Lane) -> None:
        if lane.task is None and not lane.riding and lane.waiters and not self.paused and not self.closing:
            if lane.timer is not None:
                lane.timer.cancel()
                lane.timer = None
            lane.task = asyncio.create_task(self._serve(lane))

    # Serving

    async def _serve(self, lane: _Lane) -> None:
        wait = NET_SECONDS
        try:
            while not self.paused and not self.closing:
                waiters = list(lane.waiters)
                if not waiters:
                    break
                lane.dirty = False
                served, wait = await self._claim(lane, waiters[:TOGETHER])
                if served == len(waiters[:TOGETHER]):
                    continue
                # Nothing is left, for none of those who asked before; who came meanwhile asks again.
                for waiter in waiters[served:]:
                    if not waiter.wait:
                        waiter.resolve(None)
                if not lane.dirty and all(w.wait for w in lane.waiters):
                    break
            if self.paused:  # since they asked
                for waiter in list(lane.waiters):
                    if not waiter.wait:
                        waiter.resolve(None)
        except Exception as error:
            if not isinstance(error, QueenstreamError):
                log.exception("pop from %s", lane.target)
                error = Unavailable("the broker could not pop; its log says why. Try again.")
            for waiter in list(lane.waiters):
                waiter.resolve(error)
        finally:
            lane.task = None
            self._sweep(lane)
        self._wait(lane, wait)

    def _wait(self, lane: _Lane, wait: float) -> None:
        """Ask again when the database said so, if nobody wakes the lane before."""
        if lane.waiters:
            delay = min(max(wait, SOON_SECONDS), NET_SECONDS)
            lane.timer = asyncio.get_running_loop().call_later(delay, self._wake, lane)

    # Riding

    def board(self, name: str) -> Ride | None:
        """The pops that wait for messages of a queue, to travel with a push into it."""
        queue = self._directory.cached(name)
        if queue is None or self.paused or self.closing:
            return None
        for lane in self._by_queue.get(name, ()):
            group = queue.groups.get(lane.target.group)
            if lane.task is None and not lane.riding and lane.waiters and group is not None:
                waiters = list(lane.waiters)[:TOGETHER]
                lane.riding, lane.dirty = True, False
                if lane.timer is not None:
                    lane.timer.cancel()
                    lane.timer = None
                return Ride(lane, waiters, self._arguments([group], None, waiters))
        return None

    def alight(self, ride: Ride) -> None:
        """The push is over; if it was not stored, the pops ask without it."""
        lane, rows = ride.lane, ride.rows
        lane.riding = False
        wait = 0.0
        try:
            if rows is None or rows[-1]["request"] == -1:  # or the group is gone: look again
                lane.dirty = True
            else:
                served, wait = self._hand_out(lane, ride.waiters, rows, ride.started)
                lane.dirty = lane.dirty or served == len(ride.waiters)
        except Exception as error:
            log.exception("pop from %s", lane.target)
            for waiter in ride.waiters:
                waiter.resolve(error)
        self._sweep(lane)
        if lane.dirty or any(not waiter.wait for waiter in lane.waiters):
            self._start(lane)
        else:
            self._wait(lane, wait)

    async def _claim(self, lane: _Lane, waiters: list[Waiter]) -> tuple[int, float]:
        """Ask the database once: how many of the waiters were served, and when to ask again."""
        for _ in range(ATTEMPTS):
            groups, partition = await self._resolve(lane)
            if not groups:
                return 0, NET_SECONDS
            started = perf_counter()
            arguments = self._arguments(groups, partition, waiters)
            statement = STREAM_STATEMENT if lane.target.stream else STATEMENT
            rows = await self._database.hot(statement, *arguments, self._database.now())
            if rows[-1]["request"] != -1:
                break
            for name in await self._queue_names(lane.target):  # a group was deleted: subscribe it again
                self._directory.drop(name)
        else:
            raise Unavailable("the group keeps being deleted; try again")
        return self._hand_out(lane, waiters, rows, started)

    def _arguments(self, groups: list[int], partition: int | None, waiters: list[Waiter]) -> tuple[Any, ...]:
        return (
            groups,
            partition,
            [w.lease for w in waiters],
            [w.batch for w in waiters],
            [w.partitions for w in waiters],
            [w.auto_ack for w in waiters],
            self._max_pop_bytes,
        )

    def _hand_out(
        self, lane: _Lane, waiters: list[Waiter], rows: list[Any], started: float
    ) -> tuple[int, float]:
        """Give what was popped to who waited: how many were served, and when to ask again."""
        claims: dict[int, list[Any]] = {}
        for row in rows[:-1]:
            claims.setdefault(row["request"] - 1, []).append(row)
        if claims:
            count = sum(len(row["ids"]) for row in rows[:-1])
            self._metrics.batch("pop", count, perf_counter() - started)
        for place, claimed in claims.items():
            self._deliver(waiters[place], claimed, lane.target)
        wait = rows[-1]["wait_seconds"]
        return len(claims), NET_SECONDS if wait is None else wait

    def _deliver(self, waiter: Waiter, claimed: list[Any], target: Target) -> None:
        if waiter.done:
            if not waiter.auto_ack:
                self.release(waiter.lease)
            return
        try:
            if not target.stream and any(row["keys"] is not None for row in claimed):
                claimed = self._decrypt(waiter, claimed, target.group)
                if not claimed:
                    waiter.resolve(None)  # all of it was altered, and is given up
                    return
            popped = claimed[0] if target.stream else self._build(waiter, claimed, target.group)
        except QueenstreamError as error:
            self.release(waiter.lease)
            waiter.resolve(Unavailable(str(error)))
            return
        for row in claimed:
            self._metrics.popped(row["queue_name"], len(row["ids"]), waiter.auto_ack)
        waiter.resolve(popped)

    def _build(self, waiter: Waiter, claimed: list[Any], group: str) -> Popped:
        lease = None if waiter.auto_ack else str(waiter.lease)
        messages: list[Message] = []
        brief = waiter.brief and len(claimed) == 1  # of one partition: the head says it for all
        none = UNSET if brief else None
        for row in claimed:
            messages.extend(
                map(  # what is null for the whole partition comes as null
                    Message,
                    map(str, row["ids"]),
                    row["transactions"],
                    map(Raw, row["payloads"]),
                    row["created"],
                    row["traces"] or repeat(none),
                    row["subjects"] or repeat(none),
                    repeat(UNSET if brief else str(row["partition_id"])),
                    repeat(UNSET if brief else row["partition_name"]),
                    repeat(UNSET if brief else lease),
                    repeat(UNSET if brief else group),
                    repeat(UNSET if brief else row["queue_name"]),
                    row["tries"] or repeat(UNSET if brief else 0),
                )
            )
        first = claimed[0]
        return Popped(
            True,
            first["queue_name"],
            first["partition_name"],
            str(first["partition_id"]),
            lease,
            group,
            messages,
            len({row["partition_id"] for row in claimed}),  # one with autoAck may give more at once
            None if lease is None else self._lease_seconds(claimed),
        )

    def _lease_seconds(self, claimed: list[Any]) -> int | None:
        """How long the lease holds, of several queues the shortest; None: not at hand."""
        names = [claimed[0]["queue_name"]] if len(claimed) == 1 else {row["queue_name"] for row in claimed}
        known = [queue.options.lease_time for name in names if (queue := self._directory.cached(name))]
        return min(known) if known else None

    def _decrypt(self, waiter: Waiter, claimed: list[Any], group: str) -> list[Any]:
        """What was claimed, readable, without what was altered in the database: that is given up."""
        readable: list[Any] = []
        for row in claimed:
            if row["keys"] is None:
                readable.append(row)
                continue
            payloads, bad, error = self._plain(row)
            if bad:
                lease = None if waiter.auto_ack else waiter.lease
                ids, transactions = ([row[name][at] for at in bad] for name in ("ids", "transactions"))
                self._rejected(Rejected(row["partition_id"], group, lease, ids, transactions, error))
            left = dict(row) | {"payloads": payloads}
            for name in _BY_MESSAGE:
                if bad and left[name] is not None:
                    left[name] = [each for at, each in enumerate(left[name]) if at not in bad]
            if left["ids"]:
                readable.append(left)
        return readable

    def _plain(self, row: Any) -> tuple[list[bytes], set[int], str]:
        """The payloads of a partition's messages, and which of them were altered."""
        if self._keyring is None:
            raise Unavailable("a payload is encrypted and this broker has no key; set QUEEN_ENCRYPTION_KEYS")
        payloads, bad, error = list(row["payloads"]), set(), ""
        for at, (key, transaction) in enumerate(zip(row["keys"], row["transactions"], strict=True)):
            if key is None:
                continue
            identity = message_identity(row["queue_name"], row["partition_name"], transaction)
            try:
                payloads[at] = self._keyring.decrypt(key, payloads[at], identity)
            except PayloadAltered as altered:
                bad.add(at)
                error = str(altered)
        return payloads, bad, error

    # Names

    async def _queue_names(self, target: Target) -> list[str]:
        if target.queue is not None:
            return [target.queue]
        return await self._directory.queues_of(target.namespace, target.task)

    async def _resolve(self, lane: _Lane) -> tuple[list[int], int | None]:
        """The ids of the groups to claim for (subscribed now if new), and of the partition."""
        groups: list[int] = []
        partition: int | None = None
        target = lane.target
        for name in await self._queue_names(target):
            queue = await self._directory.queue(name)
            group = None if queue is None else await self._group(lane, queue)
            if queue is not None and group is None:  # deleted, and perhaps made anew: look again
                self._directory.drop(name)
                queue = await self._directory.queue(name)
                group = None if queue is None else await self._group(lane, queue)
            if queue is None or group is None:
                continue
            if target.partition is not None:
                partition = await self._directory.partition(queue, target.partition)
                if partition is None:
                    continue
            groups.append(group)
        if not groups and lane.start_id is None and lane.subscription.mode == "new":
            if target.queue is None:
                lane.start_id = await self._directory.last_id()
            else:
                lane.start_id = await self._directory.first_pop(target.queue, target.group)
        return groups, partition

    async def _group(self, lane: _Lane, queue: Queue) -> int | None:
        known = queue.groups.get(lane.target.group)
        if known is not None:
            return known
        said = lane.subscription
        subscription = Subscription(said.mode, said.from_time, lane.start_id, said.caller)
        return await self._directory.group(queue, lane.target.group, subscription)

    # Giving back

    def release(self, lease: uuid.UUID) -> None:
        """Give a lease back in the background: its client will not work on it."""
        task = asyncio.create_task(self._release(lease))
        self._releases.add(task)
        task.add_done_callback(self._releases.discard)

    async def _release(self, lease: uuid.UUID) -> None:
        try:
            rows = await self._database.hot(_RELEASE, [lease], self._database.now())
        except Unavailable:
            return  # said already; the lease will run out by itself
        except Exception:
            log.exception("giving back the lease %s", lease)
            return
        queues = set(rows[0]["queues"])
        if queues:
            self._released(queues)

    async def close(self) -> None:
        """Answer every waiting pop with nothing, and finish giving leases back."""
        self.closing = True
        for lane in list(self._lanes.values()):
            if lane.timer is not None:
                lane.timer.cancel()
            for waiter in list(lane.waiters):
                if lane.task is None:
                    waiter.resolve(None)
        while tasks := {lane.task for lane in self._lanes.values() if lane.task} | self._releases:
            await asyncio.wait(tasks)
        for lane in list(self._lanes.values()):
            for waiter in list(lane.waiters):
                waiter.resolve(None)
