"""``queen.dlq(…)`` against a real broker: finding, replaying, putting right and deleting dead letters."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from queenstream import AsyncQueen, Queen
from queenstream.broker.app import Broker
from queenstream.client._async import dead_letters
from queenstream.errors import NotFound
from tests.conftest import Clock
from tests.integration.test_history import data_for, dead, push
from tests.integration.test_resources import ack, pop


@pytest.fixture
async def queen(broker: Broker) -> AsyncIterator[AsyncQueen]:
    async with AsyncQueen(broker.address) as client:
        yield client


async def die(http: httpx.AsyncClient, queue: str, group: str, error: str, count: int) -> None:
    """So many messages die at the same moment."""
    await ack(http, await pop(http, queue, batch=count, consumerGroup=group), "dlq", error=error)


async def names(letters: dead_letters.AsyncDeadLetters) -> list[str]:
    return [letter.transaction_id async for letter in letters]


@pytest.fixture
async def some(http: httpx.AsyncClient, clock: Clock) -> None:
    """a and b are dead for g, a for h too; c lives. 100 seconds between a and b. In queue r, x is dead."""
    await push(http, "q", "a", "b", "c")
    await dead(http, "q", "g", "h", error="Timeout of ann")
    clock.turn(100)
    await dead(http, "q", "g", error="no such customer")
    await push(http, "r", "x", partition="p")
    await dead(http, "r", "g", error="broken")


@pytest.mark.usefixtures("some")
async def test_a_chain_says_which(queen: AsyncQueen, clock: Clock) -> None:
    letters = queen.dlq("q")
    page = await letters.list(limit=2)
    assert ([letter.transaction_id for letter in page], page.total, page.more) == (["b", "a"], 3, True)
    assert (page[0].error_message, page[0].data, page[0].retry_count) == ("no such customer", {"is": "b"}, 0)
    assert [letter.transaction_id for letter in await letters.list(limit=2, offset=2)] == ["a"]
    assert await names(letters.group("h")) == ["a"]
    assert await names(letters.group("nobody")) == []
    assert await names(letters) == ["b", "a", "a"]  # the chain above has changed nothing
    [first] = await letters.list(offset=2)
    assert await names(letters.between(page[0].failed_at)) == ["b"]
    assert await names(letters.between(end="2020-01-01T00:00:00Z")) == []
    assert await names(letters.between(first.failed_at, clock()).group("g")) == ["b", "a"]
    assert await names(queen.dlq("r").partition("p")) == ["x"]
    assert await names(queen.dlq("q").partition("p")) == []
    assert (await letters.count(), await queen.dlq("none").count()) == (3, 0)


@pytest.mark.usefixtures("some")
async def test_one_letter(queen: AsyncQueen) -> None:
    [letter] = await queen.dlq("r").list()
    detail = await queen.dlq("r").get(letter.id)
    assert (detail.cause, detail.transaction_id, detail.queue) == ("rejected", "x", "r")
    assert await queen.dlq("r").get(letter) == detail
    with pytest.raises(NotFound, match="no dead letter 0"):
        await queen.dlq("r").get("0")


@pytest.mark.usefixtures("some")
async def test_retry_one_several_or_those_that_match(queen: AsyncQueen, http: httpx.AsyncClient) -> None:
    [b, a] = await queen.dlq("q").group("g").list()
    [replayed] = await queen.dlq("q").retry(b)
    assert (replayed.consumer_group, replayed.message_id.isdigit()) == ("g", True)
    assert len(await queen.dlq("q").retry([a.id])) == 1
    assert await data_for(http, "q", "g") == [{"is": "c"}, {"is": "b"}, {"is": "a"}]
    assert await queen.dlq("q").retry(lambda letter: letter.error_message == "other") == ()
    [of_h] = await queen.dlq("q").retry(lambda letter: letter.data == {"is": "a"})
    assert of_h.consumer_group == "h"
    assert await names(queen.dlq("q")) == []
    assert await queen.dlq("r").retry([]) == ()
    assert await names(queen.dlq("r")) == ["x"]  # none is not all
    with pytest.raises(NotFound, match="no dead letter"):
        await queen.dlq("q").retry([b, a])


async def test_what_matches_is_replayed_as_it_died(queen: AsyncQueen, http: httpx.AsyncClient) -> None:
    await push(http, "q", "a", "b", "c", "d")
    for _ in range(4):
        await dead(http, "q", "g")
    assert len(await queen.dlq("q").retry(lambda letter: letter.transaction_id != "b")) == 3
    assert await data_for(http, "q", "g") == [{"is": "a"}, {"is": "c"}, {"is": "d"}]


@pytest.mark.usefixtures("some")
async def test_retry_all(queen: AsyncQueen, http: httpx.AsyncClient) -> None:
    assert await queen.dlq("q").retry_all(error_contains="nothing like it") == 0
    assert await queen.dlq("q").group("g").retry_all(error_contains="TIMEOUT") == 1
    assert await data_for(http, "q", "g") == [{"is": "c"}, {"is": "a"}]
    assert await queen.dlq("q").retry_all() == 2
    assert await queen.dlq("q").retry_all() == 0
    assert await data_for(http, "q", "g") == [{"is": "b"}]
    assert await names(queen.dlq("r")) == ["x"]


async def test_retry_all_in_batches(
    queen: AsyncQueen, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "_BATCH", 2)
    await push(http, "q", "a", "b", "c", "d", "e")
    await die(http, "q", "g", "Bad", 5)
    assert await queen.dlq("q").retry_all(error_contains="bad") == 5
    assert [message["is"] for message in await data_for(http, "q", "g")] == ["a", "b", "c", "d", "e"]


async def test_between_holds_for_all(queen: AsyncQueen, http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", "a", "b", "c")
    await die(http, "q", "g", "bad luck", 2)
    clock.turn(100)
    middle = clock()
    await die(http, "q", "g", "bad luck", 1)
    early = queen.dlq("q").between(end=middle)
    assert await early.retry_all(error_contains="other") == 0
    assert await early.retry_all(error_contains="LUCK") == 2
    assert await names(queen.dlq("q")) == ["c"]
    assert await queen.dlq("q").between(end=middle).delete_all() == 0
    assert await queen.dlq("q").between(middle).delete_all() == 1


@pytest.mark.usefixtures("some")
async def test_edit_replays_with_other_data(queen: AsyncQueen, http: httpx.AsyncClient) -> None:
    [b, a] = await queen.dlq("q").group("g").list()
    replayed = await queen.dlq("q").edit(b, {**b.data, "customer": "ann"})
    assert replayed.consumer_group == "g"
    await queen.dlq("q").edit(a.id, None)
    assert await data_for(http, "q", "g") == [{"is": "c"}, {"is": "b", "customer": "ann"}, None]


@pytest.mark.usefixtures("some")
async def test_delete(queen: AsyncQueen) -> None:
    [b, a] = await queen.dlq("q").group("g").list()
    assert await queen.dlq("q").delete(b) == 1
    assert await queen.dlq("q").delete([a]) == 1
    assert await queen.dlq("q").delete(lambda letter: letter.consumer_group == "nobody") == 0
    assert await queen.dlq("q").delete(lambda letter: letter.consumer_group == "h") == 1
    with pytest.raises(NotFound):
        await queen.dlq("q").delete(a)
    assert await queen.dlq("r").delete_all(error_contains="other") == 0
    assert await queen.dlq("r").group("g").partition("p").delete_all() == 1
    assert await queen.dlq("r").count() == 0


async def test_all_pages_are_walked_whatever_the_loop_does(
    queen: AsyncQueen, http: httpx.AsyncClient, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven letters of one moment do not fit a page of three; what the loop deletes moves nothing past it."""
    monkeypatch.setattr(dead_letters, "_PAGE", 3)
    await push(http, "q", *"abcdefghijk")
    await die(http, "q", "g", "bad", 2)
    clock.turn(1)
    await die(http, "q", "g", "bad", 7)
    clock.turn(1)
    await die(http, "q", "g", "bad", 2)
    everything = list("kjihgfedcba")
    assert sorted(await names(queen.dlq("q")), reverse=True) == everything
    seen = []
    async for letter in queen.dlq("q"):
        seen.append(letter.transaction_id)
        if len(seen) % 2:
            await queen.dlq("q").delete(letter)
    assert sorted(seen, reverse=True) == everything
    assert await queen.dlq("q").count() == 5


@pytest.mark.usefixtures("some")
async def test_the_synchronous_client_is_the_same(broker: Broker) -> None:
    def work() -> tuple[list[str], int, int]:
        with Queen(broker.address) as queen:
            letters = queen.dlq("q").group("g")
            found = [letter.transaction_id for letter in letters]
            return found, len(letters.retry(lambda letter: letter.transaction_id == "a")), letters.count()

    assert await asyncio.to_thread(work) == (["b", "a"], 1, 1)
