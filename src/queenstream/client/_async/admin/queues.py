"""Administration of queues: what there is, how it does, and taking it away."""

from __future__ import annotations

from datetime import datetime

from queenstream.client._async.retry import Calls
from queenstream.client._base.http import path_of
from queenstream.client._base.responses.resources import (
    Analytics,
    Cleared,
    Interval,
    NamespaceInfo,
    NamespaceList,
    Overview,
    Page,
    PartitionInfo,
    PartitionList,
    QueueDeleted,
    QueueDetail,
    QueueInfo,
    QueueList,
    QueueStatus,
    QueueStatusDetail,
    QueueStatusList,
    Status,
    TaskInfo,
    TaskList,
)

_RESOURCES = ("api", "v1", "resources")
_STATUS = ("api", "v1", "status")


class AsyncQueueAdmin:
    """Queues, namespaces, tasks, partitions, and how they do."""

    _calls: Calls

    async def queues(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        search: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Page[QueueInfo]:
        """The queues, with what lies in them; ``search`` is part of a name.

        >>> for queue in await queen.admin.queues(namespace="shop"):  # doctest: +SKIP
        ...     print(queue.name, queue.messages.pending)
        """
        query = {"namespace": namespace, "task": task, "search": search, "limit": limit, "offset": offset}
        found = await self._calls.call("GET", path_of(*_RESOURCES, "queues"), query=query, type=QueueList)
        return Page(found.queues, limit=limit, offset=offset, total=found.pagination.total)

    async def queue(self, name: str) -> QueueDetail:
        """One queue: options, counts, groups and its first 1000 partitions.

        >>> orders = await queen.admin.queue("orders")  # doctest: +SKIP
        >>> orders.options.lease_time, orders.messages.pending  # doctest: +SKIP
        (300, 12)
        """
        return await self._calls.call("GET", path_of(*_RESOURCES, "queues", name), type=QueueDetail)

    async def partitions(
        self,
        queue: str | None = None,
        *,
        prefix: str | None = None,
        after: str | None = None,
        waiting_for: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Page[PartitionInfo]:
        """The partitions of a queue, or of all: ``await admin.partitions("orders", limit=1000)``.

        Those of one queue may be asked for by how their names begin, and by pages ``after`` a name, however
        many there are; ``waiting_for``: those that a group has something to do in, the longest first.
        """
        query = {
            "queue": queue, "prefix": prefix, "after": after, "limit": limit, "offset": offset,
            "consumerGroup": waiting_for, "order": None if waiting_for is None else "waiting",
        }  # fmt: skip
        path = path_of(*_RESOURCES, "partitions")
        found = await self._calls.call("GET", path, query=query, type=PartitionList)
        return Page(found.partitions, limit=limit, offset=offset, total=found.pagination.total)

    async def namespaces(self) -> list[NamespaceInfo]:
        """The namespaces, with the sums of their queues: ``await admin.namespaces()``."""
        path = path_of(*_RESOURCES, "namespaces")
        return (await self._calls.call("GET", path, type=NamespaceList)).namespaces

    async def tasks(self) -> list[TaskInfo]:
        """The tasks, with the sums of their queues: ``await admin.tasks()``."""
        return (await self._calls.call("GET", path_of(*_RESOURCES, "tasks"), type=TaskList)).tasks

    async def overview(self) -> Overview:
        """What there is in all, counted: ``await admin.overview()``."""
        return await self._calls.call("GET", path_of(*_RESOURCES, "overview"), type=Overview)

    async def status(self) -> Status:
        """How the brokers do: counts, the last hour by minute, errors, leases, dead letters.

        >>> (await queen.admin.status()).errors.failed  # doctest: +SKIP
        0
        """
        return await self._calls.call("GET", path_of(*_STATUS), type=Status)

    async def queue_statuses(
        self,
        *,
        namespace: str | None = None,
        task: str | None = None,
        search: str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Page[QueueStatus]:
        """How the queues do, with what goes through them: ``await admin.queue_statuses(task="billing")``."""
        query = {"namespace": namespace, "task": task, "search": search, "limit": limit, "offset": offset}
        found = await self._calls.call("GET", path_of(*_STATUS, "queues"), query=query, type=QueueStatusList)
        return Page(found.queues, limit=limit, offset=offset, total=found.pagination.total)

    async def queue_status(self, name: str, *, limit: int = 100, offset: int = 0) -> QueueStatusDetail:
        """How one queue does: where each group stands in each partition.

        ``limit`` and ``offset`` are for the partitions: ``await admin.queue_status("orders", offset=100)``.
        """
        query = {"limit": limit, "offset": offset}
        path = path_of(*_STATUS, "queues", name)
        return await self._calls.call("GET", path, query=query, type=QueueStatusDetail)

    async def analytics(
        self,
        interval: Interval = "minute",
        *,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        queue: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
    ) -> Analytics:
        """What went through the queues, by minute, hour or day.

        >>> (await queen.admin.analytics("hour", queue="orders")).totals.pushed  # doctest: +SKIP
        48210
        """
        query = {
            "interval": interval, "from": from_, "to": to, "queue": queue, "namespace": namespace,
            "task": task,
        }  # fmt: skip
        return await self._calls.call("GET", path_of(*_STATUS, "analytics"), query=query, type=Analytics)

    async def clear_queue(self, name: str, *, partition: str | None = None) -> Cleared:
        """Delete the messages of a queue, or of one partition; options, groups and dead letters stay.

        >>> (await queen.admin.clear_queue("orders")).deleted  # doctest: +SKIP
        12
        """
        path = path_of("api", "v1", "queues", name, "clear")
        # Sent again, it would also delete what was pushed since.
        return await self._calls.call(
            "DELETE", path, query={"partition": partition}, type=Cleared, repeat=False
        )

    async def delete_queue(self, name: str) -> QueueDeleted:
        """Delete a queue with everything in it; one that does not exist is no error.

        >>> (await queen.admin.delete_queue("orders")).existed  # doctest: +SKIP
        True
        """
        path = path_of(*_RESOURCES, "queues", name)
        # Sent again, it would delete a queue that a push has made since.
        return await self._calls.call("DELETE", path, type=QueueDeleted, repeat=False)
