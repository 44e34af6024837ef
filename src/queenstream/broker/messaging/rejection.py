"""Puts messages whose encrypted payload was altered among the dead letters, so that they hold up no others.

The dead letter keeps the payload as it is stored, and the error: once it is restored, it can be replayed.
"""

from __future__ import annotations

import logging
import uuid
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from queenstream.broker.schemas.messages import Ack

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)


class Rejected(Struct):
    """Messages of one partition that a group cannot be given. ``lease``: None with ``autoAck``."""

    partition_id: int
    group: str
    lease: uuid.UUID | None
    ids: list[int]
    transactions: list[str]
    error: str


async def bury(broker: Broker, rejected: Rejected) -> None:
    """Give the messages up for their group."""
    log.error(
        "partition %d, messages %s: %s; they are among the dead letters of group %s",
        rejected.partition_id, ", ".join(rejected.transactions), rejected.error, rejected.group,
    )  # fmt: skip
    if rejected.lease is None:  # they are acknowledged already
        await broker.database.catalog(
            "bury_acknowledged", rejected.partition_id, rejected.group, rejected.ids, rejected.error,
            broker.database.now(),
        )  # fmt: skip
        return
    acks = [
        Ack(transaction, str(rejected.partition_id), "dlq", rejected.error, None, str(rejected.lease))
        for transaction in rejected.transactions
    ]
    await broker.acker.ask(acks, rejected.group)


def of_window(row: Any, group: str, lease: uuid.UUID, error: str) -> Rejected:
    """The message that stands for a window that was popped."""
    return Rejected(row["partition_id"], group, lease, list(row["ids"]), list(row["transactions"]), error)
