"""The places for expensive requests: handed on in order, and none is ever lost."""

from __future__ import annotations

import asyncio

from queenstream.broker.http.throttle import Throttle


async def test_places_go_to_who_may_have_them_in_the_order_of_asking() -> None:
    throttle = Throttle(places=3, per_caller=2)
    order: list[str] = []
    leave = {name: asyncio.Event() for name in ("a1", "a2", "a3", "b1", "b2")}

    async def hold(name: str) -> None:
        async with throttle.place(name[0]):
            order.append(name)
            await leave[name].wait()

    tasks = {name: asyncio.create_task(hold(name)) for name in leave}
    await asyncio.sleep(0)
    assert order == ["a1", "a2", "b1"]
    leave["b1"].set()
    await tasks["b1"]
    await asyncio.sleep(0)
    assert order == ["a1", "a2", "b1", "b2"]  # a has two
    tasks["a3"].cancel()
    await asyncio.gather(tasks["a3"], return_exceptions=True)
    for event in leave.values():
        event.set()
    await asyncio.gather(*tasks.values(), return_exceptions=True)
    async with asyncio.timeout(5), throttle.place("a"), throttle.place("a"), throttle.place("b"):
        pass
