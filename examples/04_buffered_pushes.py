"""A buffered producer: single messages in, batches out, with a limit on what may pile up."""

from __future__ import annotations

from queenstream import Backpressure, Queen
from queenstream.errors import BufferFull


def main() -> None:
    with Queen() as queen:
        metrics = queen.queue("buffered-metrics")
        metrics.delete()
        queen.queue("buffered-metrics.dead-letters").delete()

        # push() returns at once; lanes take together what is pending. The partition is read from the payload,
        # and the order inside a partition is kept. Leaving the block waits until all of it is stored.
        with metrics.buffered(batch_size=100, partition_key="host") as producer:
            for number in range(1000):
                producer.push({"host": f"web-{number % 4}", "value": number})
            last = producer.push({"host": "web-0", "value": 1000})
            print("the last one is", last.result(timeout=10).status)  # who needs to know can wait for it
        print("stored", producer.stats.stored, "in fewer requests:", producer.stats.batches < 1000)

        # A schema converts what it can; what does not fit goes to a queue of its own, the rest goes on.
        with metrics.buffered(schema="host string not null, value double", partition_key="host") as producer:
            producer.push({"host": "web-0", "value": "0.5"})
            producer.push({"host": "web-0", "value": "high"})
        print("refused", producer.stats.rejected)
        for message in queen.queue("buffered-metrics.dead-letters").batch(10).auto_ack().pop():
            print("refused:", message.data["record"])

        # When more comes than goes: block (the default), drop_oldest, drop_newest, or error. The long
        # flush_interval keeps the messages here, so that the threshold is reached.
        pressure = Backpressure("error", threshold=3, on_change=lambda now: print("pressure:", now.on))
        with metrics.buffered(flush_interval="1m", backpressure=pressure) as producer:
            try:
                for number in range(5):
                    producer.push({"value": number})
            except BufferFull:
                print("full at", producer.stats.pending)
            producer.flush()
        print("stored", producer.stats.stored)


if __name__ == "__main__":
    main()
