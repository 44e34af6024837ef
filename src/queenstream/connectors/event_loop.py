"""An event loop beside whoever is no coroutine, or has loops that come and go."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Events:
    """An event loop in a thread of its own, for readers, writers and look-ups.

    >>> events = Events("example")
    >>> events.run(asyncio.sleep(0, "done"))
    'done'
    >>> events.close()
    """

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=self._loop.run_forever, name=f"queenstream {name}", daemon=True
        )
        self._thread.start()

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin it; its outcome can be waited for, here or in another loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for it."""
        return self.start(work).result()

    def close(self) -> None:
        """Let it end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
