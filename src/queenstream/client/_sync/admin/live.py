# Generated from _async/admin/live.py by `python tools/async_to_sync.py`; do not edit.
"""Administration of what goes on: live figures, lag over time, who did what, and a broker's settings."""

from __future__ import annotations

from datetime import datetime

from queenstream.client._base.http import path_of
from queenstream.client._base.responses.audit import ActList, BrokerSettings, Me
from queenstream.client._base.responses.live import LagHistory, LiveFigures, LiveHistory
from queenstream.client._sync.retry import Calls

_API = ("api", "v1")


class LiveAdmin:
    """What goes on, and who did what."""

    _calls: Calls

    def live_figures(self) -> LiveFigures:
        """What goes on this second: rates, latency, lag, brokers, pipelines.

        >>> queen.admin.live_figures().rates.pushed  # doctest: +SKIP
        1250.0
        """
        return self._calls.call("GET", path_of(*_API, "live"), type=LiveFigures)

    def live_history(self, minutes: float = 15) -> LiveHistory:
        """What the figures of one broker were: ``admin.live_history().points[-1].pushed``."""
        query = {"minutes": minutes}
        return self._calls.call("GET", path_of(*_API, "live", "history"), query=query, type=LiveHistory)

    def group_lag(self, group: str, *, queue: str | None = None, partition: str | None = None) -> LagHistory:
        """How far a group was behind over time, by queue or in one partition; kept once somebody has asked.

        >>> queen.admin.group_lag("billing").series[0].points[-1].lag  # doctest: +SKIP
        17
        """
        path = path_of(*_API, "consumer-groups", group, "lag")
        query = {"queue": queue, "partition": partition}
        return self._calls.call("GET", path, query=query, type=LagHistory)

    def acts(
        self,
        *,
        before: str | None = None,
        subject: str | None = None,
        action: str | None = None,
        target: str | None = None,
        from_: datetime | str | None = None,
        to: datetime | str | None = None,
        limit: int = 100,
    ) -> ActList:
        """Administrative acts, the newest first: who did what to what, when and from where.

        >>> [(a.subject, a.action) for a in queen.admin.acts(target="orders").acts]  # doctest: +SKIP
        [('ada', 'clear_queue')]
        """
        query = {
            "before": before, "subject": subject, "action": action, "target": target, "from": from_, "to": to,
            "limit": limit,
        }  # fmt: skip
        return self._calls.call("GET", path_of(*_API, "audit"), query=query, type=ActList)

    def me(self) -> Me:
        """Who this client is to the broker, and what it may do: ``admin.me().role``."""
        return self._calls.call("GET", path_of(*_API, "system", "me"), type=Me)

    def settings(self) -> BrokerSettings:
        """What a broker runs with, secrets masked: ``admin.settings().settings["pool"].value``."""
        return self._calls.call("GET", path_of(*_API, "system", "settings"), type=BrokerSettings)
