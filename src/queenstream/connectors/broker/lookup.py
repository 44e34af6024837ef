"""The latest message of a queue's partition, by the partition's name."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from queenstream.connectors.base import Context
from queenstream.connectors.broker.connection import connect
from queenstream.connectors.lookups import Key
from queenstream.connectors.validation import schema_of
from queenstream.errors import PayloadInvalid
from queenstream.pipeline.endpoints import Queue
from queenstream.pipeline.lookups import Found
from queenstream.pipeline.plan import nodes

AT_ONCE = 16  # requests


class QueueLookup:
    """Asks the broker for the last message of each partition, and takes none from anybody."""

    def __init__(self, node: nodes.Lookup, context: Context) -> None:
        assert isinstance(node.table, Queue)
        self._source = node.table
        self._context = context
        self._schema = schema_of(node.table.schema)

    async def open(self) -> None:
        self._queen = await connect(self._source.url, self._context)

    async def fetch(self, keys: Sequence[Key]) -> list[Found]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def latest(key: Key) -> Found:
            async with turns:
                return await self._latest(str(key[0]))

        return list(await asyncio.gather(*map(latest, keys)))

    async def _latest(self, partition: str) -> Found:
        if not partition:  # nobody's name; to the broker it would mean all
            return None
        page = await self._queen.admin.messages(queue=self._source.name, partition=partition, limit=1)
        if not page:
            return None
        try:
            data = page[0].data if self._schema is None else self._schema.coerce(page[0].data)
        except PayloadInvalid as error:
            return error
        if not isinstance(data, dict):
            return PayloadInvalid(
                f"the last message of {self._source.title}, partition {partition}, is no record but "
                f"{type(data).__name__}; push objects with named fields"
            )
        return data

    async def close(self) -> None:
        await self._queen.close()
