"""Names to ids: queues with their options, partitions and groups, cached.

The cache is never trusted on its own: a push carries the version of the queue it knows and a pop names its
groups by id, and the database answers "stale" when either has changed. So an entry may be old, but not wrong.
"""

from __future__ import annotations

from datetime import datetime
from time import monotonic
from typing import Any

import asyncpg
import msgspec

from queenstream.broker.http.quota import Quota
from queenstream.broker.schemas.messages import Options
from queenstream.broker.storage.database import Database
from queenstream.config import Settings
from queenstream.errors import Conflict, Unavailable

ATTEMPTS = 8
MOST_PARTITIONS = 200_000  # names kept in memory, over all queues
MOST_FIRST_POPS = 100_000  # groups whose start is remembered before their queue exists
ROOM_SECONDS = 60.0  # after which the partitions of a queue are counted again
MOST_ROOMS = 100_000  # queues whose count is kept in memory


class Queue:
    """What the broker knows of a queue."""

    __slots__ = ("groups", "id", "name", "namespace", "options", "partitions", "task", "version")

    def __init__(self, id: int, version: int, name: str, namespace: str, task: str, options: Options) -> None:
        self.id = id
        self.version = version
        self.name = name
        self.namespace = namespace
        self.task = task
        self.options = options
        self.partitions: dict[str, int] = {}
        self.groups: dict[str, int] = {}


class Subscription(msgspec.Struct, frozen=True):
    """Where a new group starts, and who creates it.

    ``start_id``: the last id drawn when the group asked first. ``caller``: for the limits; empty: the broker.
    """

    mode: str = "all"
    from_time: datetime | None = None
    start_id: int | None = None
    caller: str = ""


def too_many_groups(queue: str, most: int) -> Conflict:
    """The error for a queue that has as many groups, streams included, as it may have."""
    return Conflict(
        f"queue {queue} has {most} groups already (max_groups), streams that read it included; delete those "
        "that nobody uses (queen group delete), or raise that setting of the broker"
    )


