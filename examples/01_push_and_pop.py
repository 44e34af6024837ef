"""Push messages into a queue, pop them, and say that they are done."""

from __future__ import annotations

from queenstream import Queen


def main() -> None:
    with Queen() as queen:  # at QUEEN_URL, or http://127.0.0.1:6632
        orders = queen.queue("basics-orders")
        orders.delete()  # what an earlier run left behind

        # A queue is created on first push; create() is for a namespace and options.
        orders.namespace("shop").config(lease_time=60).create()

        # A partition is a lane whose order is kept: here one for each customer.
        orders.partition("ann").push({"item": "tea", "amount": 5})
        orders.partition("ann").push([{"item": "cup", "amount": 12}, {"item": "pot", "amount": 30}])

        # Who is not sure that a push arrived pushes again, with the same transaction id: it is stored once.
        for _ in range(2):
            result = orders.partition("bob").push({"item": "jam", "amount": 4}, transaction_id="order-17")
            print("order-17 is", result.status)

        # A pop lends messages for the lease time. What is not acknowledged by then comes again.
        for message in orders.partition("ann").batch(10).pop():
            print(message.partition, "bought", message.data["item"])
            message.ack()

        # Without a partition: the lane that has waited longest. wait() holds on until something comes.
        messages = orders.batch(10).wait("5s").pop()
        print(messages[0].partition, "bought", messages[0].data["item"])
        messages.ack()  # all of the pop at once
        print("left:", len(orders.batch(10).pop()))


if __name__ == "__main__":
    main()
