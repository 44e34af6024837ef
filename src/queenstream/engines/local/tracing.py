"""OpenTelemetry, when the user has set it up: a span for each epoch, from its first record to its delivery.

Without the package nothing happens, and nothing is imported.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from queenstream.client._base import telemetry

_NOTHING: AbstractContextManager[None] = nullcontext()


def epoch(
    pipeline: str, id: str, arrivals: Sequence[tuple[float, int]], outbox: Mapping[str, Sequence[Any]]
) -> AbstractContextManager[None]:
    """The span of an epoch that is being delivered; ``arrivals`` say when (monotonic) how many came."""
    return _epoch(pipeline, id, arrivals, outbox) if telemetry.available() else _NOTHING


@contextmanager
def _epoch(
    pipeline: str, id: str, arrivals: Sequence[tuple[float, int]], outbox: Mapping[str, Sequence[Any]]
) -> Iterator[None]:
    from opentelemetry import trace
    from opentelemetry.context import Context

    about: dict[str, str | int] = {
        "queenstream.pipeline": pipeline,
        "queenstream.epoch": id,
        "queenstream.records": sum(records for _, records in arrivals),
        "queenstream.rows": sum(map(len, outbox.values())),
    }
    age_seconds = time.monotonic() - arrivals[0][0] if arrivals else 0.0
    began_ns = time.time_ns() - int(age_seconds * 1e9)
    span = trace.get_tracer("queenstream").start_as_current_span(
        f"epoch {pipeline}", context=Context(), attributes=about, start_time=began_ns
    )
    with span:
        yield
