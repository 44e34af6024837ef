"""Payloads with a type: dataclasses, msgspec Structs or pydantic models go in and come out."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from queenstream import Queen

logging.getLogger("queenstream.client").setLevel(logging.ERROR)  # a payload that is refused is logged, too


@dataclass
class Order:
    customer: str
    amount: float


def main() -> None:
    with Queen() as queen:
        orders = queen.queue("typed-orders", type=Order)
        orders.delete()
        orders.push([Order("ann", 5.0), Order("bob", 12.5)])

        # Somebody else pushes what does not fit. Nothing checks it, for this side said no type.
        queen.queue("typed-orders").push({"customer": "cem", "amount": "a lot"})

        # message.data is an Order, for the type checker too.
        for message in orders.batch(10).pop():
            print(message.data.customer, "pays", message.data.amount + 1)
            message.ack()

        # What does not fit went to the dead letters, with the reason. on_invalid="skip", "raise" or a
        # function of (message, error) decides otherwise.
        for letter in queen.dlq("typed-orders"):
            print("refused:", letter.data)
            print("because", letter.error_message)


if __name__ == "__main__":
    main()
