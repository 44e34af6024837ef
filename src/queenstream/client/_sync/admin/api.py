# Generated from _async/admin/api.py by `python tools/async_to_sync.py`; do not edit.
"""``queen.admin``: everything that a broker shows and lets be done beside sending and consuming."""

from __future__ import annotations

from queenstream.client._sync.admin.dead_letters import LetterAdmin
from queenstream.client._sync.admin.groups import GroupAdmin
from queenstream.client._sync.admin.history import HistoryAdmin
from queenstream.client._sync.admin.live import LiveAdmin
from queenstream.client._sync.admin.pipelines import PipelineAdmin
from queenstream.client._sync.admin.queues import QueueAdmin
from queenstream.client._sync.admin.rules import RulesAdmin
from queenstream.client._sync.admin.streams import StreamAdmin
from queenstream.client._sync.admin.system import SystemAdmin
from queenstream.client._sync.retry import Calls


class Admin(
    QueueAdmin,
    GroupAdmin,
    HistoryAdmin,
    LetterAdmin,
    StreamAdmin,
    PipelineAdmin,
    RulesAdmin,
    SystemAdmin,
    LiveAdmin,
):
    """One method for each administration route; what comes back has typed fields.

    Lists that can be long come by pages, with ``total`` and ``more``. A time is a ``datetime`` or ISO 8601.

    >>> with Queen() as queen:  # doctest: +SKIP
    ...     orders = queen.admin.queue("orders")
    ...     print(orders.messages.pending, [group.name for group in orders.groups])
    """

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
