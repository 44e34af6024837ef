"""A topic of Kafka, written: at least once, in order for each key, by an idempotent producer.

Every message has the header ``queenstream-id``, the name of its delivery and the number of the row: after a
crash the last epoch is written again, and what is there twice has the same id twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from queenstream.client._base.payloads import encode
from queenstream.connectors.base import Context, Refusal, RowKey
from queenstream.connectors.kafka import connection
from queenstream.connectors.kafka.connection import log
from queenstream.errors import ConfigError, PayloadInvalid, QueenstreamError, TooLarge
from queenstream.pipeline.endpoints import Kafka
from queenstream.runtime.kafka_records import MessageKey, Sent, messages_of

ID_HEADER = "queenstream-id"

_STEP_SECONDS = 0.2  # how long the library works before it is looked whether to go on
_CLOSE_SECONDS = 5.0
_OURS = {
    "linger.ms": 5,
    "queue.buffering.max.kbytes": 65_536,
    "partitioner": "murmur2_random",  # as Java's clients: a key has one partition, whoever writes it
}
_FIXED = {
    "enable.idempotence": True,
    "message.timeout.ms": 0,  # servers that are away are waited for
}
_ROW = {  # what is wrong with a row, and not with the topic or the servers
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError.INVALID_TIMESTAMP,
    KafkaError.POLICY_VIOLATION,
}


class KafkaWriter:
    """Produces rows, and waits for the servers' word on each of them."""

    def __init__(self, sink: Kafka, context: Context) -> None:
        if len(sink.topics) != 1:
            raise ConfigError(f"{sink.title}: rows are written to one topic; name one, or add sinks")
        self._sink = sink
        self._topic = sink.topics[0]
        self._context = context
        self._message_of = messages_of(sink, encode)
        self._closing = False
        self._reports: dict[int, KafkaError | None] = {}

    async def open(self) -> None:
        await asyncio.to_thread(self._open)

    def _open(self) -> None:
        settings = connection.settings_of(self._sink, _OURS, _FIXED)
        try:
            self._producer = Producer({**settings, "error_cb": connection.Teller()}, logger=log)
        except KafkaException as error:
            raise connection.refused(self._sink, error) from None
        found = connection.look(self._producer, self._sink, self._topic).topics[self._topic]
        if found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise connection.no_topic(self._sink, self._topic)
        self._partitions = len(found.partitions)

    def row_key(self) -> RowKey | None:
        """A topic of one partition keeps all messages in order, others those of a key."""
        return MessageKey(self._sink) if self._partitions > 1 else None

    async def write(self, epoch: str, rows: Sequence[Any]) -> list[Refusal]:
        name = self._context.delivery(epoch)
        numbered = list(enumerate(rows))
        refused = await self._send(name, numbered)
        # A server refuses a batch as a whole: alone, those of its rows that fit are taken.
        crowded = [index for index, error in refused.items() if isinstance(error, TooLarge)]
        for index in crowded if len(numbered) > 1 else ():
            del refused[index]
            refused |= await self._send(name, [numbered[index]])
        return sorted(refused.items())

    async def _send(self, name: str, rows: Sequence[tuple[int, Any]]) -> dict[int, Exception]:
        """Until there is a word on each of them; gives those that were refused."""
        self._reports = {}
        refused, sent = await asyncio.to_thread(self._produce, name, rows)
        while len(self._reports) < sent:
            await asyncio.to_thread(self._producer.flush, _STEP_SECONDS)
        for index, error in self._reports.items():
            if error is not None:
                refused[index] = self._refusal(error)
        return refused

    def _produce(self, name: str, rows: Sequence[tuple[int, Any]]) -> tuple[dict[int, Exception], int]:
        refused: dict[int, Exception] = {}
        sent = 0
        for index, row in rows:
            try:
                self._put(index, self._message_of(row), f"{name}:{index}")
            except (PayloadInvalid, ValueError) as error:
                refused[index] = error
            except KafkaException as error:
                refused[index] = self._refusal(connection.error_of(error))
            else:
                sent += 1
        return refused, sent

    def _put(self, index: int, message: Sent, id: str) -> None:
        while not self._closing:
            try:
                self._producer.produce(
                    self._topic,
                    message.value,
                    message.key,
                    timestamp=message.timestamp,
                    headers=[*message.headers, (ID_HEADER, id.encode())],
                    on_delivery=partial(self._told, index),
                )
            except BufferError:  # full: the servers are slow, or away
                self._producer.poll(_STEP_SECONDS)
            else:
                return

    def _told(self, index: int, error: KafkaError | None, message: Message) -> None:  # noqa: ARG002 - the library's
        self._reports[index] = error

    def _refusal(self, error: KafkaError) -> QueenstreamError:
        """The reason for a row that was not taken; raised, if it is not the row's fault."""
        if error.code() not in _ROW:
            raise connection.failed(self._sink, error)
        if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
            return TooLarge(
                f"{self._sink.title} takes no message this large ({error.str()}); raise max.message.bytes of "
                "the topic and message.max.bytes in settings, or write less"
            )
        return PayloadInvalid(f"{self._sink.title} refused the message: {error.str()}; correct it")

    async def close(self) -> None:
        self._closing = True
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._producer.purge()
        self._producer.flush(_CLOSE_SECONDS)
