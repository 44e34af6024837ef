# Generated from _async/admin/groups.py by `python tools/async_to_sync.py`; do not edit.
"""Administration of consumer groups: where they stand, and moving, subscribing and deleting them."""

from __future__ import annotations

from datetime import datetime, timedelta

from queenstream.client._base.http import BEGINNING, Place, moment, path_of
from queenstream.client._base.responses.resources import (
    Group,
    GroupDeleted,
    GroupDetail,
    LaggingPartition,
    Sought,
    SubscriptionUpdated,
)
from queenstream.client._sync.retry import Calls
from queenstream.core import durations

_GROUPS = ("api", "v1", "consumer-groups")


class GroupAdmin:
    """Consumer groups."""

    _calls: Calls

    def groups(self) -> list[Group]:
        """The consumer groups, with how far behind they are.

        >>> [group.name for group in queen.admin.groups() if group.state != "Stable"]  # doctest: +SKIP
        ['billing']
        """
        return self._calls.call("GET", path_of(*_GROUPS), type=list[Group])

    def group(self, name: str) -> GroupDetail:
        """One consumer group, by queue and partition.

        >>> queen.admin.group("billing").queues["orders"].lag  # doctest: +SKIP
        17
        """
        return self._calls.call("GET", path_of(*_GROUPS, name), type=GroupDetail)

    def lagging(
        self, min_lag: str | float | timedelta = "1m", *, limit: int = 1000
    ) -> list[LaggingPartition]:
        """The partitions in which a group is at least that late, the latest first.

        >>> queen.admin.lagging("10m")  # doctest: +SKIP
        [LaggingPartition(consumer_group='billing', queue='orders', …)]
        """
        query = {"minLagSeconds": durations.seconds(min_lag), "limit": limit}
        path = path_of(*_GROUPS, "lagging")
        return self._calls.call("GET", path, query=query, type=list[LaggingPartition])

    def delete_group(
        self, name: str, *, queue: str | None = None, delete_metadata: bool = True
    ) -> GroupDeleted:
        """Delete a group's progress, in one queue or in all: it starts over.

        ``delete_metadata=False`` keeps what it said about where to start:
        ``admin.delete_group("billing", queue="orders", delete_metadata=False)``.
        """
        of_queue = () if queue is None else ("queues", queue)
        # Sent again, it would delete what the group has done since.
        return self._calls.call(
            "DELETE",
            path_of(*_GROUPS, name, *of_queue),
            query={"deleteMetadata": delete_metadata},
            type=GroupDeleted,
            repeat=False,
        )

    def set_subscription(self, group: str, start: datetime | str) -> SubscriptionUpdated:
        """Deliver nothing older than ``start`` to a group, in any of its queues.

        >>> queen.admin.set_subscription("billing", "2026-01-31T12:00:00Z")  # doctest: +SKIP
        """
        path = path_of(*_GROUPS, group, "subscription")
        body = {"subscriptionTimestamp": moment(start)}
        return self._calls.call("POST", path, body=body, type=SubscriptionUpdated)

    def seek(
        self,
        group: str,
        queue: str,
        to: Place | None = None,
        *,
        partition: str | None = None,
        message_id: str | None = None,
        dry_run: bool = False,
    ) -> Sought:
        """Move a group in a queue, or in one partition, back or forward; a new group will start there.

        ``to`` is a time, ``"beginning"``, or ``"end"`` (also ``"now"``): past all that is stored. With
        ``dry_run`` nothing moves, and ``affected`` says how many messages lie between. In one partition,
        ``message_id`` instead of ``to`` makes that message the next one.

        >>> sought = queen.admin.seek("billing", "orders", "beginning", dry_run=True)  # doctest: +SKIP
        >>> sought.affected  # doctest: +SKIP
        4200
        """
        return seek_group(self._calls, group, queue, to, partition, message_id, dry_run)


def seek_group(
    calls: Calls,
    group: str,
    queue: str,
    to: Place | None,
    partition: str | None,
    message_id: str | None = None,
    dry_run: bool = False,
) -> Sought:
    """Move a group in a queue, or in one partition of it."""
    within = () if partition is None else ("partitions", partition)
    path = path_of(*_GROUPS, group, "queues", queue, *within, "seek")
    to_end = to in ("end", "now")
    body: dict[str, object] = {"dryRun": dry_run}
    if message_id is not None:
        body["messageId"] = message_id
    if to_end:
        body["toEnd"] = True
    elif to is not None:
        body["timestamp"] = BEGINNING if to == "beginning" else moment(to)
    # A later end is another place: sent again, it would skip what was pushed since.
    return calls.call("POST", path, body=body, type=Sought, repeat=not to_end or dry_run)
