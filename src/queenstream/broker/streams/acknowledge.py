"""Acknowledge a window: find it by its id and lease, and acknowledge the message that stands for it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from queenstream.broker.messaging.ack import lease_number
from queenstream.broker.messaging.push import Fetch
from queenstream.broker.schemas.messages import Ack, WindowAck
from queenstream.broker.streams.model import Stream

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

ENDED = "the lease has ended, or is not this window's: nothing was changed. Poll again."
_LEASED = """
    select c.partition_id, g.name as group_name, m.transaction_id
    from queen.windows w
    join queen.cursors c on c.partition_id = w.partition_id
    join queen.groups g on g.id = c.group_id
    join queen.messages m on m.partition_id = w.partition_id and m.id = w.message_id
    where w.stream_id = $1 and w.key = $2 and w.start_us = $3 and w.end_us = $4
      and (c.lease_id = $5 and c.lease_to = w.message_id and c.ready_at > coalesce($6, clock_timestamp())
           or $7 and c.last_lease_id = $5 and c.acked_id >= w.message_id)
"""


class LeaseEnded(Exception):
    """What should be acknowledged is not leased any more; the text says what to do."""


async def load_streams(broker: Broker, window_ids: Iterable[str]) -> None:
    """Load the streams of these windows, so that ``resolve`` needs no other connection of the database."""
    if any(_stream_of(broker, window_id) is None for window_id in window_ids):
        await broker.streams.load()


async def resolve(broker: Broker, fetch: Fetch, sent: WindowAck, *, repeat: bool = False) -> Ack:
    """The acknowledgement of the message that stands for a window; ``LeaseEnded`` if its lease is over.

    ``repeat``: the lease may be over if the window was completed under it, as when an answer was lost.
    """
    stream = _stream_of(broker, sent.window_id)
    window = None if stream is None else stream.parse_window_id(sent.window_id)
    if stream is None or window is None:
        raise LeaseEnded(ENDED)
    rows = await fetch(
        _LEASED, stream.id, *window, lease_number(sent.lease_id), broker.database.now(), repeat
    )
    if not rows:
        raise LeaseEnded(ENDED)
    row = rows[0]
    error = None if sent.success else sent.error or "the consumer gave it back"
    return Ack(
        row["transaction_id"],
        str(row["partition_id"]),
        "completed" if sent.success else "failed",
        error,
        row["group_name"],
        sent.lease_id,
    )


def _stream_of(broker: Broker, window_id: str) -> Stream | None:
    number = window_id.partition(":")[0]
    return broker.streams.by_id(int(number)) if number.isdecimal() and len(number) <= 10 else None
