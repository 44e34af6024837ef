# Generated from _async/lease_renewer.py by `python tools/async_to_sync.py`; do not edit.
"""Leases are renewed at a third of their time, for as long as somebody works under them."""

from __future__ import annotations

import logging
import time
from typing import Protocol

from queenstream.client._sync import transport
from queenstream.errors import QueenstreamError

log = logging.getLogger("queenstream.client")


class Lease(Protocol):
    """Of messages or of a window."""

    seconds: float
    lost: bool

    def hold(self, timeout: float | None = None) -> bool: ...


class Renewer:
    """Renews the leases that were added and not removed. One for each consumer."""

    def __init__(self) -> None:
        self._held: dict[Lease, tuple[float, float]] = {}  # when to renew, when it is over
        self._planned = float("inf")  # when it looks next
        self._wake = transport.Event()
        self._ended = False

    def add(self, lease: Lease) -> None:
        """Hold this one from now on."""
        now = time.monotonic()
        due = now + lease.seconds / 3
        self._held[lease] = due, now + lease.seconds
        if due < self._planned:
            self._wake.set()

    def remove(self, lease: Lease) -> None:
        """The work under it is over."""
        self._held.pop(lease, None)

    def end(self) -> None:
        """No more leases: ``run`` returns."""
        self._ended = True
        self._wake.set()

    def run(self) -> None:
        """Until ``end``."""
        while not self._ended:
            dues = [due for due, _ in list(self._held.values())]
            self._planned = min(dues, default=float("inf"))
            left = self._planned - time.monotonic()
            if left > 0:
                self._wake.wait(None if not dues else left)
            self._wake.clear()
            for lease, (due, over) in list(self._held.items()):
                if due <= time.monotonic() and not self._ended:
                    self._renew(lease, over)

    def _renew(self, lease: Lease, over: float) -> None:
        sent = time.monotonic()
        step = lease.seconds / 3
        try:
            renewed = lease.hold(timeout=max(0.05, min(step, over - sent)))
        except QueenstreamError as error:
            log.warning("a lease could not be renewed yet: %s", error)
            if time.monotonic() >= over:
                self._lost(lease)
            elif lease in self._held:
                self._held[lease] = time.monotonic() + step / 4, over
            return
        if not renewed:
            self._lost(lease)
        elif lease in self._held:
            self._held[lease] = sent + step, sent + lease.seconds

    def _lost(self, lease: Lease) -> None:
        lease.lost = True
        self._held.pop(lease, None)
        log.warning("a lease is lost: what is worked on may come again, also to others")
