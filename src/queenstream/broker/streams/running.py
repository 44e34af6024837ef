"""Runs streams: reads what is new in their sources, fills their windows, closes those that are ripe.

Any broker can do it and all try; a lock in the database lets one at a time. So nothing of it is in memory: a
broker that dies in the middle leaves a transaction that did not happen.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from queenstream import windows
from queenstream.broker.streams.assigning import Batch, Filling, Fresh, OpenSession, assign
from queenstream.broker.streams.definition import GLOBAL, Source, Stream, from_row
from queenstream.broker.wire import PushItem, PushResult
from queenstream.errors import Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

PARTITIONS, MESSAGES = 200, 500  # read in one step: partitions of each source, messages of each
CLOSE = 1000  # windows closed in one step
EMPTY = 1000  # empty windows made in one step
SPACING_SECONDS = 0.02  # between steps for what is pushed all the time
RETRY_SECONDS = 0.05
NET_SECONDS = 5.0  # the slow look, should a notice be lost

_LOCK = "select pg_try_advisory_xact_lock(72006, $1)"
_READ = "select * from queen.stream_read($1, $2, $3, $4)"
_ADVANCE = "select queen.stream_advance($1, $2, $3, $4, $5, $6)"
_PARTS = "select queen.add_parts($1, $2, $3, $4, $5, $6)"
_FILL = """
    insert into queen.windows as w (stream_id, key, start_us, end_us, messages, first_at, last_at)
    select $1, t.* from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::timestamptz[],
        $7::timestamptz[]) as t (key, start_us, end_us, messages, first_at, last_at)
    on conflict (stream_id, key, start_us, end_us) do update
    set messages = w.messages + excluded.messages, first_at = least(w.first_at, excluded.first_at),
        last_at = greatest(w.last_at, excluded.last_at)
    where w.closed_at is null
    returning id, key, start_us, end_us
"""
_GROW = """
    update queen.windows w
    set start_us = t.start_us, end_us = t.end_us, messages = w.messages + t.messages,
        first_at = least(w.first_at, t.first_at), last_at = greatest(w.last_at, t.last_at)
    from unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::timestamptz[], $6::timestamptz[])
        as t (id, start_us, end_us, messages, first_at, last_at)
    where w.id = t.id
"""
_MERGE_PARTS = "update queen.window_parts set window_id = $1 where window_id = any($2)"
_MERGE = """
    with gone as (delete from queen.windows where id = any($2) returning messages, first_at, last_at)
    update queen.windows w
    set messages = w.messages + gone.messages, first_at = least(w.first_at, gone.first_at),
        last_at = greatest(w.last_at, gone.last_at)
    from (select sum(messages) as messages, min(first_at) as first_at, max(last_at) as last_at from gone) gone
    where w.id = $1
"""
_LATE = """
    with late as (
        insert into queen.late_messages (stream_id, key, partition_id, message_id, event_us, start_us, end_us,
            lateness_us, reason, noted_at)
        select $1, t.*, coalesce($10, clock_timestamp())
        from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[],
            $8::bigint[], $9::text[]) as t
        returning 1
    )
    update queen.streams set late = late + (select count(*) from late) where id = $1
"""
_POSITIONS = """
    insert into queen.stream_keys as k (stream_id, key, position)
    select $1, t.* from unnest($2::text[], $3::bigint[]) as t
    on conflict (stream_id, key) do update set position = excluded.position
"""
_SESSIONS = """
    select id, key, start_us, end_us from queen.windows
    where stream_id = $1 and key = any($2) and closed_at is null
"""
_SOURCES = """
    update queen.stream_sources s set highest_us = t.highest_us, idle = t.idle, quiet_since = t.quiet_since
    from unnest($2::integer[], $3::bigint[], $4::boolean[], $5::timestamptz[])
        as t (queue_id, highest_us, idle, quiet_since)
    where s.stream_id = $1 and s.queue_id = t.queue_id
"""
_RIPE = """
    select id, key, start_us, end_us, first_at, messages from queen.windows
    where stream_id = $1 and closed_at is null and end_us <= $2 order by end_us, start_us, key limit $3
"""
_FULL = """
    select w.id, w.key, w.start_us, w.end_us, w.first_at, w.messages from queen.windows w
    join queen.stream_keys k on k.stream_id = w.stream_id and k.key = w.key and k.position >= w.end_us
    where w.stream_id = $1 and w.closed_at is null order by w.last_at, w.end_us, w.key limit $2
