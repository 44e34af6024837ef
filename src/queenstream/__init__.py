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
    from queenstream.client._base.buffer import Backpressure
    from queenstream.client._base.responses.messages import AckResult, PushResult
    from queenstream.client._sync.client import Queen
    from queenstream.client._sync.message import Message, Messages
    from queenstream.client._sync.producer import Producer
    from queenstream.client._sync.window import Window
    from queenstream.connectors.dead_letters import Letters
    from queenstream.core.aggregates import (
        avg,
        collect_list,
        collect_set,
        count_distinct,
        custom,
        first,
        last,
        max_,
        min_,
        percentile,
        stddev,
        sum_,
    )
    from queenstream.pipeline.builder import Pipeline
    from queenstream.pipeline.endpoints import (
        Cassandra,
        Files,
        Function,
        Generator,
        Kafka,
        Memory,
        Postgres,
        Queue,
        Stream,
    )
    from queenstream.pipeline.expr.expressions import coalesce, col, lit, when
    from queenstream.pipeline.policies import DeadLetters, retry
    from queenstream.pipeline.shorthand import count, session, sliding, tumbling
    from queenstream.processor.processor import Event, EventWindow, LateEvent, StreamProcessor

__all__ = [
    "AckResult",
    "AsyncMessage",
    "AsyncMessages",
    "AsyncProducer",
    "AsyncQueen",
    "AsyncWindow",
    "Backpressure",
    "Cassandra",
    "DeadLetters",
    "Event",
    "EventWindow",
    "Files",
    "Function",
    "Generator",
    "Kafka",
    "LateEvent",
    "Letters",
    "Memory",
    "Message",
    "Messages",
    "Pipeline",
    "Postgres",
    "Producer",
    "PushResult",
    "Queen",
    "Queue",
    "Stream",
    "StreamProcessor",
    "Window",
    "avg",
    "coalesce",
    "col",
    "collect_list",
    "collect_set",
    "count",
    "count_distinct",
    "custom",
    "first",
    "last",
    "lit",
    "max_",
    "min_",
    "percentile",
    "retry",
    "session",
    "sliding",
    "stddev",
    "sum_",
    "tumbling",
    "when",
]

_BY_HOME = {
    "core.aggregates": (
        "avg",
        "collect_list",
        "collect_set",
        "count_distinct",
        "custom",
        "first",
        "last",
        "max_",
        "min_",
        "percentile",
        "stddev",
        "sum_",
    ),
    "client._async.client": ("AsyncQueen",),
    "client._async.message": (
        "AsyncMessage",
        "AsyncMessages",
    ),
    "client._async.producer": ("AsyncProducer",),
    "client._async.window": ("AsyncWindow",),
    "client._base.buffer": ("Backpressure",),
    "client._base.responses.messages": (
        "AckResult",
        "PushResult",
    ),
    "client._sync.client": ("Queen",),
    "client._sync.message": (
        "Message",
        "Messages",
    ),
    "client._sync.producer": ("Producer",),
    "client._sync.window": ("Window",),
    "connectors.dead_letters": ("Letters",),
    "processor.processor": (
        "Event",
        "EventWindow",
        "LateEvent",
        "StreamProcessor",
    ),
    "pipeline.builder": ("Pipeline",),
    "pipeline.endpoints": (
        "Cassandra",
        "Files",
        "Function",
        "Generator",
        "Kafka",
        "Memory",
        "Postgres",
        "Queue",
        "Stream",
    ),
    "pipeline.expr.expressions": (
        "coalesce",
        "col",
        "lit",
        "when",
    ),
    "pipeline.policies": (
        "DeadLetters",
        "retry",
    ),
    "pipeline.shorthand": (
        "count",
        "session",
        "sliding",
        "tumbling",
    ),
}
_HOMES = {name: home for home, names in _BY_HOME.items() for name in names}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'queenstream' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"queenstream.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
