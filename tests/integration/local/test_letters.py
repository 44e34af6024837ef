"""Dead letters of a pipeline in a queue of a real broker: listed, edited, replayed and deleted."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import jwt
import pytest

from queenstream import AsyncQueen, Queen
from queenstream.broker.app import Broker
from queenstream.connectors.dead_letters import Letters
from queenstream.engines.local.run import start
from queenstream.errors import ConfigError, NotFound, StepFailed
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory, Queue
from queenstream.pipeline.engine_api import RunOptions
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.state import State
from tests.conftest import StartBroker
from tests.integration.local.collecting import Collected

Row = dict[str, Any]


def halved(record: Row) -> Row:
    if record["n"] % 2:
        raise ValueError(f"{record['n']} is odd")
    return {"n": record["n"] // 2}


def halving(to: Callable[[Row], object], source: Any = None) -> Pipeline[Any]:
    return (
        Pipeline("halving")
        .source(source or Queue("numbers"))
        .transform("halve", halved, on_error=DeadLetters("failed"))
        .to(to, name="out")
    )


@pytest.fixture
async def queen(broker: Broker) -> AsyncIterator[AsyncQueen]:
    async with AsyncQueen(broker.address) as opened:
        yield opened


async def run(pipeline: Pipeline[Any], broker: Broker, **more: Any) -> Any:
    """To the end of what is there."""
    started = start(pipeline.plan(), RunOptions(url=broker.address, until="caught_up", **more))
    assert await asyncio.to_thread(started.wait, 60)
    return started


async def with_letters(broker: Broker, work: Callable[[Letters], Any]) -> Any:
    """What a user does with the sync client, beside the broker in this loop."""

    def do() -> Any:
        with Queen(broker.address) as queen:
            return work(Letters(queen, "failed"))

    return await asyncio.to_thread(do)


async def test_a_record_is_mended_and_goes_on_where_it_failed(
    broker: Broker, queen: AsyncQueen, tmp_path: Path
) -> None:
    await queen.queue("numbers").push([{"n": n} for n in range(1, 5)])
    rows = Collected()
    await run(halving(rows), broker, checkpoint=str(tmp_path))
    assert rows.rows == [{"n": 1}, {"n": 2}]

    def mend(letters: Letters) -> list[Any]:
        found = list(letters)
        assert [letter.record for letter in found] == [{"n": 3}, {"n": 1}]
        newest = found[0]
        assert (newest.pipeline, newest.step, newest.attempts) == ("halving", "halve", 1)
        assert (newest.error_type, newest.error) == ("ValueError", "3 is odd")
        edited = letters.edit(newest, record={"n": 30})
        assert letters.get(edited.id) == edited
        assert edited.id != newest.id
        assert letters.replay(letters) == 2
        return list(letters)

    assert await with_letters(broker, mend) == []
    again = await run(halving(rows), broker, checkpoint=str(tmp_path))
    assert rows.rows == [{"n": 1}, {"n": 2}, {"n": 15}]
    assert again.steps["replay:failed"].taken == 2
    left = await with_letters(broker, list)
    assert [(letter.record, letter.error) for letter in left] == [({"n": 1}, "1 is odd")]
    await run(halving(rows), broker, checkpoint=str(tmp_path))
    assert len(rows.rows) == 3  # what came back was acknowledged


async def test_a_running_pipeline_takes_letters_back_and_a_bounded_one_ends(broker: Broker) -> None:
    """A source with an end does not wait for letters; what is there comes back before everything closes."""
    rows = Collected()
    numbers = Memory([{"n": 1}, {"n": 2}])
    first = start(halving(rows, numbers).plan(), RunOptions(url=broker.address))
    assert await asyncio.to_thread(first.wait, 60)
    assert rows.rows == [{"n": 1}]

    def mend(letters: Letters) -> None:
        [letter] = letters
        letters.replay(letters.edit(letter, record={"n": 100}))

    await with_letters(broker, mend)
    second = start(halving(rows, numbers).plan(), RunOptions(url=broker.address))
    assert await asyncio.to_thread(second.wait, 60)
    assert sorted(row["n"] for row in rows.rows) == [1, 1, 50]


async def test_letters_come_back_while_it_runs(broker: Broker, queen: AsyncQueen) -> None:
    await queen.queue("numbers").push([{"n": 1}])
    arrived = threading.Event()
    rows: list[Row] = []

    def sink(row: Row) -> None:
        rows.append(row)
        arrived.set()

    live = start(halving(sink).plan(), RunOptions(url=broker.address))
    try:
        letters = queen.queue("failed").group("look").wait("30s")
        [message] = await letters.pop()

        def mend(letters: Letters) -> None:
            [letter] = letters
            letters.replay(letters.edit(letter, record={"n": 4}))

        await message.ack()
        await with_letters(broker, mend)
        assert await asyncio.to_thread(arrived.wait, 30)
        assert rows == [{"n": 2}]
    finally:
        live.stop()
        assert await asyncio.to_thread(live.wait, 60)


async def test_a_crash_between_its_commit_and_its_delivery_lets_a_letter_in_once(
    broker: Broker, queen: AsyncQueen, tmp_path: Path
) -> None:
    await queen.queue("numbers").push([{"n": 1}])
    await run(halving(Collected()), broker, checkpoint=str(tmp_path))

    def mend(letters: Letters) -> None:
        [letter] = letters
        letters.replay(letters.edit(letter, record={"n": 8}))

    await with_letters(broker, mend)

    def breaking(row: Row) -> None:
        raise RuntimeError("the power is gone")

    broken = halving(breaking).on_error("fail")
    with pytest.raises(StepFailed):
        await run(broken, broker, checkpoint=str(tmp_path))
    rows = Collected()
    await run(halving(rows), broker, checkpoint=str(tmp_path))
    await run(halving(rows), broker, checkpoint=str(tmp_path))
    assert rows.rows == [{"n": 4}]


async def test_a_letter_that_is_replayed_twice_goes_on_once(broker: Broker, queen: AsyncQueen) -> None:
    await queen.queue("numbers").push([{"n": 1}, {"n": 3}])
    rows = Collected()
    await run(halving(rows), broker)

    def twice(letters: Letters) -> None:
        found = [letters.edit(letter, record={"n": 2}) for letter in letters]
        letters.replay(found)
        letters.replay(found)  # as after a crash before they were deleted
        with pytest.raises(NotFound, match="it may have been replayed"):
            letters.replay(found[0].id)

    await with_letters(broker, twice)
    await run(halving(rows), broker)
    assert rows.rows == [{"n": 1}, {"n": 1}]


async def test_finding_and_deleting(broker: Broker, queen: AsyncQueen) -> None:
    await queen.queue("numbers").push([{"n": n} for n in (1, 3, 5)])
    await run(halving(Collected()), broker)
    await queen.queue("failed").push({"somebody": "else's"})

    def look(letters: Letters) -> None:
        def numbers(found: Any) -> list[int]:
            return [letter.record["n"] for letter in found]

        assert numbers(letters) == [5, 3, 1]
        assert numbers(letters.find(step="halve", error="VALUEERROR: 3")) == [3]
        assert numbers(letters.find(step="other")) == []
        assert numbers(letters.find(matching=lambda letter: letter.record["n"] > 1)) == [5, 3]
        [first] = letters.find(error="1 is odd")
        assert letters.edit(first, record={"n": 1}) is first
        assert letters.delete([first.id]) == 1
        assert letters.delete(first) == 0
        assert numbers(letters) == [5, 3]

    await with_letters(broker, look)


async def test_the_queues_of_letters_forget_none_that_waits(broker: Broker) -> None:
    await run(halving(Collected(), Memory([{"n": 1}])), broker)
    async with AsyncQueen(broker.address) as queen:
        assert (await queen.admin.queue("failed")).options.ttl == 0
        assert (await queen.admin.queue("failed.replay")).options.ttl == 0
        await queen.queue("failed").config(ttl=60).create()
        await run(halving(Collected(), Memory([{"n": 1}])), broker)
        assert (await queen.admin.queue("failed")).options.ttl == 60


def waiting(key: str, record: Row, state: State) -> None:
    state.set_timer("soon", at=state.time)


def broken(key: str, timer: str, state: State) -> None:
    raise ValueError("no")


async def test_what_was_no_record_cannot_come_back(broker: Broker) -> None:
    pipeline: Pipeline[Any] = (
        Pipeline("timers")
        .source(Memory([{"k": "a", "at": 0}]))
        .event_time("at")
        .key_by("k")
        .stateful(waiting, on_timer=broken, on_error=DeadLetters("failed"))
        .to(print)
    )
    await run(pipeline, broker)

    def look(letters: Letters) -> None:
        [letter] = letters
        assert (letter.record, letter.input) == ({"key": "a", "timer": "soon"}, None)
        with pytest.raises(ConfigError, match="about a timer or a closed window"):
            letters.replay(letter)

    await with_letters(broker, look)


async def test_without_replay_nothing_is_read(broker: Broker) -> None:
    pipeline = (
        Pipeline("p")
        .source(Memory([{"n": 1}]))
        .transform("halve", halved, on_error=DeadLetters("failed", replay=False))
        .to(print)
    )
    assert [read.name for read in pipeline.plan().sources] == ["memory"]
    await run(pipeline, broker)
    async with AsyncQueen(broker.address) as queen:
        with pytest.raises(NotFound):
            await queen.admin.queue("failed.replay")


SECRET = "a secret of at least thirty-two bytes"


async def test_a_run_has_its_own_token(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("QUEEN_TOKEN", raising=False)
    guarded = await start_broker(auth_secret=SECRET)
    token = jwt.encode({"sub": "jobs", "role": "admin", "exp": 4_000_000_000}, SECRET, "HS256")
    async with AsyncQueen(guarded.address, token=token) as queen:
        await queen.queue("numbers").push([{"n": 2}, {"n": 3}])
        await queen.queue("names").partition("1").push({"name": "one"})
        rows = Collected()
        pipeline = halving(rows).lookup(Queue("names"), on="n", into="of", name="named").to(Queue("halves"))
        await run(pipeline, guarded, token=token)
        assert rows.rows == [{"n": 1}]
        assert [message.data for message in await queen.queue("halves").batch(10).pop()] == [
            {"n": 1, "of": {"name": "one"}}
        ]
        [letter] = await queen.queue("failed").batch(10).pop()
        assert letter.data["record"] == {"n": 3}
        assert (await queen.admin.pipeline("halving")).state == "stopped"
    assert token not in repr(RunOptions(token=token))