"""
_CLOSED = """
    update queen.windows w set closed_at = coalesce($4, clock_timestamp()), partition_id = t.partition_id,
        message_id = t.message_id
    from unnest($1::bigint[], $2::bigint[], $3::bigint[]) as t (id, partition_id, message_id)
    where w.id = t.id
"""
_NEXT = "select min(end_us) from queen.windows where stream_id = $1 and closed_at is null"
_LOW = """
    select min(next.ready_at) from queen.stream_sources s
    cross join lateral (
        select c.ready_at from queen.cursors c where c.group_id = s.group_id and c.ready_at is not null
        order by c.ready_at limit 1) next
    where s.stream_id = $1
"""


class Busy(Exception):
    """Another broker has the stream."""


class Streams:
    """The streams that this broker knows, each with a task of its own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._runners: dict[str, Runner] = {}
        self._by_queue: dict[str, list[Runner]] = {}
        self._loading = asyncio.Lock()
        self.closing = False

    def get(self, name: str) -> Stream | None:
        """A stream by its name, as this broker knows it."""
        runner = self._runners.get(name)
        return None if runner is None else runner.stream

    def by_id(self, stream_id: int) -> Stream | None:
        return next((r.stream for r in self._runners.values() if r.stream.id == stream_id), None)

    async def find(self, name: str) -> Stream | None:
        """A stream by its name; looked for if it is not known."""
        if name not in self._runners:
            await self.load()
        return self.get(name)

    async def load(self) -> None:
        """Learn which streams there are."""
        async with self._loading:
            if self.closing:
                return
            known = await read_streams(self._broker)
            for name in [name for name, r in self._runners.items() if known.get(name) != r.stream]:
                old = self._runners[name]
                fresh = known.get(name)
                if fresh is not None and fresh.id == old.stream.id:
                    old.stream = fresh
                else:
                    del self._runners[name]
                    await old.stop()
            for name, stream in known.items():
                if name not in self._runners:
                    self._runners[name] = Runner(self._broker, stream)
            self._by_queue = {}
            for runner in self._runners.values():
                for source in runner.stream.sources:
                    self._by_queue.setdefault(source.name, []).append(runner)

    def reads(self, queue: str) -> bool:
        """Whether a stream has this queue as a source."""
        return queue in self._by_queue

    def stored(self, queues: Iterable[str]) -> None:
        """Something was pushed into these queues."""
        if self._by_queue:
            for queue in queues:
                for runner in self._by_queue.get(queue, ()):
                    runner.wake()

    def asked(self, name: str) -> None:
        """Somebody polls: look, if it is time."""
        runner = self._runners.get(name)
        if runner is not None and runner.due():
            runner.wake()

    def wake_all(self) -> None:
        for runner in self._runners.values():
            runner.wake()

    async def settle(self, name: str) -> None:
        """Do now what there is to do for a stream."""
        runner = self._runners.get(name)
        if runner is not None:
            await runner.step()

    async def close(self) -> None:
        self.closing = True
        for runner in self._runners.values():
            await runner.stop()


async def read_streams(broker: Broker, name: str | None = None) -> dict[str, Stream]:
    """Streams with their sources, from the database."""
    streams = {row["id"]: from_row(row) for row in await broker.database.admin("stream_rows", name)}
    for row in await broker.database.admin("stream_source_rows", None):
        stream = streams.get(row["stream_id"])
        if stream is not None:
            stream.sources.append(Source(*tuple(row)[1:]))
    return {stream.name: stream for stream in streams.values()}


