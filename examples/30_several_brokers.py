"""Several brokers on one database: when one is away the others are asked. And how long anything may take."""

from __future__ import annotations

import os

from queenstream import Queen
from queenstream.errors import BrokerUnreachable, QueenstreamError

HERE = os.environ.get("QUEEN_URL", "http://127.0.0.1:6632")
AWAY = "http://127.0.0.1:9"  # nobody listens there


def main() -> None:
    # The addresses in QUEEN_URL have commas between them. Requests go to the broker with the least under way;
    # one that does not answer is left alone for a while. The timeout is for a call, over all its attempts.
    with Queen([AWAY, HERE], timeout="10s") as queen:
        orders = queen.queue("brokers-orders")
        orders.delete()
        for n in range(20):
            orders.push({"n": n})  # carries its transaction id, so to repeat it is safe
        print("stored:", len(orders.batch(100).auto_ack().pop()))

    with Queen(AWAY, timeout="300ms") as queen:
        try:
            queen.queue("brokers-orders").push({"n": 20})
        except BrokerUnreachable as error:
            print("failed:", error)

    # Everything that this package raises is a QueenstreamError, and says what to do.
    with Queen(HERE) as queen:
        try:
            queen.admin.queue("brokers-nowhere")
        except QueenstreamError as error:
            print(type(error).__name__)


if __name__ == "__main__":
    main()
