"""Looking inside a run: batches, sample rows, checkpoints and state by key; it tells while somebody asks."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from queenstream import AsyncQueen, Pipeline, Queue, count, tumbling
from queenstream.broker.api import pipelines
from queenstream.broker.app import Broker
from queenstream.client._async.admin.api import AsyncAdmin
from queenstream.client._base.responses.pipelines import Inside
from queenstream.engines.local.run import start
from queenstream.errors import InvalidRequest, NotFound, TooLarge
from queenstream.pipeline.engine_api import RunOptions
from queenstream.runtime.samples import MOST_CHARACTERS, MOST_ROWS, Samples, as_text
from tests.conftest import Clock
from tests.integration.streams.streaming import eventually
from tests.integration.test_pipelines import tell

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
async def admin(broker: Broker) -> AsyncIterator[AsyncAdmin]:
    async with AsyncQueen(broker.address) as queen:
        yield queen.admin


async def test_a_run_is_asked_only_while_somebody_looks(admin: AsyncAdmin, clock: Clock) -> None:
    with pytest.raises(NotFound):
        await admin.pipeline_inside("totals")
    first = await tell(admin)
    assert (first.wants_inside, first.next_seconds) == (None, pipelines.REPORT_SECONDS)
    empty = await admin.pipeline_inside("totals", key="ann")
    assert (empty.told_at, empty.key, empty.inside.samples) == (None, "ann", {})
    clock.turn(2)
    asked = await tell(admin)
    assert asked.wants_inside is not None
    assert (asked.wants_inside.key, asked.next_seconds) == ("ann", pipelines.LOOKED_AT_SECONDS)
    clock.turn(2)
    told = {
        "batches": [{"ended": 1.5, "records": 3, "seconds": 0.2}],
        "samples": {"in": ['{"n":1}']},
        "checkpoints": [{"id": "c1", "committedAt": "2026-01-31T12:00:00Z", "clean": True}],
        "state": {"key": "ann", "entries": [{"step": "s", "n": 2}]},
    }
    await tell(admin, inside=json.dumps(told))
    shown = (await admin.pipeline_inside("totals")).inside
    assert (shown.batches[0].records, shown.samples) == (3, {"in": ['{"n":1}']})
    assert shown.checkpoints[0].clean is True
    assert shown.state is not None
    assert shown.state.entries == [{"step": "s", "n": 2}]
    clock.turn(pipelines.LOOK_SECONDS + 1)
    assert (await tell(admin)).wants_inside is None


async def test_what_cannot_be_told(admin: AsyncAdmin) -> None:
    with pytest.raises(InvalidRequest, match="inside does not fit"):
        await tell(admin, inside='{"samples": 7}')
    with pytest.raises(TooLarge):
        await tell(admin, inside=json.dumps({"error": "x" * pipelines.MOST_INSIDE_BYTES}))


async def test_a_local_run_shows_itself(admin: AsyncAdmin, broker: Broker, tmp_path: Path) -> None:
    """A real run over a queue that something is always pushed into."""
    pipeline = (
        Pipeline("totals")
        .source(Queue("numbers", url=broker.address))
        .transform("parse", lambda record: record | {"parsed": True})
        .key_by("user")
        .window(tumbling("1h"), time="at")
        .aggregate(n=count())
        .to(lambda _: None)
    )
    async with AsyncQueen(broker.address) as queen:
        await queen.queue("numbers").push({"n": 0, "user": "ann", "at": 0})
        run = start(pipeline.plan(), RunOptions(url=broker.address, checkpoint=str(tmp_path)))
        try:

            async def told() -> Inside | None:
                await queen.queue("numbers").push({"n": 1, "user": "ann", "at": 1000})
                with contextlib.suppress(NotFound):  # it has not told of itself yet
                    found = (await admin.pipeline_inside("totals", key="ann")).inside
                    if "parse" in found.samples and found.state and found.state.entries:
                        return found
                return None

            found: Inside = await eventually(told, 30)
        finally:
            run.stop()
            await asyncio.to_thread(run.wait, 20)
    assert json.loads(found.samples["parse"][-1])["parsed"] is True
    assert found.batches[-1].records >= 1
    assert found.checkpoints
    assert found.state is not None
    assert (found.state.key, found.state.entries[0]["key"]) == ("ann", "ann")
    assert found.error is None


def test_samples_are_bounded_and_end() -> None:
    now = 0.0
    samples = Samples(lambda: now)
    samples.ask()
    samples.see("s", [{"n": n} for n in range(100)])
    assert [json.loads(row)["n"] for row in samples.rows()["s"]] == list(range(100))[-MOST_ROWS:]
    samples.see("s", ["x" * 10_000])
    assert len(samples.rows()["s"][0]) == MOST_CHARACTERS
    now = 1_000.0
    samples.see("s", [1])
    assert (samples.on, samples.rows()) == (False, {})


def test_a_row_that_cannot_be_shown() -> None:
    class Odd:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert as_text(Odd()) == "(Odd, which cannot be shown)"
