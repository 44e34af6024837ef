"""Topics of Kafka, read as a consumer group.

A position is the offset of the next message of a partition: ``{"orders/0": 17}``. What is done is told to the
group only when the engine has it safe (``commit``), so a crash brings messages again and loses none.

- On a restart the checkpoint's positions win over the group's; partitions without one go on where the group
  stands, and where that does not know them either, at ``start``.
- Partitions and topics that come later are read from their beginning, whatever ``start`` says: what is in
  them came after the run began.
- Runs of one group share its partitions. A partition that passes to another run goes on there where this one
  has committed; what was read and not committed is read by both. One that comes back goes on at the later
  of the group's place and ours.
- A run that was killed holds its partitions until the group has missed it for ``session.timeout.ms``, which
  is 10 s unless ``settings`` say otherwise; the next run waits for that.
- Messages that the servers deleted before they were read end the run: that is a loss, and somebody must know.
"""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from confluent_kafka import (
    OFFSET_BEGINNING,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    TopicPartition,
)

from queenstream.connectors.base import Context, Positions
from queenstream.connectors.kafka import connection
from queenstream.connectors.kafka.connection import log
from queenstream.core.batches import Batch
from queenstream.errors import CheckpointError, PayloadInvalid
from queenstream.pipeline.endpoints import Kafka
from queenstream.runtime.kafka_records import Found, coordinates, records_of

TOPICS_SECONDS = 2.0  # how often it is looked for new topics of a pattern
_NARROW_SECONDS = 0.05  # to wait for what must come: partitions, or the end of what is there
_ASK_SECONDS = 10.0
_MEASURE_SECONDS = 0.5  # how old what is known of the lag may be
_PATIENT_SECONDS = 120.0  # for servers that give partitions away, and then do not answer
_CLOSE_SECONDS = 5.0
_OURS = {
    "session.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 10_000,
    "queued.max.messages.kbytes": 16_384,
    "fetch.wait.max.ms": 100,
}
_FIXED = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "partition.assignment.strategy": "range",
    "group.protocol": "classic",
}
_GONE = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)

Place = tuple[str, int]
"""A partition of a topic."""


