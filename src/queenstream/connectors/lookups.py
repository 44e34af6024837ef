"""Look-ups of pipelines: keys of a batch asked for together, and what was found remembered for a while.

A ``Lookup`` asks one kind of table; a ``Finder`` stands before it with a cache and a limit of time. An engine
asks the finder, from whatever loop or thread it is in: the connection lives in a loop of its own, since a
task of Spark begins a new one for each batch. Tasks come and go while their process stays, so there the
finders of a process are kept between them (``kept_finder``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import fields
from threading import Lock
from typing import Any, Protocol, TypeAlias

from queenstream.connectors.base import Context
from queenstream.connectors.event_loop import Events
from queenstream.core import durations
from queenstream.pipeline import endpoints
from queenstream.pipeline.endpoints import Endpoint
from queenstream.pipeline.lookups import Found, Joining
from queenstream.pipeline.plan import nodes

Key: TypeAlias = tuple[Any, ...]

MOST_FINDERS = 16  # of a process of Spark
_GONE_SECONDS = 5.0


class Lookup(Protocol):
    """Asks a table."""

    async def open(self) -> None:
        """Connect; say what is wrong with the table."""
        ...

    async def fetch(self, keys: Sequence[Key]) -> list[Found]:
        """What is there for each of these keys, none of which is asked twice; raises if nobody answers."""
        ...

    async def close(self) -> None:
        """Let go of what is held."""
        ...


def lookup_for(node: nodes.Lookup, context: Context) -> Lookup:
    """What asks the table of a step."""
    return _LOOKUPS[type(node.table)](node, context)


class Finder:
    """Finds keys, in the cache or in the table."""

    def __init__(
        self, node: nodes.Lookup, lookup: Lookup, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._title = node.table.title
        self._lookup = lookup
        self._open = False
        self._events = Events(f"look-up {node.name}")
        self._turn: asyncio.Lock | None = None
        self._timeout = node.timeout.total_seconds()
        self._max_age = node.max_age.total_seconds()
        self._most = node.cache
        self._clock = clock
        self._known: OrderedDict[Key, tuple[float, Found]] = OrderedDict()

    def find(self, keys: Sequence[Key | None]) -> list[Found]:
        """What there is for each key, in their order; None as a key: nothing. Waits."""
        return self.start(keys).result()

    def start(self, keys: Sequence[Key | None]) -> Future[list[Found]]:
        """The same, to be waited for."""
        return self._events.start(self._find(keys))

    def close(self) -> None:
        """Let go of the table."""
        with contextlib.suppress(Exception):  # nobody needs it any more
            self._events.start(self._lookup.close()).result(_GONE_SECONDS)
        self._events.close()

    async def _find(self, keys: Sequence[Key | None]) -> list[Found]:
        now = self._clock()
        found: dict[Key, Found] = {}
        asked: list[Key] = []
        for key in dict.fromkeys(key for key in keys if key is not None):
            known = self._known.get(key)
            if known is not None and known[0] > now:
                self._known.move_to_end(key)
                found[key] = known[1]
            else:
                asked.append(key)
        if asked:
            found |= await self._ask(asked)
        return [None if key is None else found[key] for key in keys]

    async def _ask(self, keys: list[Key]) -> dict[Key, Found]:
        if self._turn is None:
            self._turn = asyncio.Lock()
        try:
            async with asyncio.timeout(self._timeout) as limit, self._turn:
                if not self._open:
                    await self._lookup.open()
                    self._open = True
                answers = await self._lookup.fetch(keys)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is an error of each record
            await self._drop()
            if isinstance(error, TimeoutError) and limit.expired():
                told = durations.format(self._timeout)
                error = TimeoutError(f"looking up {len(keys)} keys in {self._title} took longer than {told}")
            return dict.fromkeys(keys, error)
        found = dict(zip(keys, answers, strict=True))
        self._remember(found)
        return found

    async def _drop(self) -> None:
        """Begin anew with the next one: what is held may be lost, or in the middle of something."""
        if self._open:
            self._open = False
            with contextlib.suppress(Exception):
                async with asyncio.timeout(_GONE_SECONDS):
                    await self._lookup.close()

    def _remember(self, found: Mapping[Key, Found]) -> None:
        until = self._clock() + self._max_age
        for key, value in found.items():
            if not isinstance(value, Exception):
                self._known[key] = (until, value)
                self._known.move_to_end(key)
        while len(self._known) > self._most:
            self._known.popitem(last=False)


_kept: OrderedDict[tuple[str, ...], Finder] = OrderedDict()
_keeping = Lock()


def kept_finder(node: nodes.Lookup, context: Context) -> Finder:
    """The finder of this process for a step; the one that was used longest ago makes room."""
    identity = _identity(node, context)
    with _keeping:
        finder = _kept.get(identity)
        if finder is None:
            finder = _kept[identity] = Finder(node, lookup_for(node, context))
        _kept.move_to_end(identity)
        gone = [_kept.popitem(last=False)[1] for _ in range(len(_kept) - MOST_FINDERS)]
    for old in gone:
        old.close()
    return finder


def _identity(node: nodes.Lookup, context: Context) -> tuple[str, ...]:
    """Steps that are told the same of the same table share what was found."""
    told = (node.on, node.fields, node.cache, node.max_age, node.timeout, context.url, context.token)
    table = [repr(getattr(node.table, each.name)) for each in fields(node.table)]
    return (node.table.kind, *table, *map(repr, told))


class MemoryLookup:
    """Records that are at hand; of several with one key it is the last one."""

    def __init__(self, node: nodes.Lookup, context: Context) -> None:  # noqa: ARG002 - as all
        assert isinstance(node.table, endpoints.Memory)
        theirs = Joining(tuple((name, name) for _, name in node.on), None, None, "left")
        self._rows = {theirs.key(record): theirs.row(record, None) for record in node.table.records}

    async def open(self) -> None:
        """It is at hand."""

    async def fetch(self, keys: Sequence[Key]) -> list[Found]:
        return [self._rows.get(key) for key in keys]

    async def close(self) -> None:
        """There is nothing to let go of."""


def _postgres(node: nodes.Lookup, context: Context) -> Lookup:
    from queenstream.connectors.postgres.lookup import PostgresLookup  # with its driver: not for everybody

    return PostgresLookup(node, context)


def _cassandra(node: nodes.Lookup, context: Context) -> Lookup:
    from queenstream.connectors.cassandra.lookup import CassandraLookup  # as above

    return CassandraLookup(node, context)


def _queue(node: nodes.Lookup, context: Context) -> Lookup:
    from queenstream.connectors.broker.lookup import QueueLookup

    return QueueLookup(node, context)


_LOOKUPS: Mapping[type[Endpoint], Callable[[nodes.Lookup, Context], Lookup]] = {
    endpoints.Cassandra: _cassandra,
    endpoints.Memory: MemoryLookup,
    endpoints.Postgres: _postgres,
    endpoints.Queue: _queue,
}
