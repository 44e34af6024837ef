"""What steps remember, as a run of the real engine stores it, is told by names."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from queenstream import Generator, Pipeline, count, session, sliding, tumbling
from queenstream.cli.pipeline.locations import meant
from queenstream.core import windows
from queenstream.engines.local.checkpoints.locations import opened, pipelines_in
from queenstream.errors import ConfigError, NotFound
from queenstream.runtime.state_view import described, is_entry, prefixes

RECORDS = [
    {"user": "ann", "shop": 7, "n": 5, "at": 61_000},
    {"user": "ann", "shop": 7, "n": 6, "at": 62_000},
    {"user": "7", "shop": 7, "n": 1, "at": 63_000},
]


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


async def records() -> AsyncIterator[dict[str, Any]]:
    """All of them, and then nothing: at an end everything would close, and be forgotten."""
    for record in RECORDS:
        yield record
    await asyncio.Event().wait()


def source(name: str = "p") -> Pipeline[Any]:
    return Pipeline(name).source(Generator(records, endless=True)).event_time("at")


def state_after(pipeline: Pipeline[Any], folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Run until all has been read, and give the entries of each step with state as they are told."""
    pipeline.to(lambda row: None).run(engine="local", checkpoint=str(folder), until="caught_up")

    async def look() -> dict[str, list[dict[str, Any]]]:
        async with opened(str(folder), pipeline.name) as store:
            inside = await store.inspect()
            return {
                step: [
                    described(inside.facts[step], entry)
                    for key, entry in await store.find_state(step)
                    if is_entry(key)
                ]
                for step in inside.keys
            }

    return asyncio.run(look())


def counting(key: Any, record: Any, state: Any) -> None:
    state.set("n", state.get("n", 0) + record["n"])
    state.set_timer("end", after="1m")


def test_windows(tmp_path: Path) -> None:
    keyed = source().key_by("user")
    of: dict[str, windows.Definition] = {
        "tumbling": tumbling("1m"),
        "sliding": sliding("1m", "30s"),
        "session": session("10s"),
        "count": windows.Count(2),
    }
    found = {
        name: state_after(keyed.window(window).aggregate(n=count()), tmp_path / name)["aggregate"]
        for name, window in of.items()
    }
    spans = {
        name: sorted(
            (each["window_start"], each["window_end"], each["aggregates"])
            for each in found[name]
            if each["key"] == "ann"
        )
        for name in ("tumbling", "sliding", "session")
    }
    assert spans == {
        "tumbling": [(at(60), at(120), {"n": 2})],
        "sliding": [(at(30), at(90), {"n": 2}), (at(60), at(120), {"n": 2})],
        "session": [(at(61), at(72), {"n": 2})],
    }
    [half] = [each for each in found["count"] if each["key"] == "7"]
    assert (half["records"], half["windows"][0]["aggregates"], half["windows"][0]["first"]) == (
        1,
        {"n": 1},
        at(63),
    )


def test_other_steps_with_state(tmp_path: Path) -> None:
    found = state_after(
        source().key_by("user", "shop").stateful(counting, on_timer=lambda *_: None, ttl="1h"),
        tmp_path / "stateful",
    )
    assert found["stateful"][1] == {
        "key": ("ann", 7),
        "values": {"n": 11},
        "timers": {"end": at(122)},
        "touched": at(62),
    }
    found = state_after(source().deduplicate("user", within="1m"), tmp_path / "deduplicate")
    assert {"key": ("ann",), "passed": [at(61)]} in found["deduplicate"]
    found = state_after(
        source().join(source("other"), on=("user", "user"), within="1m", how="left"), tmp_path / "join"
    )
    sides = [(each["side"], each["time"], each["record"]["n"], each["matched"]) for each in found["join"]]
    assert ("left", at(61), 5, True) in sides
    assert ("right", at(62), 6, True) in sides


def test_a_key_as_somebody_types_it(tmp_path: Path) -> None:
    """7 is a number or a text: both are looked for; several parts are a list."""
    state_after(source().key_by("user").stateful(counting, on_timer=lambda *_: None), tmp_path)

    async def keys(written: str) -> list[Any]:
        async with opened(str(tmp_path), await meant(str(tmp_path), None)) as store:
            return [
                entry[0]
                for prefix in prefixes(written)
                for _, entry in await store.find_state("stateful", prefix)
            ]

    assert asyncio.run(keys("ann")) == asyncio.run(keys('"ann"')) == ["ann"]
    assert asyncio.run(keys("7")) == ["7"]
    assert asyncio.run(keys("an")) == asyncio.run(keys('["ann"]')) == []
    assert '["ann",7]\n' in prefixes('["ann", 7]')


def test_whose_checkpoints_are_there(tmp_path: Path) -> None:
    where = str(tmp_path / "state")
    with pytest.raises(ConfigError, match="there is no folder"):
        asyncio.run(pipelines_in(where))
    Path(where).mkdir()
    with pytest.raises(NotFound, match="run a pipeline with this --checkpoint first"):
        asyncio.run(meant(where, None))
    state_after(source("a/b").deduplicate("user", within="1m"), Path(where))
    assert asyncio.run(meant(where, None)) == "a/b"
    state_after(source("other").deduplicate("user", within="1m"), Path(where))
    with pytest.raises(ConfigError, match="a/b, other; say --pipeline"):
        asyncio.run(meant(where, None))
    assert asyncio.run(meant(where, "other")) == "other"
