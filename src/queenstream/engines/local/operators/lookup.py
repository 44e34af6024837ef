"""Look-ups: all keys of a batch are asked for together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from queenstream.connectors import Context
from queenstream.connectors.lookups import Finder, lookup_for
from queenstream.core.batches import Batch
from queenstream.engines.local.failures import Surroundings
from queenstream.engines.local.operators.base import Operator, along, chosen
from queenstream.pipeline.lookups import Found, Joining, answered, failures
from queenstream.pipeline.plan import nodes
from queenstream.runtime.failures import GONE, may_retry


class LookupOperator(Operator[nodes.Lookup]):
    """Asks a finder of its own, which connects with the first record."""

    def __init__(self, node: nodes.Lookup, around: Surroundings) -> None:
        super().__init__(node, around)
        self.may_wait = True
        self._sleep = around.sleep
        self._context = Context(around.pipeline, node.name, around.url, token=around.token)
        self._joining = Joining.of(node)
        self._finder: Finder | None = None

    async def process(self, inputs: Sequence[Batch]) -> Batch:
        [batch] = inputs
        keys = await self.each_pure(batch, self._joining.key)
        found = await self._find([None if key is GONE else key for key in keys])
        attempts = await self._again(batch.records, keys, found)
        rows = [
            None if key is GONE else self._row(batch, index, each, attempts[index])
            for index, (key, each) in enumerate(zip(keys, found, strict=True))
        ]
        kept = chosen(batch, [row is not None for row in rows])
        return Batch([row for row in rows if row is not None], kept.times, kept.keys)

    async def _again(self, records: list[Any], keys: list[Any], found: list[Found]) -> list[int]:
        """Ask again, together, for what could not be answered; how many tries each record had."""
        attempts = [1] * len(records)
        attempt = 1
        while failed := [
            at for at, error in failures(found) if may_retry(self.node, records[at], error, attempts[at])
        ]:
            await self._sleep(self.node.policy.pause(attempt).total_seconds())
            self.counts.retried += len(failed)
            attempt += 1
            for index, each in zip(failed, await self._find([keys[at] for at in failed]), strict=True):
                found[index] = each
                attempts[index] = attempt
        return attempts

    def _row(self, batch: Batch, index: int, found: Found, attempts: int) -> dict[str, Any] | None:
        """The row; None: it is left out, or has failed."""
        record = batch.records[index]
        try:
            return self._joining.row(record, answered(found))
        except Exception as error:  # noqa: BLE001 - of the look-up, or a record that has no fields
            self.guard.give_up(record, error, along(batch, index), attempts)
            return None

    async def _find(self, keys: list[Any]) -> list[Found]:
        if self._finder is None:
            self._finder = Finder(self.node, lookup_for(self.node, self._context))
        return await asyncio.wrap_future(self._finder.start(keys))

    def close(self) -> None:
        if self._finder is not None:
            self._finder.close()
