"""A user's function on each record: in a plain loop, in threads, or as many async calls at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from queenstream.core import durations
from queenstream.core.batches import Batch
from queenstream.core.records import copied
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import Operator, along, chosen, survivors
from queenstream.pipeline.plan import nodes
from queenstream.runtime.failures import GONE
from queenstream.runtime.function_results import SETTLE, no_record


class ApplyOperator(Operator[nodes.Apply]):
    """``shared``: another branch sees the same records, so the function gets copies of them."""

    def __init__(self, node: nodes.Apply, around: Surroundings, *, shared: bool) -> None:
        super().__init__(node, around)
        self._shared = shared
        self._timeout = None if node.timeout is None else node.timeout.total_seconds()
        self._direct = not node.is_async and node.concurrency == 1 and self._timeout is None
        self.may_wait |= not self._direct
        self._settle = SETTLE[node.mode](node.name)
        self._checked = _then(node.function, self._settle)
        self._threads: ThreadPoolExecutor | None = None

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        records = [copied(record) for record in batch.records] if self._shared else batch.records
        failed = self.counts.failed
        if not self._direct:
            results = await self._at_once(records, batch)
        elif self.node.mode == "map":
            results = await self._mapped(records, batch)
        else:
            results = await self.each(records, self._checked, batch)
        if self.node.mode == "filter":
            return chosen(batch, results)
        if self.counts.failed > failed:
            batch, results = survivors(batch, results)
        if self.node.mode == "map":
            return Batch(results, batch.times, batch.keys)
        return _flat(batch, results)

    async def _mapped(self, records: list[Any], batch: Batch) -> list[Any]:
        """As ``each``, with the look for None in the loop: a call for it costs as much as many a function."""
        results: list[Any] = []
        append = results.append
        function = self.node.function
        rest = iter(records)
        record: Any = None
        while True:
            try:
                for record in rest:
                    made = function(record)
                    if made is None:
                        raise no_record(self.node.name)
                    append(made)
            except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                went = along(batch, len(results))
                append(await self.guard.recover(record, error, self._checked, went))
            else:
                return results

    async def _at_once(self, records: list[Any], batch: Batch) -> list[Any]:
        """Several calls under way, results in the order of the records."""
        results: list[Any] = [GONE] * len(records)
        todo = iter(enumerate(records))

        async def work() -> None:
            for index, record in todo:
                try:
                    results[index] = await self._call(record)
                except Exception as error:  # noqa: BLE001 - whatever a user's function raises
                    went = along(batch, index)
                    results[index] = await self.guard.recover(record, error, self._call, went)

        try:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(min(self.node.concurrency, len(records))):
                    tasks.create_task(work())
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return results

    async def _call(self, record: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout) as limit:
                if self.node.is_async:
                    return self._settle(await self.node.function(record))
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._checked, record)
        except TimeoutError:
            if not limit.expired():
                raise  # the function's own
            told = durations.format(self._timeout or 0)
            raise TimeoutError(f"{self.node.name} took longer than {told}") from None

    @property
    def _pool(self) -> ThreadPoolExecutor:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(self.node.concurrency, f"queenstream-{self.node.name}")
        return self._threads

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)


def _flat(batch: Batch, results: list[list[Any]]) -> Batch:
    times, keys = batch.times, batch.keys
    return Batch(
        [record for made in results for record in made],
        None if times is None else [at for at, made in zip(times, results, strict=True) for _ in made],
        None if keys is None else [key for key, made in zip(keys, results, strict=True) for _ in made],
    )


def _then(function: Callable[[Any], Any], settle: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def call(record: Any) -> Any:
        return settle(function(record))

    return call
