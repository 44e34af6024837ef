"""Dead letters: what a group gave up on, to look at, put right and send again."""

from __future__ import annotations

import logging

from queenstream import Message, Queen

logging.getLogger("queenstream.client").setLevel(logging.ERROR)  # the failures below are meant


def charge(message: Message[dict[str, int]]) -> None:
    if message.data["amount"] < 0:
        raise ValueError("the amount is negative")
    print("charged", message.data["amount"])


def main() -> None:
    with Queen() as queen:
        orders = queen.queue("dead-orders")
        orders.delete()
        orders.config(retry_limit=1, retry_delay=50).create()
        orders.push([{"amount": 5}, {"amount": -7}, {"amount": 9}, {"amount": -1}])

        # A message that fails past the retry limit goes to the dead letters; those behind it go on.
        billing = orders.group("billing").batch(10).each().idle_timeout("500ms")
        billing.consume(charge)

        letters = queen.dlq("dead-orders").group("billing")
        print("given up:", letters.count())
        for letter in letters:  # the newest first
            print(letter.data, letter.error_message)

        # Put one right and send it again, delete the other. Only the group that failed sees it again.
        wrong = next(letter for letter in letters if letter.data["amount"] == -7)
        letters.edit(wrong, {"amount": 7})
        letters.delete(lambda letter: letter.data["amount"] == -1)
        billing.consume(charge)
        print("given up:", letters.count())

        # A consumer can also decide by itself: not again, at once.
        orders.push({"amount": 0})
        for message in orders.group("billing").wait("5s").pop():
            message.dead_letter("nothing to charge")
        print(letters.list()[0].error_message)


if __name__ == "__main__":
    main()
