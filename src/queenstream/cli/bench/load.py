"""The load generator: pushes and pops on raw connections, requests rendered beforehand.

``queen bench`` and the benchmarks of this repository both drive brokers with it.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import time
from typing import cast

import msgspec
from msgspec import Raw, Struct

from queenstream.cli.bench.connections import Connection, Tally, body_of
from queenstream.cli.support.target import Target, in_path

ID_BYTES = 18  # a transaction id is 36 random hex digits: as long as a UUID
PAUSE_SECONDS = 0.05  # after a refusal, so that a broker in trouble is not hammered
EMPTY_SECONDS = 0.005  # after an empty pop
TEMPLATE_BYTES = 100_000_000  # templates that are kept, together


# The tags are for the benchmarks, which send these through a pipe as JSON.
class Push(Struct, tag="push"):
    """Keep ``connections`` pushes of ``batch`` messages in flight."""

    connections: int
    batch: int
    partitions: int = 100
    queue: str = "bench"
    most: int = 0  # stop after so many messages; 0: when the time is over
    walk: bool = False  # visit the partitions in order instead of from a random one on
    payload: int = 200  # bytes
    rate: float = 0.0  # messages a second at most; 0: as many as go


class Consume(Struct, tag="consume"):
    """Pop and acknowledge, on ``connections`` connections."""

    connections: int
    batch: int
    group: str
    queue: str = "bench"
    auto_ack: bool = False
    until_empty: bool = False  # end at the first empty answer
    wait_ms: int = 0  # a long poll
    most: int = 0  # stop after so many messages; 0: when the time is over


class Pace:
    """Shares out the moments at which requests may be sent, so that a rate is held."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._next = 0.0

    def take(self, messages: int, now: float) -> float:
        """How long to wait before sending so many. Moments that nobody took are not made up for."""
        moment = max(self._next, now)
        self._next = moment + messages / self._rate
        return moment - now


def text_payload(size: int) -> bytes:
    """A JSON object of ``size`` bytes, 8 at least.

    >>> text_payload(10)
    b'{"d":"xx"}'
    """
    return b'{"d":"' + b"x" * (size - 8) + b'"}'


def push_template(target: Target, role: Push, first: int, batch: int) -> bytes:
    """A push request with a place for each transaction id; the partitions are those from ``first`` on."""
    queue = msgspec.json.encode(role.queue)
    payload = text_payload(role.payload)
    items = [
        b'{"queue":%b,"partition":"p%d","transactionId":"\0","payload":%b}'
        % (queue, (first + at) % role.partitions, payload)
        for at in range(batch)
    ]
    body = b'{"items":[' + b",".join(items) + b"]}"
    head = target.head("POST", "/api/v1/push", len(body) + batch * (2 * ID_BYTES - 1))
    # NUL marks the places: neither JSON nor a head holds it, and a name may well hold a "%".
    return (head + body).replace(b"%", b"%%").replace(b"\0", b"%b")


_DUPLICATE = re.compile(rb'"status":\s*"duplicate"')


class Pusher(Connection):
    """Pushes as long as there is time."""

    def __init__(
        self,
        tally: Tally,
        target: Target,
        role: Push,
        number: int,
        templates: dict[tuple[int, int], bytes],
        pace: Pace | None = None,
    ) -> None:
        super().__init__(tally)
        self._target = target
        self._role = role
        self._templates = templates
        self._pace = pace
        self._first = number * role.partitions // role.connections
        self._batch = 0

    def start(self) -> None:
        if self._pace is not None and not self.over():
            wait = self._pace.take(self._role.batch, time.perf_counter())
            if wait > 0:
                asyncio.get_running_loop().call_later(wait, self._push)
                return
        self._push()

    def _push(self) -> None:
        role = self._role
        batch = min(role.batch, role.most - self.tally.sent) if role.most else role.batch
        if self.over() or batch <= 0:
            self.finish()
            return
        self.tally.sent += batch
        self._batch = batch
        if role.walk:
            first = self._first = (self._first + batch) % role.partitions
        else:
            first = random.randrange(role.partitions)  # noqa: S311
        template = self._templates.get((first, batch))
        if template is None:
            template = push_template(self._target, role, first, batch)
            if len(self._templates) * len(template) < TEMPLATE_BYTES:
                self._templates[first, batch] = template
        ids = os.urandom(ID_BYTES * batch).hex().encode()
        width = 2 * ID_BYTES
        self.send(template % tuple([ids[at : at + width] for at in range(0, len(ids), width)]))

    def answered(self, data: bytes) -> None:
        if not data.startswith(b"HTTP/1.1 201"):
            self.tally.sent -= self._batch  # not stored: somebody may try again
            self.refused(data)
            self.later(PAUSE_SECONDS)
            return
        if b'"duplicate"' in data and _DUPLICATE.search(data):
            self.tally.fail("a new message was taken for a duplicate")
        else:
            self.tally.add(self._batch, time.perf_counter() - self.sent_at)
        self.start()