class Directory:
    """The cache, the few statements that fill it, and the limits on new names."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self._database = database
        self._settings = settings
        self._quota = Quota(settings.max_new_names)
        self._room: dict[int, tuple[int, float]] = {}  # partitions that a queue may still get, as of when
        self._queues: dict[str, Queue] = {}
        self._partitions = 0

    def cached(self, name: str) -> Queue | None:
        return self._queues.get(name)

    def drop(self, name: str) -> None:
        """Forget a queue: it was changed or deleted."""
        queue = self._queues.pop(name, None)
        if queue is not None:
            self._partitions -= len(queue.partitions)

    def clear(self) -> None:
        self._queues.clear()
        self._partitions = 0

    async def queue(self, name: str) -> Queue | None:
        """The queue, or None if it does not exist."""
        known = self._queues.get(name)
        if known is not None:
            return known
        rows = await self._database.catalog("queue_by_name", name)
        if not rows:
            return None
        row = rows[0]
        options = Options(**{field: row[field] for field in Options.__struct_fields__})
        queue = Queue(row["id"], row["version"], name, row["namespace"], row["task"], options)
        return self._queues.setdefault(name, queue)

    async def ensure(self, name: str, partitions: list[str], caller: str = "") -> Queue:
        """The queue with these partitions, all made if missing; ``caller``: within the limits."""
        for _ in range(ATTEMPTS):  # deleted in this very moment: make it anew
            if caller:
                known = await self._check_limits(name, partitions, caller)
                if known is not None:
                    return known
            try:
                rows = await self._database.catalog("ensure_partitions", name, partitions)
            except asyncpg.PostgresError as error:
                if error.sqlstate != "QS002":
                    raise
                continue
            row = rows[0]
            queue = await self.queue(name)
            if queue is None or queue.id != row["queue_id"]:
                self.drop(name)
                queue = await self.queue(name)
            if queue is not None and queue.id == row["queue_id"]:
                self._remember(queue, partitions, row["partition_ids"])
                return queue
        raise Unavailable("the queue keeps being deleted; try again")

    async def check_new_queue(self, name: str, caller: str = "") -> None:
        """Conflict if there are as many queues as there may be; ``caller`` creates this one if it is new."""
        if await self.queue(name) is not None:
            return
        most = self._settings.max_queues
        if await self._count("count_queues_upto", most) >= most:
            raise Conflict(
                f"there are {most} queues already (max_queues); delete some, or raise that setting"
            )
        self._quota.take(caller, 1)

    async def _check_limits(self, name: str, partitions: list[str], caller: str) -> Queue | None:
        """The queue, if it has all these partitions; an error if the missing ones are too many."""
        queue = await self.queue(name)
        if queue is None:
            await self.check_new_queue(name)
            missing = len(partitions)
            room = self._settings.max_partitions
        else:
            rows = await self._database.catalog("partition_ids", queue.id, partitions)
            found = {n: id for n, id in zip(partitions, rows[0]["ids"], strict=True) if id is not None}
            missing = len(partitions) - len(found)
            if not missing:
                self._remember(queue, [*found], [*found.values()])
                return queue
            room = await self._room_in(queue, missing)
        if missing > room:
            raise Conflict(
                f"queue {name} may have {self._settings.max_partitions} partitions (max_partitions), and "
                f"{missing} more are too many; use fewer partition names, or raise that setting of the broker"
            )
        self._quota.take(caller, missing)
        if queue is not None:
            self._room[queue.id] = room - missing, self._room[queue.id][1]
        return None

    async def _room_in(self, queue: Queue, wanted: int) -> int:
        """How many partitions a queue may still get; counted once a minute, for other brokers' sake."""
        room, counted_at = self._room.get(queue.id, (0, -ROOM_SECONDS))
        if room < wanted or monotonic() - counted_at > ROOM_SECONDS:
            if len(self._room) > MOST_ROOMS:
                self._room.clear()
            most = self._settings.max_partitions
            room = most - await self._count("count_partitions_upto", most, queue.id)
            self._room[queue.id] = room, monotonic()
        return room

    async def _count(self, query: str, most: int, *args: Any) -> int:
        """A count that does not go on past ``most``."""
        [row] = await self._database.catalog(query, most, *args)
        counted: int = row["n"]
        return counted

    async def partition(self, queue: Queue, name: str) -> int | None:
        """The id of a partition, or None if it does not exist."""
        known = queue.partitions.get(name)
        if known is not None:
            return known
        rows = await self._database.catalog("partition_ids", queue.id, [name])
        found: int | None = rows[0]["ids"][0]
        if found is not None:
            self._remember(queue, [name], [found])
        return found

    def _remember(self, queue: Queue, names: list[str], ids: list[int]) -> None:
        if self._partitions + len(names) > MOST_PARTITIONS:
            for other in self._queues.values():
                other.partitions.clear()
            self._partitions = 0
        before = len(queue.partitions)
        queue.partitions.update(zip(names, ids, strict=True))
        self._partitions += len(queue.partitions) - before

    async def group(self, queue: Queue, name: str, subscription: Subscription) -> int | None:
        """The id of a group, subscribed as it says if it is new; None if the queue is gone."""
        known = queue.groups.get(name)
        if known is not None:
            return known
        most = self._settings.max_groups
        [row] = await self._database.catalog("group_exists", most, queue.id, name)
        if not row["known"]:
            if row["n"] >= most:
                raise too_many_groups(queue.name, most)
            self._quota.take(subscription.caller, 1)
        rows = await self._database.catalog(
            "ensure_group",
            queue.id,
            name,
            subscription.mode,
            subscription.from_time,
            subscription.start_id,
            self._database.now(),
        )
        found: int | None = rows[0]["id"]
        if found is not None:
            queue.groups[name] = found
        return found

    async def first_pop(self, queue: str, group: str) -> int:
        """Where a group starts that asks for what is new in a queue which does not exist yet."""
        if await self._count("count_first_pops_upto", MOST_FIRST_POPS) >= MOST_FIRST_POPS:
            raise Conflict("too many groups wait for queues that do not exist; configure the queue first")
        rows = await self._database.catalog("first_pop", queue, group)
        start: int = rows[0]["start_id"]
        return start

    async def last_id(self) -> int:
        """The last message id that can have been drawn so far."""
        rows = await self._database.catalog("last_id")
        last: int = rows[0]["id"]
        return last

    async def queues_of(self, namespace: str | None, task: str | None) -> list[str]:
        """The names of the queues of a namespace and/or task, the higher priority first."""
        return [row["name"] for row in await self._database.catalog("queues_of", namespace, task)]
