# Generated from _async/admin/history.py by `python tools/async_to_sync.py`; do not edit.
"""Administration of what was sent: messages, dead letters, traces."""

from __future__ import annotations

from datetime import datetime

from msgspec import UNSET

from queenstream.client._base.http import path_of
from queenstream.client._base.responses.history import (
    MessageDeleted,
    MessageDetail,
    MessageInfo,
    MessageList,
    MessageState,
    MessageTraces,
    Moved,
    Retried,
    Trace,
    TraceList,
    TraceName,
    TraceNameList,
)
from queenstream.client._base.responses.resources import Page
from queenstream.client._base.responses.search import Found
from queenstream.client._sync.retry import Calls

_MESSAGES = ("api", "v1", "messages")
_TRACES = ("api", "v1", "traces")


class HistoryAdmin:
    """Messages, dead letters and traces."""

    _calls: Calls

    # Messages

    def messages(
        self,
        *,
        queue: str | None = None,
        partition: str | None = None,
        namespace: str | None = None,
        task: str | None = None,
        status: MessageState | None = None,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        limit: int = 200,
        offset: int = 0,
    ) -> Page[MessageInfo]:
        """Stored messages, the newest first, without taking them from anybody.

        >>> [found.data for found in queen.admin.messages(queue="orders", limit=2)]  # doctest: +SKIP
        [{'n': 2}, {'n': 1}]
        """
        query = {
            "queue": queue, "partition": partition, "namespace": namespace, "task": task, "status": status,
            "from": from_, "to": to, "limit": limit, "offset": offset,
        }  # fmt: skip
        found = self._calls.call("GET", path_of(*_MESSAGES), query=query, type=MessageList)
        return Page(found.messages, limit=limit, offset=offset)

    def queue_messages(
        self,
        queue: str,
        *,
        partition: str | None = None,
        status: MessageState | None = None,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        limit: int = 200,
        offset: int = 0,
    ) -> Page[MessageInfo]:
        """The same for a queue that has to exist: ``admin.queue_messages("orders", limit=10)``."""
        query = {
            "partition": partition, "status": status, "from": from_, "to": to, "limit": limit,
            "offset": offset,
        }  # fmt: skip
        path = path_of("api", "v1", "status", "queues", queue, "messages")
        found = self._calls.call("GET", path, query=query, type=MessageList)
        return Page(found.messages, limit=limit, offset=offset)

    def message(self, partition_id: str, transaction_id: str) -> MessageDetail:
        """One message, alive or dead, and what it is to each group.

        >>> found = queen.admin.message(pushed.partition_id, pushed.transaction_id)  # doctest: +SKIP
        >>> found.groups[0].state  # doctest: +SKIP
        'completed'
        """
        path = path_of(*_MESSAGES, partition_id, transaction_id)
        return self._calls.call("GET", path, type=MessageDetail)

    def delete_message(self, partition_id: str, transaction_id: str) -> MessageDeleted:
        """Delete one message, for all groups, even while it is out; its dead letters stay.

        ``admin.delete_message(message.partition_id, message.transaction_id)``
        """
        path = path_of(*_MESSAGES, partition_id, transaction_id)
        # Sent again, it would say that there is no such message.
        return self._calls.call("DELETE", path, type=MessageDeleted, repeat=False)

    def retry_message(
        self, partition_id: str, transaction_id: str, *, group: str | None = None, payload: object = UNSET
    ) -> Retried:
        """Replay the dead letters of a message, as they are or with another payload.

        ``admin.retry_message(letter.partition_id, letter.transaction_id, payload={"n": 1})``
        """
        body: dict[str, object] = {"consumerGroup": group}
        if payload is not UNSET:
            body["payload"] = payload
        path = path_of(*_MESSAGES, partition_id, transaction_id, "retry")
        # Sent again, it would replay what has died again since.
        return self._calls.call("POST", path, body=body, type=Retried, repeat=False)

    def dead_letter_message(
        self, partition_id: str, transaction_id: str, *, group: str | None = None, error: str | None = None
    ) -> Moved:
        """Move a message to the dead letters, of one group or of all that have not completed it.

        ``admin.dead_letter_message(found.partition_id, found.transaction_id, error="poison")``
        """
        body = {"consumerGroup": group, "error": error}
        path = path_of(*_MESSAGES, partition_id, transaction_id, "dlq")
        # Sent again, it would say that the message is dead already.
        return self._calls.call("POST", path, body=body, type=Moved, repeat=False)

    def search_messages(
        self,
        queue: str,
        *,
        partition: str | None = None,
        prefix: str | None = None,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        transaction_id: str | None = None,
        path: str | None = None,
        value: str | None = None,
        contains: str | None = None,
        before: str | None = None,
        limit: int = 50,
    ) -> Found:
        """Messages of a queue, the newest first: by partition, time, transaction, a field or a piece of text.

        ``value`` is JSON, or text. It looks at so many messages, for so long, and says if it stopped there.

        >>> found = queen.admin.search_messages("orders", path="user.id", value="7")  # doctest: +SKIP
        >>> [message.data for message in found.messages], found.stopped  # doctest: +SKIP
        ([{'user': {'id': 7}}], None)
        """
        query = {
            "partition": partition, "prefix": prefix, "from": from_, "to": to,
            "transactionId": transaction_id, "path": path, "value": value, "contains": contains,
            "before": before, "limit": limit,
        }  # fmt: skip
        return self._calls.call(
            "GET", path_of("api", "v1", "queues", queue, "search"), query=query, type=Found
        )

    # Traces

    def traces(
        self, partition_id: str, transaction_id: str, *, limit: int = 1000, offset: int = 0
    ) -> list[Trace]:
        """What consumers noted about a message, the oldest first.

        >>> [t.data for t in queen.admin.traces(m.partition_id, m.transaction_id)]  # doctest: +SKIP
        [{'step': 'charged'}, {'step': 'shipped'}]
        """
        query = {"limit": limit, "offset": offset}
        path = path_of(*_TRACES, partition_id, transaction_id)
        return self._calls.call("GET", path, query=query, type=MessageTraces).traces

    def traces_by_name(
        self,
        name: str,
        *,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        limit: int = 100,
        offset: int = 0,
    ) -> Page[Trace]:
        """The traces under a name, over all messages, the newest first.

        ``admin.traces_by_name("order-17")``
        """
        query = {"from": from_, "to": to, "limit": limit, "offset": offset}
        found = self._calls.call("GET", path_of(*_TRACES, "by-name", name), query=query, type=TraceList)
        return Page(found.traces, limit=limit, offset=offset, total=found.total)

    def trace_names(self, *, search: str | None = None, limit: int = 100, offset: int = 0) -> Page[TraceName]:
        """The names of traces, the one seen last first: ``admin.trace_names(search="order-")``."""
        query = {"search": search, "limit": limit, "offset": offset}
        found = self._calls.call("GET", path_of(*_TRACES, "names"), query=query, type=TraceNameList)
        return Page(found.names, limit=limit, offset=offset, total=found.total)
