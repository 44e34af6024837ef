# Generated from _async/admin.py by `python tools/async_to_sync.py`: change that file, not this one.
"""``queen.admin``: everything that a broker shows and lets be done beside sending and consuming."""

from __future__ import annotations

from queenstream.client._sync._calls import Calls
from queenstream.client._sync.admin_groups import GroupAdmin
from queenstream.client._sync.admin_history import HistoryAdmin
from queenstream.client._sync.admin_letters import LetterAdmin
from queenstream.client._sync.admin_live import LiveAdmin
from queenstream.client._sync.admin_pipelines import PipelineAdmin
from queenstream.client._sync.admin_queues import QueueAdmin
from queenstream.client._sync.admin_rules import RulesAdmin
from queenstream.client._sync.admin_streams import StreamAdmin
from queenstream.client._sync.admin_system import SystemAdmin


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
