"""A sink for tests."""

from __future__ import annotations

import threading
from typing import Any


class Collected:
    """A sink that the test can wait for."""

    def __init__(self) -> None:
        self.rows: list[Any] = []
        self._more = threading.Condition()

    def __call__(self, row: Any) -> None:
        with self._more:
            self.rows.append(row)
            self._more.notify_all()

    def wait_for(self, so_many: int, seconds: float = 30) -> None:
        with self._more:
            assert self._more.wait_for(lambda: len(self.rows) >= so_many, seconds), f"only {self.rows}"
