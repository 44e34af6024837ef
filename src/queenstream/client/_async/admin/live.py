"""Administration of what goes on: live figures, lag over time, who did what, and a broker's settings."""

from __future__ import annotations

from datetime import datetime

from queenstream.client._async.retry import Calls
from queenstream.client._base.http import path_of
from queenstream.client._base.responses.audit import ActList, BrokerSettings, Me
from queenstream.client._base.responses.live import LagHistory, LiveFigures, LiveHistory

_API = ("api", "v1")


class AsyncLiveAdmin:
    """What goes on, and who did what."""

    _calls: Calls

    async def live_figures(self) -> LiveFigures:
        """What goes on this second: rates, latency, lag, brokers, pipelines.

        >>> (await queen.admin.live_figures()).rates.pushed  # doctest: +SKIP
        1250.0
        """
        return await self._calls.call("GET", path_of(*_API, "live"), type=LiveFigures)

    async def live_history(self, minutes: float = 15) -> LiveHistory:
        """What the figures of one broker were: ``(await admin.live_history()).points[-1].pushed``."""
        query = {"minutes": minutes}
        return await self._calls.call("GET", path_of(*_API, "live", "history"), query=query, type=LiveHistory)

    async def group_lag(
        self, group: str, *, queue: str | None = None, partition: str | None = None
    ) -> LagHistory:
        """How far a group was behind over time, by queue or in one partition; kept once somebody has asked.

        >>> (await queen.admin.group_lag("billing")).series[0].points[-1].lag  # doctest: +SKIP
        17
        """
        path = path_of(*_API, "consumer-groups", group, "lag")
        query = {"queue": queue, "partition": partition}
        return await self._calls.call("GET", path, query=query, type=LagHistory)

    async def acts(
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

        >>> [(a.subject, a.action) for a in (await queen.admin.acts(target="orders")).acts]  # doctest: +SKIP
        [('ada', 'clear_queue')]
        """
        query = {
            "before": before, "subject": subject, "action": action, "target": target, "from": from_, "to": to,
            "limit": limit,
        }  # fmt: skip
        return await self._calls.call("GET", path_of(*_API, "audit"), query=query, type=ActList)

    async def me(self) -> Me:
        """Who this client is to the broker, and what it may do: ``(await admin.me()).role``."""
        return await self._calls.call("GET", path_of(*_API, "system", "me"), type=Me)

    async def settings(self) -> BrokerSettings:
        """What a broker runs with, secrets masked: ``(await admin.settings()).settings["pool"].value``."""
        return await self._calls.call("GET", path_of(*_API, "system", "settings"), type=BrokerSettings)
