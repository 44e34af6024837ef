"""A program with OpenTelemetry: pushes and consumes in every way, then prints its spans as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queenstream import AsyncMessage, AsyncQueen, Queen


async def work(address: str, tracer: trace.Tracer) -> None:
    async with AsyncQueen(address) as queen:

        async def handle(message: AsyncMessage[Any]) -> None:
            with tracer.start_as_current_span(f"handler {message.data}"):
                if message.data == "first":
                    await queen.transaction().ack(message).queue("next").push("second").commit()

        with tracer.start_as_current_span("request"):
            await queen.queue("first").push("first")
        await queen.queue("first").limit(1).each().consume(handle)
        await queen.queue("next").limit(1).each().consume(handle)
        with tracer.start_as_current_span("request of buffered"):
            async with queen.queue("buffered").buffered() as producer:
                await producer.push("buffered")
        await queen.queue("buffered").limit(1).each().consume(handle)
        await queen.queue("many").push("a")
        await queen.queue("many").push("b", trace_id="not a context")
        await queen.queue("many").push("c")
        await queen.queue("many").batch(3).limit(3).consume(lambda messages: None)


def work_in_threads(address: str) -> None:
    with Queen(address) as queen:
        queen.queue("threads").push([1, 2])
        queen.queue("threads").batch(2).limit(2).concurrency(2).each().consume(lambda message: None)


def shown(span: ReadableSpan) -> dict[str, Any]:
    context = span.context
    assert context is not None
    return {
        "name": span.name,
        "kind": span.kind.name,
        "trace": f"{context.trace_id:032x}",
        "id": f"{context.span_id:016x}",
        "parent": None if span.parent is None else f"{span.parent.span_id:016x}",
        "links": [f"{link.context.span_id:016x}" for link in span.links],
        "attributes": dict(span.attributes or {}),
    }


if __name__ == "__main__":
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    asyncio.run(work(sys.argv[1], trace.get_tracer("program")))
    work_in_threads(sys.argv[1])
    json.dump([shown(span) for span in exporter.get_finished_spans()], sys.stdout)
