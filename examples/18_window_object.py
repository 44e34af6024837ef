"""What can be done with a window: look, group, filter, sum up; acknowledge it, refuse it, hold it longer."""

from __future__ import annotations

from queenstream import Queen


def main() -> None:
    with Queen() as queen:
        queen.stream("object-orders").delete()
        orders = queen.queue("object-sales")
        orders.delete()
        orders.create()
        stream = queen.stream("object-orders", "shop").sources(["object-sales"]).partitioned()
        stream.count(4).lease_timeout(30).define()  # every four messages of a partition
        orders.partition("north").push(
            [
                {"user": "ann", "amount": 5},
                {"user": "bob", "amount": 20},
                {"user": "ann", "amount": 11},
                {"user": "bob"},
            ]
        )

        # poll() gives one window, or None when none has come by then.
        consumer = queen.consumer("object-orders", "reader")
        window = consumer.poll(wait="10s")
        assert window is not None
        print("key", window.key, "attempt", window.attempt, "messages", len(window.all_messages))
        print("the id holds the key:", ":north:" in window.id)
        print("start and end:", window.start <= window.all_messages[0].created_at <= window.end)

        # By a field; "payload.user" is the same.
        print({user: len(messages) for user, messages in window.group_by("data.user").items()})

        # What is missing or no number is left out.
        print(window.aggregate(count=True, sum=["data.amount"], avg=["data.amount"]))

        # filter() works on window.messages and can be repeated; all_messages stays as it is.
        window.filter(lambda message: message.data["user"] == "bob").filter(lambda m: "amount" in m.data)
        print("filtered", len(window.messages), "of", len(window.all_messages))
        print("reset", len(window.reset().messages))

        # It takes longer: another minute from now. False would mean that the lease is over.
        print("renewed:", window.renew(60_000))

        # It failed: it comes again, with its attempt counted. process() does this when the handler raises.
        window.ack(False, "the printer is out of paper")
        again = consumer.poll(wait="10s")
        assert again is not None
        print("attempt", again.attempt, "same id:", again.id == window.id)
        again.ack()  # done; it does not come again
        print("next:", consumer.poll())


if __name__ == "__main__":
    main()
