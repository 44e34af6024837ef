"""Functions that take records."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, cast

from queenstream.connectors.base import Context, Refusal
from queenstream.pipeline.endpoints import Function


class FunctionWriter:
    """Calls a ``Function`` with each row, or with lists of them; what it raises refuses those of the call."""

    def __init__(self, sink: Function, context: Context) -> None:  # noqa: ARG002 - as all writers
        self._function = cast(Callable[[Any], Any], sink.function)
        self._size = sink.batch_size or (sys.maxsize if sink.batch else None)
        self._is_async = inspect.iscoroutinefunction(sink.function) or inspect.iscoroutinefunction(
            getattr(sink.function, "__call__", None)  # noqa: B004 - an object whose call is async
        )

    async def open(self) -> None:
        """There is nothing to open."""

    async def write(self, epoch: str, rows: Sequence[Any]) -> list[Refusal]:  # noqa: ARG002 - it sees rows alone
        size = self._size
        calls: list[Any] = list(rows)
        if size is not None:
            calls = [calls[at : at + size] for at in range(0, len(calls), size)]
        if self._is_async:
            refused = await self._await_each(calls)
        else:
            # In a thread: it may block, and the engine has leases to renew meanwhile.
            refused = await asyncio.to_thread(self._call_each, calls)
        if size is None:
            return refused
        return [(call * size + at, error) for call, error in refused for at in range(len(calls[call]))]

    async def _await_each(self, calls: Sequence[Any]) -> list[Refusal]:
        refused: list[Refusal] = []
        for index, call in enumerate(calls):
            try:
                await self._function(call)
            except Exception as error:  # noqa: BLE001 - it is the user's, and the policy of the step decides
                refused.append((index, error))
        return refused

    def _call_each(self, calls: Sequence[Any]) -> list[Refusal]:
        refused: list[Refusal] = []
        for index, call in enumerate(calls):
            try:
                self._function(call)
            except Exception as error:  # noqa: BLE001 - as above
                refused.append((index, error))
        return refused

    async def close(self) -> None:
        """There is nothing to let go of."""
