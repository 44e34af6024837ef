"""``queen.admin``: everything that a broker shows and lets be done beside sending and consuming."""

from __future__ import annotations

from queenstream.client._async.admin.dead_letters import AsyncLetterAdmin
from queenstream.client._async.admin.groups import AsyncGroupAdmin
from queenstream.client._async.admin.history import AsyncHistoryAdmin
from queenstream.client._async.admin.live import AsyncLiveAdmin
from queenstream.client._async.admin.pipelines import AsyncPipelineAdmin
from queenstream.client._async.admin.queues import AsyncQueueAdmin
from queenstream.client._async.admin.rules import AsyncRulesAdmin
from queenstream.client._async.admin.streams import AsyncStreamAdmin
from queenstream.client._async.admin.system import AsyncSystemAdmin
from queenstream.client._async.retry import Calls


class AsyncAdmin(
    AsyncQueueAdmin,
    AsyncGroupAdmin,
    AsyncHistoryAdmin,
    AsyncLetterAdmin,
    AsyncStreamAdmin,
    AsyncPipelineAdmin,
    AsyncRulesAdmin,
    AsyncSystemAdmin,
    AsyncLiveAdmin,
):
    """One method for each administration route; what comes back has typed fields.

    Lists that can be long come by pages, with ``total`` and ``more``. A time is a ``datetime`` or ISO 8601.

    >>> async with AsyncQueen() as queen:  # doctest: +SKIP
    ...     orders = await queen.admin.queue("orders")
    ...     print(orders.messages.pending, [group.name for group in orders.groups])
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
