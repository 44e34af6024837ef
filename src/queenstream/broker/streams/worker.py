"""The work of a stream, in steps, each one transaction: assign what is new, close what is ripe."""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Raw

from queenstream.broker.messaging.encryption import message_identity
from queenstream.broker.schemas.messages import PushItem, PushResult
from queenstream.broker.storage.sql import QUERIES
from queenstream.broker.streams.assign import Batch, Filling, Fresh, OpenSession, assign
from queenstream.broker.streams.model import GLOBAL, Source, Stream, from_row
from queenstream.core import windows
from queenstream.errors import PayloadAltered, Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

PARTITIONS, MESSAGES = 200, 500  # read in one step: partitions of each source, messages of each
CLOSE = 1000  # windows closed in one step
EMPTY = 1000  # empty windows made in one step
RETRY_SECONDS = 0.05


class Busy(Exception):
    """Another broker has the stream."""


class Work:
    """What is done for one stream. ``due``: when there is more to do without a push (seconds since 1970)."""

    def __init__(self, broker: Broker, stream: Stream) -> None:
        self._broker = broker
        self.stream = stream
        self.due: float | None = None

    def now(self) -> float:
        """The time, as far as this process knows; the database's decides."""
        turned = self._broker.database.now()
        return time.time() if turned is None else turned.timestamp()

    async def step(self) -> None:
        """Assign what is new and close what is ripe, until there is nothing left to do."""
        try:
            await self._assign_all()
            while await self._close():
                pass
        except Busy:  # the other one does it; look again, should it die
            self.due = self.now() + RETRY_SECONDS

    async def _assign_all(self) -> None:
        while await self._assign():
            pass

    # Assigning

    async def _assign(self) -> bool:
        """One step; whether there may be more to read."""

        async def work(connection: Any) -> bool:
            stream = await self._take(connection)
            by_event = stream.event_time_path is not None
            rows = await connection.fetch(QUERIES["stream_read"], stream.id, PARTITIONS, MESSAGES, by_event)
            more = any(row["more"] for row in rows) or len(rows) >= PARTITIONS
            read, upto = self._fresh(stream, rows, by_event)
            await self._write(connection, stream, read, more=more)
            await self._advance(connection, stream, rows, upto)
            return more

        more: bool = await self._broker.database.transaction(work)
        return more

    async def _take(self, connection: Any) -> Stream:
        """The stream as it is now, for this transaction alone."""
        if not await connection.fetchval(QUERIES["stream_lock"], self.stream.id):
            raise Busy
        row = await connection.fetchrow(QUERIES["stream_by_id"], self.stream.id)
        if row is None:
            raise Busy  # deleted: the next load stops this runner
        stream = from_row(row)
        for source in await connection.fetch(
            QUERIES["sources_of_stream"],
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
            ids, created = row["ids"] or [], row["created"] or []
            key = row["partition_name"] if stream.partitioned else GLOBAL
            fresh = Fresh(row["queue_id"], row["partition_id"], key, row["acked_id"], ids, created)
            if by_event:
                fresh.payloads = self._plain(row, {s.queue_id: s.name for s in stream.sources})
            if bound is not None and created and created[-1] > bound:
                keep = sum(at <= bound for at in created)
                last = ids[keep - 1] if keep else row["acked_id"]
                cut[fresh.partition_id] = (last, windows.from_us(created[keep]))
                fresh.ids, fresh.created = ids[:keep], created[:keep]
                fresh.payloads = fresh.payloads and fresh.payloads[:keep]
            read.append(fresh)
        return read, cut

    def _plain(self, row: Any, queues: dict[int, str]) -> list[bytes]:
        """The payloads of a partition, decrypted. One that was altered has no event time: it is late."""
        payloads: list[bytes] = list(row["payloads"] or [])
        if row["transactions"] is None:
            return payloads
        keyring = self._broker.keyring
        queue, partition = queues[row["queue_id"]], row["partition_name"]
        for at, (key, transaction) in enumerate(zip(row["keys"], row["transactions"], strict=True)):
            if key is None:
                continue
            if keyring is None:
                raise Unavailable(
                    "a source is encrypted and this broker has no key; set QUEEN_ENCRYPTION_KEYS"
                )
            try:
                identity = message_identity(queue, partition, transaction)
                payloads[at] = keyring.decrypt(key, payloads[at], identity)
            except PayloadAltered as error:
                log.error("queue %s, partition %s, message %s: %s", queue, partition, transaction, error)
                payloads[at] = b"null"
        return payloads

    async def _write(self, connection: Any, stream: Stream, read: list[Fresh], *, more: bool) -> None:
        keys = sorted({fresh.key for fresh in read if fresh.ids})
        sessions: dict[str, list[OpenSession]] = {}
        positions: dict[str, int] = {}
        if stream.window_type == "session":
            for row in await connection.fetch(QUERIES["stream_sessions"], stream.id, keys):
                span = windows.Span(row["start_us"], row["end_us"])
                sessions.setdefault(row["key"], []).append(OpenSession(row["id"], span))
        elif stream.window_type == "count":
            rows = await connection.fetch(
                QUERIES["positions_of_keys"],
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
                QUERIES["stream_positions"], stream.id, list(batch.positions), list(batch.positions.values())
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
                await connection.execute(QUERIES["stream_merge_parts"], survivor, gone)
                await connection.execute(QUERIES["stream_merge"], survivor, gone)
        if grown:
            await connection.execute(
                QUERIES["stream_grow"],
                [ids[name] for name, _ in grown],
                [start for (_, start, _), _ in grown],
                [end for (_, _, end), _ in grown],
                *_columns([filling for _, filling in grown]),
            )
        if new:
            rows = await connection.fetch(
                QUERIES["stream_fill"],
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
                QUERIES["stream_parts"],
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
            QUERIES["stream_first_positions"],
            stream.id,
            list(firsts),
            list(firsts.values()),
        )

    async def _write_late(self, connection: Any, stream: Stream, batch: Batch) -> None:
        late = batch.late
        await connection.execute(
            QUERIES["stream_late"],
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
        now: datetime = await connection.fetchval(QUERIES["stream_time"], self._broker.database.now())
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
                QUERIES["stream_sources"],
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
            last = await connection.fetchval(QUERIES["stream_last_open"], stream.id)
            if last is not None:
                reached = mark.raise_to(last + stream.grace_us)
        if reached is not None and reached != stream.watermark_us:
            await connection.execute(QUERIES["stream_set_watermark"], stream.id, reached)

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
                QUERIES["stream_advance"],
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
            QUERIES["stream_next_and_now"],
            stream.id,
            database.now(),
        )
        following, now = rows[0]["next"], rows[0]["now"]
        if stream.emit_empty:
            known = await database.hot(QUERIES["stream_first_empty"], stream.id)
            empty = known[0]["next"]
            if empty is not None:
                size = stream.size_us or 0
                following = empty + size if following is None else min(following, empty + size)
        if following is None:
            self.due = None
            return False
        self.due = (following + stream.grace_us) / 1e6
        if now < following + stream.grace_us:
            return False
        at = (await database.upkeep("barrier", [s.queue_id for s in stream.sources], database.now()))[0]["at"]
        if at is None:  # somebody pushes for very long; look again soon
            self.due = self.now() + RETRY_SECONDS
            return False
        await self._assign_all()
        low = (await database.hot(QUERIES["stream_low"], stream.id))[0]["min"]
        reached = windows.to_us(at if low is None else min(at, low))
        await database.hot(
            QUERIES["stream_raise_watermark"],
            stream.id,
            reached,
        )
        if reached < following + stream.grace_us:
            self.due = self.now() + RETRY_SECONDS
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
                found = await connection.fetch(QUERIES["stream_full"], stream.id, CLOSE)
            elif stream.watermark_us is None:
                found = []
            else:
                if stream.emit_empty:
                    await self._make_empty(connection, stream)
                found = await connection.fetch(
                    QUERIES["stream_ripe"], stream.id, stream.watermark_us - stream.grace_us, CLOSE
                )
            if not found:
                await self._plan_next(connection, stream)
                return 0
            numbers = await self._number(connection, stream, found)
            items = [
                PushItem(
                    stream.queue, Raw(b"%d" % row["id"]), stream.lane(row["key"], number), str(row["id"])
                )
                for row, number in zip(found, numbers, strict=True)
            ]
            rows = await broker.pusher.prepare(items, None)
            created = [
                row["first_at"] if stream.window_type == "count" else windows.from_us(row["start_us"])
                for row in found
            ]
            async with broker.pusher.apart(rows):
                [results] = await broker.pusher.store([rows], connection.fetch, created=created)
            await connection.execute(
                QUERIES["stream_closed"],
                [row["id"] for row in found],
                [int(result.partition_id) for result in results],
                [int(result.message_id) for result in results],
                numbers,
                broker.database.now(),
            )
            pushed = rows, results
            if len(found) < CLOSE:
                await self._plan_next(connection, stream)
            return len(found)

        closed = await broker.database.transaction(work)
        if pushed is not None:
            broker.pusher.announce([pushed[0]], [pushed[1]])
        return closed >= CLOSE

    async def _plan_next(self, connection: Any, stream: Stream) -> None:
        self._plan(stream, await connection.fetchval(QUERIES["stream_next"], stream.id))

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
            self.due = due

    async def _number(self, connection: Any, stream: Stream, found: list[Any]) -> list[int]:
        """The place of each window among the closed ones of its key, where that decides on its lane."""
        if stream.max_in_flight == 1:
            return [0] * len(found)
        keys = sorted({row["key"] for row in found})
        rows = await connection.fetch(QUERIES["stream_closed_so_far"], stream.id, keys)
        counts = dict.fromkeys(keys, 0) | {row["key"]: row["closed"] for row in rows}
        numbers: list[int] = []
        for row in found:
            numbers.append(counts[row["key"]])
            counts[row["key"]] += 1
        await connection.execute(QUERIES["stream_closed_now"], stream.id, list(counts), list(counts.values()))
        return numbers

    async def _make_empty(self, connection: Any, stream: Stream) -> None:
        """The windows without messages that are ripe, for every key since its first window."""
        definition = stream.windows
        assert isinstance(definition, windows.Tumbling | windows.Sliding)
        assert stream.watermark_us is not None
        latest = stream.watermark_us - stream.grace_us - definition.size_us  # the last start that is ripe
        keys = await connection.fetch(
            QUERIES["stream_empty_keys"],
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
            await connection.execute(QUERIES["stream_positions"], stream.id, [row["key"]], [position])
        if made:
            await connection.execute(
                QUERIES["stream_make_empty"],
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
