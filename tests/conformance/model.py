"""What a queue is, in plain Python: written from the contract, to hold the broker against.

A partition is an append-only list. A group has in each partition a place (everything before it is done), at
most one lease on a stretch of messages, failed tries, messages done ahead of a gap, and dead messages.
Which of several ready partitions a pop takes is the broker's choice: the model checks that it was legal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

EXPIRED = "the lease expired before an acknowledgement"
LONG_AGO = datetime.min.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Options:
    """The options of a queue that the model knows."""

    lease_seconds: int
    retry_limit: int
    retry_delay_ms: int
    delay_seconds: int
    priority: int


@dataclass
class Message:
    id: int
    transaction: str
    created_at: datetime
    data: str


@dataclass
class Partition:
    name: str
    id: str = ""
    messages: list[Message] = field(default_factory=list)
    by_transaction: dict[str, int] = field(default_factory=dict)


@dataclass
class Lease:
    id: str
    last: int  # the last message that is out
    until: datetime


@dataclass(frozen=True)
class DeadLetter:
    queue: str
    partition: str
    group: str
    transaction: str
    tries: int
    error: str | None
    cause: str


@dataclass
class Cursor:
    """A group's place in a partition."""

    partition: Partition
    group: str
    place: int = 0  # everything before it is done
    lease: Lease | None = None
    last_lease: str | None = None  # the lease that an ack ended last
    not_before: datetime = LONG_AGO  # a failed message waits
    tries: dict[int, int] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)  # ahead of a gap, under the lease that lives
    dead: set[int] = field(default_factory=set)

    def end_lease(self) -> None:
        self.lease = None
        self.done.clear()

    def advance(self) -> None:
        """Over what is done or dead, as far as the lease goes."""
        assert self.lease is not None
        while self.place <= self.lease.last and (self.place in self.done or self.place in self.dead):
            self.place += 1

    def put(self, place: int) -> None:
        """A seek: everything that was known of single messages is forgotten."""
        self.end_lease()
        self.place = place
        self.last_lease = None
        self.not_before = LONG_AGO
        self.tries.clear()
        self.errors.clear()
        self.dead.clear()


@dataclass(frozen=True)
class Ack:
    """One acknowledgement, as a client sends it."""

    queue: str
    partition: str
    group: str
    index: int
    status: str
    lease: str | None
    error: str | None = None


@dataclass
class Verdict:
    """What the broker must answer to an acknowledgement."""

    success: bool = False
    dead: bool = False
    again: bool = False
    released: bool = False


