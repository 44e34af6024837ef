"""What retention takes from windows: only what nobody needs, or what is far past its time."""

from __future__ import annotations

import asyncpg
import httpx

from queenstream.broker.app import Broker
from tests.acceptance.speaking import configure
from tests.integration.streams.streaming import MINUTE, Streams, data, eventually

WEEK = 7 * 24 * 3600


async def test_past_the_hard_limit_a_window_says_that_it_is_not_complete(
    streams: Streams, broker: Broker
) -> None:
    await configure(streams.http, "q", ttl=60)
    await streams.define()
    streams.align()
    await streams.push(1, 2)
    streams.clock.turn(2 * MINUTE)
    window = await streams.take()
    assert (data(window), window["complete"]) == ([1, 2], True)
    await streams.ack(window, success=False)  # the group is known, and still needs it
    streams.clock.turn(WEEK - 10 * MINUTE)
    await broker.background.expire()
    window = await streams.take()
    assert (data(window), window["complete"]) == ([1, 2], True)
    await streams.ack(window, success=False)
    streams.clock.turn(20 * MINUTE)
    await broker.background.expire()
    window = await streams.take()
    assert (data(window), window["complete"]) == ([], False)
    await streams.ack(window)


async def test_windows_whose_messages_are_gone_are_forgotten(
    streams: Streams, broker: Broker, database_url: str
) -> None:
    """Neither they nor the messages that stand for them pile up."""
    await configure(streams.http, "q", ttl=60)
    await streams.define()
    streams.align()
    for number in range(3):
        await streams.push(number)
        streams.clock.turn(MINUTE)
    for window in await streams.drain(3):
        assert window["complete"]
    streams.clock.turn(10 * MINUTE)
    await broker.background.expire()
    await broker.background.forget()
    connection = await asyncpg.connect(database_url)
    left = await connection.fetchrow(
        "select (select count(*) from queen.windows), (select count(*) from queen.window_parts), "
        "(select count(*) from queen.messages)"
    )
    assert left is not None
    assert tuple(left) == (0, 0, 0)
    await streams.push("next")
    streams.clock.turn(2 * MINUTE)
    assert [data(window) for window in await streams.drain(1)] == [["next"]]
    await connection.close()


async def stored(http: httpx.AsyncClient) -> int:
    answer = await http.get("/api/v1/messages", params={"queue": "q", "limit": 100})
    assert answer.status_code == 200, answer.text
    return len(answer.json()["messages"])


async def test_retention_keeps_what_a_window_still_needs(streams: Streams, broker: Broker) -> None:
    """The queue's ttl is over, but a known group has not acknowledged the window yet."""
    await configure(streams.http, "q", ttl=60)
    await streams.define(window_duration_ms=10_000)
    await streams.nothing()  # now the group is known
    streams.align(10)
    await streams.push(1, 2)
    streams.clock.turn(300)
    await broker.background.expire()
    window = await streams.take()
    assert (data(window), window["complete"]) == ([1, 2], True)
    streams.clock.turn(61)
    await broker.background.expire()
    window = await streams.take()
    assert (data(window), window["complete"]) == ([1, 2], True)
    await streams.ack(window)

    async def gone() -> bool:
        await broker.background.expire()
        return await stored(streams.http) == 0

    await eventually(gone)


async def test_retention_goes_on_without_a_group(streams: Streams, broker: Broker) -> None:
    """A stream that nobody reads keeps nothing for ever."""
    await configure(streams.http, "q", ttl=60)
    await streams.define(window_duration_ms=10_000)
    await streams.push(1, 2)
    streams.clock.turn(300)

    async def gone() -> bool:
        await broker.background.expire()
        return await stored(streams.http) == 0

    await eventually(gone)
