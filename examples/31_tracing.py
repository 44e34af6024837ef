"""OpenTelemetry: a push and the handler of its message are one trace, across programs."""

from __future__ import annotations

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from queenstream import Message, Queen

# pip install opentelemetry-sdk, and say where spans go. Nothing else is needed: the context travels in the
# message. Without the package, or before it is told where spans go, the client does nothing of this.
spans = InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(spans))
trace.set_tracer_provider(provider)


def charge(message: Message[dict[str, int]]) -> None:
    with trace.get_tracer("shop").start_as_current_span("charge"):
        # Spans go where OpenTelemetry sends them. This note stays with the message, for `queen trace`.
        message.trace({"step": "charged", "amount": message.data["amount"]}, names=["tracing-order-7"])


def main() -> None:
    with Queen() as queen:
        orders = queen.queue("tracing-orders")
        orders.delete()
        with trace.get_tracer("shop").start_as_current_span("order"):
            orders.push({"amount": 5})
        orders.each().limit(1).consume(charge)

        found = spans.get_finished_spans()
        names = {span.context.span_id: span.name for span in found if span.context is not None}
        for span in sorted(found, key=lambda span: span.start_time or 0):
            print(span.name, "in", names[span.parent.span_id] if span.parent is not None else "nothing")
        print("traces:", len({span.context.trace_id for span in found if span.context is not None}))


if __name__ == "__main__":
    main()
