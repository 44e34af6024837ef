"""Names to ids: queues with their options, partitions and groups, cached.

The cache is never trusted on its own: a push carries the version of the queue it knows and a pop names its
groups by id, and the database answers "stale" when either has changed. So an entry may be old, but not wrong.
"""

from __future__ import annotations

from datetime import datetime

import asyncpg
import msgspec

from queenstream.broker.database import Database
from queenstream.broker.wire import Options
from queenstream.errors import Unavailable

ATTEMPTS = 8
MOST_PARTITIONS = 200_000  # names kept in memory, over all queues


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
    """Where a new group starts. ``start_id``: the last id drawn when it asked first."""

    mode: str = "all"
    from_time: datetime | None = None
    start_id: int | None = None


class Directory:
    """The cache, and the few statements that fill it."""

    def __init__(self, database: Database) -> None:
        self._database = database
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
        rows = await self._database.admin("queue_by_name", name)
        if not rows:
            return None
        row = rows[0]
        options = Options(**{field: row[field] for field in Options.__struct_fields__})
        queue = Queue(row["id"], row["version"], name, row["namespace"], row["task"], options)
        return self._queues.setdefault(name, queue)

    async def ensure(self, name: str, partitions: list[str]) -> Queue:
        """The queue with these partitions, all made if missing."""
        for _ in range(ATTEMPTS):  # deleted in this very moment: make it anew
            try:
                rows = await self._database.admin("ensure_partitions", name, partitions)
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

    async def partition(self, queue: Queue, name: str) -> int | None:
        """The id of a partition, or None if it does not exist."""
        known = queue.partitions.get(name)
        if known is not None:
            return known
        rows = await self._database.admin("partition_ids", queue.id, [name])
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
        rows = await self._database.admin(
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
        rows = await self._database.admin("first_pop", queue, group)
        start: int = rows[0]["start_id"]
        return start

    async def last_id(self) -> int:
        """The last message id that can have been drawn so far."""
        rows = await self._database.admin("last_id")
        last: int = rows[0]["id"]
        return last

    async def queues_of(self, namespace: str | None, task: str | None) -> list[str]:
        """The names of the queues of a namespace and/or task, the higher priority first."""
        return [row["name"] for row in await self._database.admin("queues_of", namespace, task)]
