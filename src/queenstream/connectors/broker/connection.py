"""What the connectors to queues and streams share: the way to the broker, and its patience."""

from __future__ import annotations

import asyncio
import logging

from queenstream.client._async.client import AsyncQueen
from queenstream.client._async.lease_renewer import Lease, Renewer
from queenstream.client._base.brokers import backoff
from queenstream.connectors.base import Context
from queenstream.errors import BrokerUnreachable, ServerFailed, Unavailable

AWAY = (BrokerUnreachable, Unavailable, ServerFailed)  # it passes: a pipeline waits
log = logging.getLogger("queenstream.connectors")


async def connect(named: str | None, context: Context) -> AsyncQueen:
    """A client of the broker that an endpoint names, or of the run's.

    A broker that does not answer is an error at once, not something to wait for.
    """
    url, token = (context.url, context.token) if named is None else (named, None)
    async with AsyncQueen(url, token=token, timeout="1s") as probe:
        await probe.admin.health()
    return AsyncQueen(url, token=token, timeout="10s")


class Patience:
    """How long to wait after each failure in a row: ``what`` waits for a ``server``."""

    def __init__(self, what: str, server: str = "the broker") -> None:
        self._what = what
        self._server = server
        self._failures = 0

    def reset(self) -> None:
        """It worked."""
        self._failures = 0

    async def wait(self, error: Exception, most_seconds: float = 60.0) -> None:
        """It did not: say so, and wait a while."""
        self._failures += 1
        log.warning("%s waits for %s: %s", self._what, self._server, error)
        await asyncio.sleep(min(backoff(self._failures), most_seconds))


class Leases:
    """Leases that are renewed as long as an epoch needs them."""

    def __init__(self) -> None:
        self._renewer = Renewer()
        self._task = asyncio.get_running_loop().create_task(self._renewer.run())

    def add(self, lease: Lease) -> None:
        """Hold it from now on."""
        self._renewer.add(lease)

    def remove(self, lease: Lease) -> None:
        """It is not needed any more."""
        self._renewer.remove(lease)

    async def close(self) -> None:
        """Renew nothing any more."""
        self._renewer.end()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
