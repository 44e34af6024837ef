"""Queenstream: partitioned queues and windows on PostgreSQL, data pipelines on Spark.

    from queenstream import Queen

    with Queen("http://127.0.0.1:6632") as queen:
        queen.queue("orders").partition("ann").push({"amount": 5})

The broker is a command, ``queen up``. Names are loaded when they are used first: importing this costs little.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queenstream.client._async.client import AsyncQueen
    from queenstream.client._async.message import AsyncMessage, AsyncMessages
    from queenstream.client._async.producer import AsyncProducer
    from queenstream.client._async.window import AsyncWindow
    from queenstream.client._base.buffering import Backpressure
    from queenstream.client._base.wire import AckResult, PushResult
    from queenstream.client._sync.client import Queen
    from queenstream.client._sync.message import Message, Messages
    from queenstream.client._sync.producer import Producer
    from queenstream.client._sync.window import Window

__all__ = [
    "AckResult",
    "AsyncMessage",
    "AsyncMessages",
    "AsyncProducer",
    "AsyncQueen",
    "AsyncWindow",
    "Backpressure",
    "Message",
    "Messages",
    "Producer",
    "PushResult",
    "Queen",
    "Window",
]

_HOMES = {
    "AckResult": "client._base.wire",
    "AsyncMessage": "client._async.message",
    "AsyncMessages": "client._async.message",
    "AsyncProducer": "client._async.producer",
    "AsyncQueen": "client._async.client",
    "AsyncWindow": "client._async.window",
    "Backpressure": "client._base.buffering",
    "Message": "client._sync.message",
    "Messages": "client._sync.message",
    "Producer": "client._sync.producer",
    "PushResult": "client._base.wire",
    "Queen": "client._sync.client",
    "Window": "client._sync.window",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'queenstream' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"queenstream.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