class Runner:
    """Keeps one stream going."""

    def __init__(self, broker: Broker, stream: Stream) -> None:
        self._broker = broker
        self.stream = stream
        self._wanted = asyncio.Event()
        self._due: float | None = None  # when the next window is ripe, in seconds since the epoch
        self._stepping = asyncio.Lock()
        self._stopped = False
        self._wanted.set()
        self._task = asyncio.create_task(self._run(), name=f"stream {stream.name}")

    def wake(self) -> None:
        self._wanted.set()

    def due(self) -> bool:
        """Whether a window may be ripe by now."""
        return self._due is not None and self._now() >= self._due

    async def stop(self) -> None:
        self._stopped = True
        self._wanted.set()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    def _now(self) -> float:
        turned = self._broker.database.now()
        return time.time() if turned is None else turned.timestamp()

    async def _run(self) -> None:
        while not self._stopped:
            try:
                await self._wait()
                if not self._broker.maintenance:
                    await self.step()
                await asyncio.sleep(SPACING_SECONDS)
            except Unavailable as error:
                log.warning("stream %s: %s", self.stream.name, error)
                self._broker.metrics.background_failed("streams")
                await asyncio.sleep(1)
                self._wanted.set()
            except Exception:
                log.exception("stream %s", self.stream.name)
                self._broker.metrics.background_failed("streams")
                await asyncio.sleep(1)
                self._wanted.set()

    async def _wait(self) -> None:
        """Until something is pushed, or a window is ripe."""
        give_up = time.monotonic() + NET_SECONDS
        while not self._wanted.is_set() and not self.due() and time.monotonic() < give_up:
            seconds = NET_SECONDS if self._due is None else max(0.0, self._due - self._now())
            if self._broker.database.now() is not None:  # a clock that is turned by hand
                seconds = min(seconds, 0.02)
            try:
                async with asyncio.timeout(min(seconds, NET_SECONDS)):
                    await self._wanted.wait()
            except TimeoutError:
                pass
        self._wanted.clear()

    async def step(self) -> None:
        """Assign what is new and close what is ripe, until there is nothing left to do."""
        async with self._stepping:
            try:
                await self._assign_all()
                while await self._close():
                    pass
            except Busy:  # the other one does it; look again, should it die
                self._due = self._now() + RETRY_SECONDS

    async def _assign_all(self) -> None:
        while await self._assign():
            pass

    # Assigning

    async def _assign(self) -> bool:
        """One step; whether there may be more to read."""

        async def work(connection: Any) -> bool:
            stream = await self._take(connection)
            by_event = stream.event_time_path is not None
            rows = await connection.fetch(_READ, stream.id, PARTITIONS, MESSAGES, by_event)
            more = any(row["more"] for row in rows) or len(rows) >= PARTITIONS
            read, upto = self._fresh(stream, rows, by_event)
            await self._write(connection, stream, read, more=more)
            await self._advance(connection, stream, rows, upto)
            return more

        more: bool = await self._broker.database.transaction(work)
        return more

    async def _take(self, connection: Any) -> Stream:
        """The stream as it is now, for this transaction alone."""
        if not await connection.fetchval(_LOCK, self.stream.id):
            raise Busy
        row = await connection.fetchrow("select * from queen.streams where id = $1", self.stream.id)
        if row is None:
            raise Busy  # deleted: the next load stops this runner
        stream = from_row(row)
        for source in await connection.fetch(
            "select s.queue_id, q.name, s.group_id, s.highest_us, s.idle, s.quiet_since "
            "from queen.stream_sources s join queen.queues q on q.id = s.queue_id where s.stream_id = $1",
            stream.id,
        ):
            stream.sources.append(Source(*source))
        return stream

    def _fresh(
        self, stream: Stream, rows: list[Any], by_event: bool
    ) -> tuple[list[Fresh], dict[int, tuple[int, datetime] | None]]:
        """What was read, cut so that no message is taken before an earlier one of another partition.

        Only where the order between partitions counts: by event time (a partition that is ahead would make
        the others late) and for counts. Also the last id taken of each partition that was cut, and the time
        of the next.
        """
        ordered = by_event or stream.window_type == "count"
        bound: int | None = None
        if ordered:
            ends = [row["created"][-1] for row in rows if row["more"] and row["created"]]
            if len(rows) >= PARTITIONS:
                ends.append(max(row["created"][0] for row in rows if row["created"]))
            bound = min(ends, default=None)
        read: list[Fresh] = []
        cut: dict[int, tuple[int, datetime] | None] = {}
        for row in rows:
            ids, created, payloads = row["ids"] or [], row["created"] or [], row["payloads"]
            key = row["partition_name"] if stream.partitioned else GLOBAL
            fresh = Fresh(row["queue_id"], row["partition_id"], key, row["acked_id"], ids, created)
            if by_event:
                fresh.payloads = self._plain(payloads or [], row["keys"] or [])
            if bound is not None and created and created[-1] > bound:
                keep = sum(at <= bound for at in created)
                last = ids[keep - 1] if keep else row["acked_id"]
                cut[fresh.partition_id] = (last, windows.from_us(created[keep]))
                fresh.ids, fresh.created = ids[:keep], created[:keep]
                fresh.payloads = fresh.payloads and fresh.payloads[:keep]
            read.append(fresh)
        return read, cut

    def _plain(self, payloads: list[bytes], keys: list[str | None]) -> list[bytes]:
        keyring = self._broker.keyring
        plain: list[bytes] = []
        for payload, key in zip(payloads, keys, strict=True):
            if key is None:
                plain.append(payload)
            elif keyring is None:
                raise Unavailable(
                    "a source is encrypted and this broker has no key; set QUEEN_ENCRYPTION_KEYS"
                )
            else:
                plain.append(keyring.decrypt(key, payload))
        return plain

    async def _write(self, connection: Any, stream: Stream, read: list[Fresh], *, more: bool) -> None:
        keys = sorted({fresh.key for fresh in read if fresh.ids})
        sessions: dict[str, list[OpenSession]] = {}
        positions: dict[str, int] = {}
        if stream.window_type == "session":
            for row in await connection.fetch(_SESSIONS, stream.id, keys):
                span = windows.Span(row["start_us"], row["end_us"])
                sessions.setdefault(row["key"], []).append(OpenSession(row["id"], span))
        elif stream.window_type == "count":
            rows = await connection.fetch(
                "select key, position from queen.stream_keys where stream_id = $1 and key = any($2)",
                stream.id,
                keys,
            )
            positions = {row["key"]: row["position"] for row in rows}
        batch = assign(stream, read, stream.watermark_us, sessions, positions)
        await self._write_windows(connection, stream, batch)
        if batch.late:
            await self._write_late(connection, stream, batch)
        if batch.positions:
            await connection.execute(
                _POSITIONS, stream.id, list(batch.positions), list(batch.positions.values())
            )
        if stream.event_time_path is not None:
            await self._watermark(connection, stream, batch, more=more)

    async def _write_windows(self, connection: Any, stream: Stream, batch: Batch) -> None:
        new = {name: filling for name, filling in batch.windows.items() if not filling.absorbed}
        ids: dict[tuple[str, int, int], int] = {}
        grown = [(name, filling) for name, filling in batch.windows.items() if filling.absorbed]
        for name, filling in grown:
            survivor, *gone = dict.fromkeys(filling.absorbed)
            ids[name] = survivor
            if gone:
                await connection.execute(_MERGE_PARTS, survivor, gone)
                await connection.execute(_MERGE, survivor, gone)
        if grown:
            await connection.execute(
                _GROW,
                [ids[name] for name, _ in grown],
                [start for (_, start, _), _ in grown],
                [end for (_, _, end), _ in grown],
                *_columns([filling for _, filling in grown]),
            )
        if new:
            rows = await connection.fetch(
                _FILL,
                stream.id,
                [key for key, _, _ in new],
                [start for _, start, _ in new],
                [end for _, _, end in new],
                *_columns(list(new.values())),
            )
            ids.update({(row["key"], row["start_us"], row["end_us"]): row["id"] for row in rows})
            if stream.emit_empty and stream.window_type in ("tumbling", "sliding"):
                await self._remember_keys(connection, stream, new)
        runs = [(ids[name], run) for name, filling in batch.windows.items() for run in filling.runs]
        if runs:
            await connection.execute(
                _PARTS,
                [window for window, _ in runs],
                [run.partition_id for _, run in runs],
                [run.first for _, run in runs],
                [run.last for _, run in runs],
                [run.count for _, run in runs],
                [run.before for _, run in runs],
            )

    async def _remember_keys(
        self, connection: Any, stream: Stream, new: dict[tuple[str, int, int], Filling]
    ) -> None:
        """From where on a key has a window for every time: its first one."""
        firsts: dict[str, int] = {}
        for key, start, _ in new:
            firsts[key] = min(start, firsts.get(key, start))
        await connection.execute(
            "insert into queen.stream_keys (stream_id, key, position) "
            "select $1, t.* from unnest($2::text[], $3::bigint[]) as t on conflict do nothing",
            stream.id,
            list(firsts),
            list(firsts.values()),
        )

    async def _write_late(self, connection: Any, stream: Stream, batch: Batch) -> None:
        late = batch.late
        await connection.execute(
            _LATE,
            stream.id,
            [one.key for one in late],
            [one.partition_id for one in late],
            [one.message_id for one in late],
            [one.event_us for one in late],
            [one.span and one.span.start for one in late],
            [one.span and one.span.end for one in late],
            [one.lateness_us for one in late],
            [one.reason for one in late],
            self._broker.database.now(),
        )

    async def _watermark(self, connection: Any, stream: Stream, batch: Batch, *, more: bool) -> None:
        """Move the watermark by what was seen; a source that was read to its end may become idle."""
        now: datetime = await connection.fetchval(
            "select coalesce($1, clock_timestamp())", self._broker.database.now()
        )
        timeout = stream.idle_timeout_us
        before = [(source.highest_us, source.idle, source.quiet_since) for source in stream.sources]
        for source in stream.sources:
            highest = batch.highest.get(source.queue_id)
            if highest is not None:
                source.highest_us = max(highest, highest if source.highest_us is None else source.highest_us)
                source.idle, source.quiet_since = False, None
            if not more:
                source.quiet_since = source.quiet_since or now
                if timeout is not None and now - source.quiet_since >= timedelta(microseconds=timeout):
                    source.idle = True
        if before != [(source.highest_us, source.idle, source.quiet_since) for source in stream.sources]:
            await connection.execute(
                _SOURCES,
                stream.id,
                [source.queue_id for source in stream.sources],
                [source.highest_us for source in stream.sources],
                [source.idle for source in stream.sources],
                [source.quiet_since for source in stream.sources],
            )
        mark = windows.Watermark(tuple(source.name for source in stream.sources), time=stream.watermark_us)
        mark.highest = {s.name: s.highest_us for s in stream.sources if s.highest_us is not None}
        mark.idle = {source.name for source in stream.sources if source.idle}
        reached = mark.settle()
        if not mark.holders:  # all are idle: nothing that is open waits for anything
            last = await connection.fetchval(
                "select max(end_us) from queen.windows where stream_id = $1 and closed_at is null", stream.id
            )
            if last is not None:
                reached = mark.raise_to(last + stream.grace_us)
        if reached is not None and reached != stream.watermark_us:
            await connection.execute(
                "update queen.streams set watermark_us = $2 where id = $1", stream.id, reached
            )

    async def _advance(
        self, connection: Any, stream: Stream, rows: list[Any], cut: dict[int, tuple[int, datetime] | None]
    ) -> None:
        groups = {source.queue_id: source.group_id for source in stream.sources}
        ids: list[int] = []
        seqs: list[int] = []
        following: list[datetime | None] = []
        for row in rows:
            stop = cut.get(row["partition_id"])
            if stop is not None:
                ids.append(stop[0])
                seqs.append(0)
                following.append(stop[1])
            else:
                ids.append(row["last_id"])
                seqs.append(row["last_seq"])
                following.append(
                    windows.from_us(row["created"][-1]) if row["more"] and row["created"] else None
                )
        if rows:
            await connection.execute(
                _ADVANCE,
                [groups[row["queue_id"]] for row in rows],
                [row["partition_id"] for row in rows],
                ids,
                seqs,
                following,
                self._broker.database.now(),
            )

    # Closing

    async def _close(self) -> bool:
        """Close what is ripe, a step of it; whether there may be more."""
        by_clock = self.stream.event_time_path is None and self.stream.window_type != "count"
        if by_clock and not await self._ripe_by_the_clock():
            return False
        return await self._close_step()

    async def _ripe_by_the_clock(self) -> bool:
        """Whether windows are ripe by the database's clock; everything that belongs to them is assigned."""
        database, stream = self._broker.database, self.stream
        rows = await database.hot(
            f"select ({_NEXT}) as next, queen.to_us(coalesce($2, clock_timestamp())) as now",
            stream.id,
            database.now(),
        )
        following, now = rows[0]["next"], rows[0]["now"]
        if stream.emit_empty:
            known = await database.hot(
                "select min(position) as next from queen.stream_keys where stream_id = $1", stream.id
            )
            empty = known[0]["next"]
            if empty is not None:
                size = stream.size_us or 0
                following = empty + size if following is None else min(following, empty + size)
        if following is None:
            self._due = None
            return False
        self._due = (following + stream.grace_us) / 1e6
        if now < following + stream.grace_us:
            return False
        at = (await database.admin("barrier", [s.queue_id for s in stream.sources], database.now()))[0]["at"]
        if at is None:  # somebody pushes for very long; look again soon
            self._due = self._now() + RETRY_SECONDS
            return False
        await self._assign_all()
        low = (await database.hot(_LOW, stream.id))[0]["min"]
        reached = windows.to_us(at if low is None else min(at, low))
        await database.hot(
            "update queen.streams set watermark_us = greatest(watermark_us, $2) where id = $1 returning id",
            stream.id,
            reached,
        )
        if reached < following + stream.grace_us:
            self._due = self._now() + RETRY_SECONDS
            return False
        return True

    async def _close_step(self) -> bool:
        broker = self._broker
        pushed: tuple[Any, list[PushResult]] | None = None

        async def work(connection: Any) -> int:
            nonlocal pushed
            pushed = None
            stream = await self._take(connection)
            if stream.window_type == "count":
                found = await connection.fetch(_FULL, stream.id, CLOSE)
            elif stream.watermark_us is None:
                found = []
            else:
                if stream.emit_empty:
                    await self._make_empty(connection, stream)
                found = await connection.fetch(_RIPE, stream.id, stream.watermark_us - stream.grace_us, CLOSE)
            if not found:
                following = await connection.fetchval(_NEXT, stream.id)
                self._plan(stream, following)
                return 0
            items = [
                PushItem(stream.queue, Raw(b"%d" % row["id"]), self._lane(stream, row), str(row["id"]))
                for row in found
            ]
            rows = await broker.pusher.prepare(items, None)
            created = [
                row["first_at"] if stream.window_type == "count" else windows.from_us(row["start_us"])
                for row in found
            ]
            async with broker.pusher.apart(rows):
                [results] = await broker.pusher.store([rows], connection.fetch, created=created)
            await connection.execute(
                _CLOSED,
                [row["id"] for row in found],
                [int(result.partition_id) for result in results],
                [int(result.message_id) for result in results],
                broker.database.now(),
            )
            pushed = rows, results
            return len(found)

        closed = await broker.database.transaction(work)
        if pushed is not None:
            broker.pusher.announce([pushed[0]], [pushed[1]])
        return closed >= CLOSE

    def _plan(self, stream: Stream, following: int | None) -> None:
        """When to look again, without anything being pushed."""
        due: float | None = None
        if stream.window_type == "count":
            due = None
        elif stream.event_time_path is None:
            due = None if following is None else (following + stream.grace_us) / 1e6
        elif stream.idle_timeout_us is not None and following is not None:
            quiet = [s.quiet_since for s in stream.sources if not s.idle and s.quiet_since is not None]
            if quiet:
                due = min(quiet).timestamp() + stream.idle_timeout_us / 1e6
        if not (stream.emit_empty and due is None):
            self._due = due

    def _lane(self, stream: Stream, row: Any) -> str:
        if stream.window_type == "session":
            return stream.lane(row["key"], row["id"])
        step = stream.slide_us or stream.size_us or stream.slide_count or stream.size_count or 1
        return stream.lane(row["key"], row["start_us"] // step)

    async def _make_empty(self, connection: Any, stream: Stream) -> None:
        """The windows without messages that are ripe, for every key since its first window."""
        definition = stream.windows
        assert isinstance(definition, windows.Tumbling | windows.Sliding)
        assert stream.watermark_us is not None
        latest = stream.watermark_us - stream.grace_us - definition.size_us  # the last start that is ripe
        keys = await connection.fetch(
            "select key, position from queen.stream_keys where stream_id = $1 and position <= $2 limit $3",
            stream.id,
            latest,
            EMPTY,
        )
        made: list[tuple[str, int, int]] = []
        for row in keys:
            position = row["position"]
            for span in definition.between(position, latest + 1):
                if len(made) >= EMPTY:
                    break
                made.append((row["key"], span.start, span.end))
                position = span.start + definition.slide_us
            await connection.execute(_POSITIONS, stream.id, [row["key"]], [position])
        if made:
            await connection.execute(
                "insert into queen.windows (stream_id, key, start_us, end_us) select $1, t.* "
                "from unnest($2::text[], $3::bigint[], $4::bigint[]) as t on conflict do nothing",
                stream.id,
                [key for key, _, _ in made],
                [start for _, start, _ in made],
                [end for _, _, end in made],
            )


def _columns(fillings: list[Filling]) -> tuple[list[int], list[datetime], list[datetime]]:
    return (
        [filling.messages for filling in fillings],
        [windows.from_us(filling.first_us) for filling in fillings],
        [windows.from_us(filling.last_us) for filling in fillings],
    )