class KafkaReader:
    """Reads topics in a thread, and commits what is safe."""

    def __init__(self, source: Kafka, context: Context) -> None:
        self._source = source
        self._context = context
        self._make = records_of(source)
        self._tell = connection.Teller()
        self._next: dict[Place, int] = {}  # what was read so far: the offset after it
        self._restored: set[Place] = set()  # those of the checkpoint that were not assigned yet
        self._moved: set[str] = set()  # names of positions since the last changes()
        self._gone: set[Place] = set()  # partitions that went to somebody else
        self._fresh = True  # nothing of this source was ever read: start counts
        self._held: set[Place] = set()  # the partitions that are ours now
        self._ended: set[Place] = set()  # those of them that are read to their end
        self._covered: dict[Place, int] = {}  # to be committed
        self._to_commit: dict[Place, int] = {}
        self._unconfirmed: dict[Place, int] = {}
        self._lag: float | None = None
        self._measured = 0.0
        self._assigned = False
        self._topics: set[str] = set()
        self._looked = 0.0
        self._failure: Exception | None = None  # of a callback
        self._lock = threading.Lock()  # a thread reads while the event loop asks for changes

    # Beginning and end

    async def open(self, positions: Positions) -> None:
        self._restore(positions)
        await asyncio.to_thread(self._open)

    def _restore(self, positions: Positions) -> None:
        self._fresh = not positions
        for name, at in positions.items():
            if at is not None:
                self._next[_place(name)] = int(at)
        self._restored = set(self._next)

    def _open(self) -> None:
        group = {"group.id": self._source.group or self._context.pipeline}
        settings = connection.settings_of(self._source, _OURS, {**_FIXED, **group})
        settings |= {"error_cb": self._heard, "on_commit": self._confirmed}
        try:
            self._consumer = Consumer(settings, logger=log)
        except KafkaException as error:
            raise connection.refused(self._source, error) from None
        self._find_topics(first=True)

    def _find_topics(self, *, first: bool = False) -> None:
        """Subscribe to the topics, or to those that the pattern finds now."""
        source = self._source
        self._looked = time.monotonic()
        if source.pattern:
            try:
                found = set(connection.look(self._consumer, source).topics)
            except Exception:
                if first:
                    raise
                return  # later again
            wanted = {name for name in found if re.fullmatch(source.topics[0], name)}
        else:
            wanted = set(source.topics)
            known = connection.look(self._consumer, source).topics
            for name in sorted(wanted - set(known)):
                raise connection.no_topic(source, name)
        if wanted != self._topics or first:
            self._topics = wanted
            if wanted:
                self._consumer.subscribe(sorted(wanted), on_assign=self._assign, on_revoke=self._revoke)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        end = time.monotonic() + _CLOSE_SECONDS
        self._send_commits()
        while self._unconfirmed and time.monotonic() < end:
            self._consumer.poll(0.1)
        self._consumer.close()

    # Whose partitions

    def _assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Called while it reads: these partitions are ours now, and no others."""
        try:
            self._take(consumer, partitions)
        except Exception as error:  # noqa: BLE001 - in a callback nobody sees it: the next read raises it
            self._failure = error

    def _take(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        places = {(each.topic, each.partition) for each in partitions}
        begin = self._patiently(consumer, places)
        with self._lock:
            for place in self._gone - places:
                self._next.pop(place, None)
                self._moved.add(_name(place))
            self._gone.clear()
            for place, at in begin.items():
                if at >= 0 and self._next.get(place) != at:
                    self._next[place] = at
                    self._moved.add(_name(place))
            self._held, self._ended, self._assigned = places, set(), True
            self._restored -= places
            self._fresh = False
        consumer.assign([TopicPartition(*place, at) for place, at in begin.items()])

    def _revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """They may be ours again in a moment; until then nothing of them is committed."""
        with self._lock:
            self._gone |= {(each.topic, each.partition) for each in partitions}
            self._held, self._ended, self._assigned = set(), set(), False
        consumer.unassign()

    def _patiently(self, consumer: Consumer, places: set[Place]) -> dict[Place, int]:
        end = time.monotonic() + _PATIENT_SECONDS
        while True:
            try:
                return self._beginnings(consumer, places)
            except KafkaException as error:
                if time.monotonic() > end:
                    raise
                self._tell(connection.error_of(error))

    def _beginnings(self, consumer: Consumer, places: set[Place]) -> dict[Place, int]:
        """Where each partition is read from."""
        asked = [TopicPartition(*place) for place in sorted(places)]
        committed = {
            (each.topic, each.partition): each.offset
            for each in (consumer.committed(asked, timeout=_ASK_SECONDS) if asked else [])
        }
        found: dict[Place, int] = {}
        for place in sorted(places):
            known, group = self._next.get(place), committed.get(place, -1)
            if place in self._restored:  # the checkpoint wins
                found[place] = self._next[place]
            elif known is not None:
                found[place] = max(known, group)
            elif group >= 0 and not self._context.rewound:
                found[place] = group
            else:
                found[place] = self._first(consumer, place)
        return found

    def _first(self, consumer: Consumer, place: Place) -> int:
        """Where a partition begins that nobody of the group has read."""
        start = self._source.start
        if not self._fresh or start == "earliest":
            return OFFSET_BEGINNING
        if isinstance(start, Mapping):
            return start.get(place[0], {}).get(place[1], OFFSET_BEGINNING)
        if start != "latest":
            moment = datetime.fromisoformat(start) if isinstance(start, str) else start
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            asked = TopicPartition(*place, int(moment.timestamp() * 1_000))
            [answer] = consumer.offsets_for_times([asked], timeout=_ASK_SECONDS)
            if answer.offset >= 0:
                return answer.offset
        _, high = consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ASK_SECONDS)
        return high

    # Reading

    async def read(self, most: int, wait_seconds: float) -> Batch | None:
        return await asyncio.to_thread(self._read, most, wait_seconds)

    def _read(self, most: int, wait_seconds: float) -> Batch:
        if self._source.pattern and time.monotonic() - self._looked > TOPICS_SECONDS:
            self._find_topics()
        self._send_commits()
        end = time.monotonic() + max(wait_seconds, 0.0 if self._all_read() else _NARROW_SECONDS)
        batch = Batch([], [])
        while batch.empty:
            message = self._consumer.poll(max(0.0, end - time.monotonic()))
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise failure
            if message is not None:
                self._put(message, batch)
                for each in self._consumer.consume(most - 1, 0) if most > 1 else []:
                    self._put(each, batch)
            if time.monotonic() >= end or self._all_read():
                break
        self._measure()
        return batch

    def _put(self, message: Message, batch: Batch) -> None:
        error = message.error()
        if error is not None:
            self._look_at(error, message)
            return
        found = _found(message)
        place = (found.topic, found.partition)
        with self._lock:
            if place not in self._held:  # of a partition that has gone
                return
            self._next[place] = found.offset + 1
            self._moved.add(_name(place))
            self._ended.discard(place)
        try:
            record = self._make(found)
        except PayloadInvalid as wrong:
            batch.failures.append((coordinates(found), wrong))
            return
        assert batch.times is not None, "Kafka's messages have times"
        batch.records.append(record)
        batch.times.append(found.time)

    def _heard(self, error: KafkaError) -> None:
        """Called while it reads: how it goes. The library tries again, unless that is the end."""
        self._tell(error)
        if error.fatal():
            self._failure = connection.failed(self._source, error)

    def _look_at(self, error: KafkaError, message: Message) -> None:
        code = error.code()
        topic, partition = message.topic(), message.partition()
        if code == KafkaError._PARTITION_EOF and topic is not None and partition is not None:
            self._ended.add((topic, partition))
        elif code in _GONE:
            raise CheckpointError(
                f"{topic}/{partition} of {self._source.title}: messages were deleted before they were read "
                f"({error.str()}); keep them longer, and begin anew with another group and checkpoint"
            )
        elif error.fatal() or not (error.retriable() or code < 0 or self._source.pattern):
            raise connection.failed(self._source, error)
        else:
            self._tell(error)

    def _all_read(self) -> bool:
        with self._lock:
            return self._assigned and self._held <= self._ended

    # How far it is

    def changes(self) -> dict[str, Any]:
        with self._lock:
            moved, self._moved = self._moved, set()
            changed = {name: self._next.get(_place(name)) for name in moved}
            self._covered |= {place: self._next[place] for place in self._held if place in self._next}
        return changed

    async def commit(self) -> None:
        with self._lock:
            self._to_commit |= self._covered
            self._covered = {}

    def _send_commits(self) -> None:
        """One thread uses the consumer: what is to be committed goes out with the next read, or the close."""
        with self._lock:
            sent = {place: at for place, at in self._to_commit.items() if place in self._held}
            self._to_commit = {}
            self._unconfirmed |= sent
        if sent:
            offsets = [TopicPartition(*place, at) for place, at in sent.items()]
            try:
                self._consumer.commit(offsets=offsets, asynchronous=True)
            except KafkaException as error:  # the next commit says it again, and the checkpoint has it
                log.warning(
                    "%s could not commit yet: %s", self._context.node, connection.error_of(error).str()
                )

    def _confirmed(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        """Called while it reads: the group knows how far we are, or could not be told."""
        with self._lock:
            for each in partitions:
                place = (each.topic, each.partition)
                if self._unconfirmed.get(place) == each.offset:
                    del self._unconfirmed[place]
        if error is not None:
            log.warning("%s could not commit yet: %s", self._context.node, error.str())

    def drained(self) -> bool:
        return self._all_read() and not self._moved

    def lag(self) -> float | None:
        return self._lag

    def _measure(self) -> None:
        """How far behind it is, by what the servers said with the last messages."""
        if time.monotonic() - self._measured < _MEASURE_SECONDS and not self._all_read():
            return
        self._measured = time.monotonic()
        behind = 0
        for place in self._held:
            low, high = self._consumer.get_watermark_offsets(TopicPartition(*place), cached=True)
            if high < 0:
                return  # it is not known yet
            behind += max(0, high - self._next.get(place, low))
        self._lag = float(behind) if self._assigned else None


def partitions_of(source: Kafka) -> dict[str, list[int]]:
    """The partitions of a source's topics, by topic. A topic that is not there is an error."""
    settings = connection.settings_of(source, {}, {"group.id": "queenstream"})
    consumer = Consumer(settings, logger=log)
    try:
        known = connection.look(consumer, source).topics
        for name in source.topics:
            if name not in known:
                raise connection.no_topic(source, name)
        return {name: sorted(known[name].partitions) for name in source.topics}
    finally:
        consumer.close()


def _found(message: Any) -> Found:
    """Untyped, as the library cannot say that what has no error has all of this."""
    kind, at = message.timestamp()
    time = -1 if kind == TIMESTAMP_NOT_AVAILABLE else at
    where = message.topic(), message.partition(), message.offset()
    return Found(*where, time, message.key(), message.value(), message.headers() or ())


def _name(place: Place) -> str:
    return f"{place[0]}/{place[1]}"


def _place(name: str) -> Place:
    topic, _, partition = name.rpartition("/")
    return topic, int(partition)
