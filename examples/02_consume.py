"""Consumers: handlers that are called with messages, and acknowledge by returning."""

from __future__ import annotations

import logging

from queenstream import Message, Messages, Queen

# A handler that raises is logged as a warning, with its traceback. Here that is expected, and not to be seen.
logging.getLogger("queenstream.client").setLevel(logging.ERROR)


def send(message: Message[dict[str, str]]) -> None:
    if message.data["to"] == "bob" and message.retry_count == 0:
        raise ConnectionError("the mail server is busy")
    print(f"sent to {message.data['to']}, failed before: {message.retry_count}")


def count(messages: Messages[dict[str, str]]) -> None:
    print("counted", len(messages))


def main() -> None:
    with Queen() as queen:
        mails = queen.queue("consume-mails")
        mails.delete()
        mails.config(retry_delay=100).create()
        mails.push([{"to": "ann"}, {"to": "bob"}, {"to": "cem"}])

        # One message at a time. If the handler raises, the message failed with that error, and comes again
        # with all after it in its partition. Without idle_timeout or limit a consumer runs until SIGINT or
        # SIGTERM, lets the handlers that run finish, and returns.
        done = mails.group("mailer").batch(10).each().idle_timeout("1s").consume(send)
        print(f"handled {done.handled}, failed {done.failed}")

        # Another group gets every message too; this handler takes all of a pop together.
        mails.group("counter").batch(10).limit(3).consume(count)

        # The same as a loop. A message is done when the loop asks for the next one.
        for message in mails.group("reader").batch(10).limit(3).messages():
            print("read", message.data["to"])

        # A group that wants only what comes from now on.
        news = mails.group("late").subscription_mode("new").batch(10)
        news.pop()
        mails.push({"to": "dora"})
        print("new:", [message.data["to"] for message in news.auto_ack().pop()])


if __name__ == "__main__":
    main()