class Queue:
    """One queue with its partitions, groups and dead letters."""

    def __init__(self, name: str, options: Options) -> None:
        self.name = name
        self.options = options
        self.partitions: dict[str, Partition] = {}
        self.groups: dict[str, dict[str, Cursor]] = {}
        self.dead_letters: list[DeadLetter] = []

    # Push

    def partition(self, name: str) -> Partition:
        """The partition, made if missing: every group starts in it at its beginning."""
        known = self.partitions.get(name)
        if known is None:
            known = self.partitions[name] = Partition(name)
            for group, cursors in self.groups.items():
                cursors[name] = Cursor(known, group)
        return known

    def push(self, partition: Partition, message: Message) -> int:
        """Store a message that is new; its index in the partition."""
        messages = partition.messages
        if messages:
            assert message.id > messages[-1].id, "ids rise in the order of commits"
        partition.by_transaction[message.transaction] = len(messages)
        messages.append(message)
        return len(messages) - 1

    # Groups

    def subscribe(self, group: str, mode: str) -> None:
        """A group that asks for the first time; what it said first stays."""
        if group not in self.groups:
            self.groups[group] = {
                name: Cursor(partition, group, len(partition.messages) if mode == "new" else 0)
                for name, partition in self.partitions.items()
            }

    def seek(self, group: str, partition: str | None, at: datetime | None) -> int:
        """To the first message not older than ``at``, or to the end."""
        moved = 0
        for name, cursor in self.groups[group].items():
            if partition is None or name == partition:
                messages = cursor.partition.messages
                older = sum(1 for m in messages if at is None or m.created_at < at)
                cursor.put(older)
                moved += 1
        return moved

    # Pop

    def visible(self, cursor: Cursor, now: datetime) -> list[int]:
        """The messages that could be delivered if nobody held the partition."""
        ripe = now - timedelta(seconds=self.options.delay_seconds)
        messages = cursor.partition.messages
        return [
            index
            for index in range(cursor.place, len(messages))
            if messages[index].created_at <= ripe and index not in cursor.dead
        ]

    def free(self, cursor: Cursor, now: datetime) -> bool:
        """Whether a pop may look at the partition."""
        if cursor.lease is not None:
            return cursor.lease.until <= now
        return cursor.not_before <= now

    def would_die(self, cursor: Cursor) -> set[int]:
        """The messages that the end of this lease sends to the dead letters."""
        limit = self.options.retry_limit
        return {index for index in self._out(cursor) if cursor.tries.get(index, 0) + 1 > limit}

    def deliverable(self, cursor: Cursor, now: datetime) -> bool:
        """Whether a pop of this partition must give something."""
        if not self.free(cursor, now):
            return False
        return bool(set(self.visible(cursor, now)) - self.would_die(cursor))

    def ambiguous(self, cursor: Cursor, now: datetime) -> bool:
        """A lease that ran out and leaves nothing to deliver: only the broker knows if it has looked."""
        return cursor.lease is not None and self.free(cursor, now) and not self.deliverable(cursor, now)

    def touch(self, cursor: Cursor, now: datetime) -> None:
        """A pop looks at the partition: a lease that ran out counts a try for all that was out."""
        if cursor.lease is None or cursor.lease.until > now:
            return
        out = self._out(cursor)
        cursor.end_lease()
        cursor.not_before = LONG_AGO
        for index in out:
            self._count(cursor, index, EXPIRED)

    def expected(self, cursor: Cursor, room: int, now: datetime, auto_ack: bool) -> list[int]:
        """What a pop with that much room gets; one on its last try travels alone, unless this settles it."""
        limit = self.options.retry_limit
        batch: list[int] = []
        for index in self.visible(cursor, now)[:room]:
            tries = cursor.tries.get(index, 0)
            last_try = tries > 0 and tries >= limit and not auto_ack
            if last_try and batch:
                break
            batch.append(index)
            if last_try:
                break
        return batch

    def take(self, cursor: Cursor, batch: list[int], lease: str | None, now: datetime) -> None:
        """The batch is delivered, under a lease or acknowledged at once."""
        cursor.not_before = LONG_AGO
        if lease is None:
            cursor.place = batch[-1] + 1
        else:
            cursor.place = batch[0]
            until = now + timedelta(seconds=self.options.lease_seconds)
            cursor.lease = Lease(lease, batch[-1], until)

    def _out(self, cursor: Cursor) -> list[int]:
        if cursor.lease is None:
            return []
        stretch = range(cursor.place, cursor.lease.last + 1)
        return [i for i in stretch if i not in cursor.done and i not in cursor.dead]

    def _count(self, cursor: Cursor, index: int, error: str) -> bool:
        """A failed try; whether the message is dead now."""
        cursor.tries[index] = cursor.tries.get(index, 0) + 1
        cursor.errors[index] = error
        if cursor.tries[index] <= self.options.retry_limit:
            return False
        self._bury(cursor, index, error, "exhausted")
        return True

    def _bury(self, cursor: Cursor, index: int, error: str, cause: str) -> None:
        cursor.dead.add(index)
        name = cursor.partition.messages[index].transaction
        tries = cursor.tries.get(index, 0)
        self.dead_letters.append(
            DeadLetter(self.name, cursor.partition.name, cursor.group, name, tries, error, cause)
        )

    def _buried(self, cursor: Cursor, index: int) -> bool:
        wanted = cursor.partition.name, cursor.group, cursor.partition.messages[index].transaction
        return any((d.partition, d.group, d.transaction) == wanted for d in self.dead_letters)

    # Ack

    def ack(self, cursor: Cursor, acks: list[Ack], now: datetime) -> list[Verdict]:
        """Acknowledge for one group in one partition."""
        verdicts = [Verdict() for _ in acks]
        active: list[tuple[Ack, Verdict]] = []
        for ack, verdict in zip(acks, verdicts, strict=True):
            if self._accepts(cursor, ack, verdict):
                active.append((ack, verdict))
        if not active:
            return verdicts
        assert cursor.lease is not None
        lease = cursor.lease
        bad = min((a.index for a, _ in active if a.status in ("failed", "retry")), default=None)
        delayed = self._apply(cursor, active, bad)
        cursor.advance()
        if bad is not None:
            for ack, verdict in active:
                verdict.again = verdict.again or (not verdict.dead and ack.index > cursor.place)
        if bad is not None or cursor.place > lease.last:
            cursor.end_lease()
            cursor.not_before = LONG_AGO
            if delayed:
                cursor.not_before = now + timedelta(milliseconds=self.options.retry_delay_ms)
            cursor.last_lease = lease.id
            for verdict in verdicts:
                verdict.released = True
        return verdicts

    def _accepts(self, cursor: Cursor, ack: Ack, verdict: Verdict) -> bool:
        """Whether the ack does something; the verdict of one that does not is filled in."""
        lease = cursor.lease
        past = ack.index < cursor.place
        held = lease is not None and ack.lease == lease.id
        if past or (ack.lease is not None and not held):
            # What is done may be said again, by who did it.
            if ack.lease is None or held or ack.lease == cursor.last_lease:
                verdict.dead = ack.status == "dlq" and self._buried(cursor, ack.index)
                verdict.success = verdict.dead or (ack.status == "completed" and past)
            return False
        if lease is None or ack.index > lease.last:
            return False
        if ack.index in cursor.done or ack.index in cursor.dead:
            # Settled ahead of a gap: the same may be said again, and nothing else.
            verdict.dead = ack.status == "dlq" and ack.index in cursor.dead
            verdict.success = ack.status == "completed" or verdict.dead
            return False
        verdict.success = True
        return True

    def _apply(self, cursor: Cursor, active: list[tuple[Ack, Verdict]], bad: int | None) -> bool:
        """Carry out what is accepted; whether a failed message is left to come again."""
        failed: dict[int, bool] = {}  # and whether it is dead
        for ack, _ in active:
            if ack.status == "failed" and ack.index not in failed:
                failed[ack.index] = self._count(cursor, ack.index, ack.error or "failed")
        for ack, verdict in active:
            if ack.index in failed:
                verdict.dead = failed[ack.index]
                verdict.again = not verdict.dead
            elif bad is not None and ack.index >= bad:
                verdict.again = True
            elif ack.status == "dlq":
                verdict.dead = True
                if ack.index not in cursor.dead:
                    self._bury(cursor, ack.index, ack.error or "rejected by the consumer", "rejected")
            else:
                cursor.done.add(ack.index)
        return not all(failed.values())

    # Leases

    def cursors(self) -> Iterator[Cursor]:
        for cursors in self.groups.values():
            yield from cursors.values()

    def extend(self, lease: str, seconds: int, now: datetime) -> bool:
        """Hold a lease that still holds until ``seconds`` from now."""
        held = False
        for cursor in self.cursors():
            if cursor.lease is not None and cursor.lease.id == lease and cursor.lease.until > now:
                cursor.lease.until = now + timedelta(seconds=seconds)
                held = True
        return held

    def give_back(self, lease: str) -> None:
        """The client went away before its answer: no try is counted."""
        for cursor in self.cursors():
            if cursor.lease is not None and cursor.lease.id == lease:
                cursor.end_lease()
                cursor.not_before = LONG_AGO


def ready(queues: Iterable[Queue], group: str, partition: str | None, now: datetime) -> list[Cursor]:
    """The partitions that a pop must be served from, if there are any."""
    return [
        cursor
        for queue in queues
        for name, cursor in queue.groups[group].items()
        if (partition is None or name == partition) and queue.deliverable(cursor, now)
    ]
