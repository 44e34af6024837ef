"""A program with OpenTelemetry: runs a pipeline, then prints its spans as JSON."""

from __future__ import annotations

import json
import sys

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queenstream import Memory, Pipeline


def own(row: dict[str, int]) -> None:
    with trace.get_tracer("user").start_as_current_span("sink"):
        pass


def main() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    pipeline = Pipeline("traced").source(Memory([{"n": 1}, {"n": 2}])).filter("n > 1").to(own)
    with trace.get_tracer("user").start_as_current_span("whoever started it"):
        pipeline.run(engine="local")
    spans = exporter.get_finished_spans()
    names = {span.context.span_id: span.name for span in spans if span.context is not None}
    told = [
        {
            "name": span.name,
            "parent": None if span.parent is None else names[span.parent.span_id],
            "attributes": dict(span.attributes or {}),
            "took_ns": (span.end_time or 0) - (span.start_time or 0),
        }
        for span in spans
    ]
    sys.stdout.write(json.dumps(told))


if __name__ == "__main__":
    main()
