"""OpenTelemetry, when the user has it: a push and what is done with the message are one trace.

The context travels in the message's ``traceId``, as a W3C traceparent. Without the package nothing happens,
and nothing is imported.
"""

from __future__ import annotations

import importlib.util
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

LOOK_SECONDS = 0.02  # whether somebody has said it by now: to look costs as much as to push a message
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_installed: bool | None = None
_told = False  # nobody can unsay it
_look_at = 0.0
_trace: Any = None  # the module, once it was looked for
_NOTHING: AbstractContextManager[None] = nullcontext()


def available() -> bool:
    """Whether the package is there, and somebody has said where traces go."""
    global _installed, _trace, _told, _look_at
    if _told or _installed is False:
        return _told
    now = time.monotonic()
    if now < _look_at:
        return False
    _look_at = now + LOOK_SECONDS
    if _installed is None:
        found = importlib.util.find_spec("opentelemetry") is not None
        if found:
            from opentelemetry import trace

            _trace = trace
        _installed = found  # last: other threads go by it
    _told = _installed and type(_trace.get_tracer_provider()) is not _trace.ProxyTracerProvider
    return _told


def _tracer() -> Any:
    from opentelemetry import trace

    return trace.get_tracer("queenstream")


def sending(queue: str, count: int) -> AbstractContextManager[str | None]:
    """A span for a push; gives the context for its messages, None if there is none."""
    return _sending(queue, count) if available() else _NOTHING


def handling(queue: str, trace_ids: Iterable[str | None]) -> AbstractContextManager[None]:
    """A span for a handler: the child of its message's push, or linked to those of several."""
    return _handling(queue, list(trace_ids)) if available() else _NOTHING


@contextmanager
def _sending(queue: str, count: int) -> Iterator[str | None]:
    from opentelemetry import propagate
    from opentelemetry.trace import SpanKind

    about = {
        "messaging.system": "queenstream",
        "messaging.operation.type": "send",
        "messaging.destination.name": queue,
        "messaging.batch.message_count": count,
    }
    with _tracer().start_as_current_span(f"send {queue}", kind=SpanKind.PRODUCER, attributes=about):
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        yield carrier.get("traceparent")


@contextmanager
def _handling(queue: str, trace_ids: Sequence[str | None]) -> Iterator[None]:
    from opentelemetry import propagate, trace

    found = {text for text in trace_ids if text is not None and _TRACEPARENT.fullmatch(text)}
    contexts = [propagate.extract({"traceparent": text}) for text in sorted(found)]
    about = {
        "messaging.system": "queenstream",
        "messaging.operation.type": "process",
        "messaging.destination.name": queue,
        "messaging.batch.message_count": len(trace_ids),
    }
    parent = contexts[0] if len(contexts) == 1 else None
    links = (
        []
        if parent is not None
        else [trace.Link(trace.get_current_span(context).get_span_context()) for context in contexts]
    )
    with _tracer().start_as_current_span(
        f"process {queue}", context=parent, kind=trace.SpanKind.CONSUMER, attributes=about, links=links
    ):
        yield


def context() -> str | None:
    """The context of the caller, to travel in a message; None if there is none."""
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return carrier.get("traceparent")