# Ids stay as they were written, quotes and all: they only go back into the ack.
class PoppedMessage(Struct, rename="camel"):
    transaction_id: Raw


class FullMessage(PoppedMessage, rename="camel"):
    """A message whose payload matters too."""

    data: Raw


class Popped(Struct, rename="camel"):
    partition_id: Raw
    messages: list[PoppedMessage]
    lease_id: Raw = Raw(b"null")


class FullPopped(Popped, rename="camel"):
    messages: list[FullMessage]  # type: ignore[assignment]


_POPPED = msgspec.json.Decoder(Popped)
FULL_POPPED = cast("msgspec.json.Decoder[Popped]", msgspec.json.Decoder(FullPopped))
_REFUSED = re.compile(rb'"success":\s*false')


def ack_request(target: Target, popped: Popped, group: str) -> bytes:
    """The request that acknowledges all messages of a pop."""
    end = b',"partitionId":%b,"leaseId":%b,"status":"completed"}' % (popped.partition_id, popped.lease_id)
    ids = (end + b',{"transactionId":').join([message.transaction_id for message in popped.messages])
    body = b'{"consumerGroup":%b,"acknowledgments":[{"transactionId":%b%b]}'
    return target.request("POST", "/api/v1/ack/batch", body % (msgspec.json.encode(group), ids, end))


class Consumer(Connection):
    """Pops and acknowledges as long as there is time (or messages)."""

    decoder: msgspec.json.Decoder[Popped] = _POPPED

    def __init__(self, tally: Tally, target: Target, role: Consume) -> None:
        super().__init__(tally)
        self._target = target
        self._role = role
        query = f"batch={role.batch}&consumerGroup={in_path(role.group)}"
        if role.auto_ack:
            query += "&autoAck=true"
        if role.wait_ms:
            query += f"&wait=true&timeout={role.wait_ms}"
        self._pop = target.request("GET", f"/api/v1/pop/queue/{in_path(role.queue)}?{query}")
        self._acking = 0  # messages whose ack is under way
        self._popped_at = 0.0

    def start(self) -> None:
        if self.over() or (self._role.most and self.tally.count >= self._role.most):
            self.finish()
            return
        self.send(self._pop)
        self._popped_at = self.sent_at

    def rest(self) -> None:
        # A long poll is dropped: it may wait for longer than we want to.
        if not self.busy or (self._role.wait_ms and not self._acking):
            self.finish()

    def answered(self, data: bytes) -> None:
        if self._acking:
            count, self._acking = self._acking, 0
            if data.startswith(b"HTTP/1.1 200") and not _REFUSED.search(data):
                self.acked(count)
                self.start()
            else:
                self.refused(data)
                self.later(PAUSE_SECONDS)
        elif data.startswith(b"HTTP/1.1 200"):
            self._popped(data)
        elif not data.startswith(b"HTTP/1.1 204"):
            self.refused(data)
            self.later(PAUSE_SECONDS)
        elif self._role.until_empty:
            self.finish()
        else:
            self.later(0 if self._role.wait_ms else EMPTY_SECONDS)

    def _popped(self, data: bytes) -> None:
        try:
            popped = self.decoder.decode(body_of(data))
        except msgspec.MsgspecError as error:
            self.tally.fail(f"the answer to a pop cannot be read: {error}")
            self.later(PAUSE_SECONDS)
            return
        if not popped.messages:  # some brokers answer so instead of 204
            if self._role.until_empty:
                self.finish()
            else:
                self.later(EMPTY_SECONDS)
            return
        self.delivered(popped)
        if self._role.auto_ack:
            self.acked(len(popped.messages))
            self.start()
        else:
            self._acking = len(popped.messages)
            self.send(ack_request(self._target, popped, self._role.group))

    def delivered(self, popped: Popped) -> None:
        """Messages have come."""

    def acked(self, messages: int) -> None:
        """Their acknowledgement is answered."""
        self.tally.add(messages, time.perf_counter() - self._popped_at)


class Weigher(Consumer):
    """A consumer that also counts the bytes of the payloads."""

    decoder = FULL_POPPED

    def delivered(self, popped: Popped) -> None:
        messages = cast(FullPopped, popped).messages
        self.tally.payload_bytes += sum([len(message.data) for message in messages])


def pushers(tally: Tally, target: Target, role: Push) -> list[Pusher]:
    """The connections of a role; they share templates and pace."""
    templates: dict[tuple[int, int], bytes] = {}
    pace = Pace(role.rate) if role.rate else None
    return [Pusher(tally, target, role, number, templates, pace) for number in range(role.connections)]
