"""Checkpoints in a folder and in PostgreSQL: what was committed comes back, whatever happens."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import subprocess
import sys
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from queenstream.engines.local.checkpoints import store as checkpoints
from queenstream.engines.local.checkpoints.store import CheckpointStore, Epoch, StateKey, open_store
from queenstream.errors import CheckpointError

FACTS = {"totals": {"kind": "aggregate", "window": "tumbling 5m"}}
ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["folder", "postgresql"])
def where(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Both homes, one after the other."""
    if request.param == "folder":
        return str(tmp_path / "state")
    return str(request.getfixturevalue("empty_database_url"))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(tmp_path / "state")


async def started(where: str, *, keep: int = 10, pipeline: str = "p") -> CheckpointStore:
    store = open_store(where, pipeline, keep=keep)
    await store.acquire(FACTS)
    return store


async def stored(store: CheckpointStore, checkpoint: str | None = None) -> dict[StateKey, Any]:
    return dict(await store.find_state("totals", limit=10_000, checkpoint_id=checkpoint))


async def test_what_was_committed_comes_back(where: str) -> None:
    store = await started(where)
    assert (await store.load()).fresh
    value = {
        "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
        "sum": Decimal("9.50"),
        "seen": {1, 2},
        "key": ("a", 1),
    }
    await store.commit(
        Epoch(
            1,
            positions={"queue:in": {"ann": [7, 1000], "bob": [8, 1001]}},
            state={"totals": {"ann": value, b"ann": 1, "bob": [2]}},
            watermarks={"queue:in": 5},
            outbox={"queue:out": [{"n": 1}, value], "nothing": []},
        )
    )
    await store.commit(
        Epoch(
            2,
            positions={"queue:in": {"ann": [9, 1002]}},
            state={"totals": {"bob": None}},
            watermarks={"queue:in": 6},
        )
    )
    await store.close()

    store = await started(where)
    found = await store.load()
    await store.close()
    assert (found.epoch, found.watermarks, found.rewound) == (2, {"queue:in": 6}, False)
    assert found.positions == {"queue:in": {"ann": [9, 1002], "bob": [8, 1001]}}
    assert found.state == {"totals": {"ann": value, b"ann": 1}}
    [delivery] = found.outbox
    assert (delivery.number, delivery.sink, delivery.rows) == (1, "queue:out", [{"n": 1}, value])
    assert delivery.epoch == checkpoints.epoch_id(found.generation, 1)


async def test_what_was_delivered_is_not_delivered_again(where: str) -> None:
    store = await started(where)
    await store.load()
    for number in (1, 2, 3):
        await store.commit(Epoch(number, outbox={"out": [number]}))
        if number == 1:
            store.delivered(1)
    await store.close()
    store = await started(where)
    assert [delivery.rows for delivery in (await store.load()).outbox] == [[2], [3]]
    store.delivered(3)
    await store.close()  # a clean end notes it without another commit
    store = await started(where)
    assert (await store.load()).outbox == []
    await store.close()


async def test_going_back_forgets_what_came_after(where: str) -> None:
    store = await started(where)
    first = await store.load()
    ids = [
        await store.commit(
            Epoch(n, positions={"in": {"p": n}}, state={"totals": {"k": n, f"k{n}": n}}, outbox={"out": [n]})
        )
        for n in range(1, 6)
    ]
    store.delivered(5)
    await store.close()

    store = await started(where)
    back = await store.load(ids[2])
    assert (back.epoch, back.rewound, back.outbox) == (3, True, [])
    assert back.positions == {"in": {"p": 3}}
    assert back.state == {"totals": {"k": 3, "k1": 1, "k2": 2, "k3": 3}}
    assert back.generation != first.generation
    await store.close()

    # Killed before it had done anything: the sources are still to be moved back.
    store = await started(where)
    again = await store.load()
    assert (again.epoch, again.rewound, again.generation) == (3, True, back.generation)
    new = await store.commit(Epoch(4, state={"totals": {"k": 40}}, outbox={"out": [40]}))
    assert new not in ids
    await store.close()

    store = await started(where)
    last = await store.load()
    assert (last.epoch, last.rewound, last.state["totals"]["k"]) == (4, False, 40)
    assert [delivery.epoch for delivery in last.outbox] == [new]
    assert [info.id for info in await store.checkpoints()] == [new, *reversed(ids[:3])]
    with pytest.raises(
        CheckpointError, match=f"there is no checkpoint '{ids[4]}' of 'p'; name one of {new}, "
    ):
        await store.load(ids[4])
    await store.close()


async def test_every_checkpoint_that_is_kept_is_whole(where: str) -> None:
    """Against a model, with random changes; versions that no checkpoint needs are gone."""
    chance = random.Random(7)
    store = await started(where, keep=3)
    await store.load()
    model: dict[StateKey, Any] = {}
    history: dict[str, dict[StateKey, Any]] = {}
    clean: list[str] = []
    for number in range(1, 60):
        changed: dict[StateKey, Any] = {
            f"k{chance.randrange(12)}": chance.choice([None, number, number])
            for _ in range(chance.randrange(4))
        }
        model.update(changed)
        model = {key: value for key, value in model.items() if value is not None}
        is_clean = chance.random() < 0.1
        name = await store.commit(Epoch(number, state={"totals": changed}, clean=is_clean))
        history[name] = dict(model)
        clean += [name] if is_clean else []
    kept = [info.id for info in await store.checkpoints()]
    assert set(kept) == {*list(history)[-3:], *clean[-3:]}
    for name in kept:
        assert await stored(store, name) == history[name]
        contents = await store.inspect(name)
        assert contents.keys.get("totals", 0) == len(history[name])
    [[versions]] = await store._home.fetch("select count(*) from items")
    assert versions <= 12 * len(kept)
    for number in range(60, 64):  # nothing changes any more: one version of each key is left
        await store.commit(Epoch(number, state={"totals": {"k0": None}} if number == 60 else {}, clean=True))
    [[versions]] = await store._home.fetch("select count(*) from items")
    model.pop("k0", None)
    assert versions == len(model)
    await store.close()


async def test_state_is_read_while_the_pipeline_runs(where: str) -> None:
    store = await started(where)
    await store.load()
    first = await store.commit(
        Epoch(1, state={"totals": {"ann": 1, "anna": 2, "bob": 3}}, positions={"in": {"p": 5}})
    )
    await store.commit(Epoch(2, state={"totals": {"ann": 10}}))
    reader = open_store(where, "p")
    assert await reader.state("totals", "ann") == 10
    assert await reader.state("totals", "ann", first) == 1
    assert await reader.state("totals", "nobody") is None
    assert await reader.find_state("totals", "an") == [("ann", 10), ("anna", 2)]
    assert await reader.find_state("totals", limit=1) == [("ann", 10)]
    contents = await reader.inspect()
    assert (contents.keys, contents.positions, contents.facts) == ({"totals": 3}, {"in": {"p": 5}}, FACTS)
    await reader.close()
    await store.close()


async def test_only_one_run_at_a_time(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("queenstream.engines.local.checkpoints.postgres.LOCK_SECONDS", 0.1)
    store = await started(where)
    second = open_store(where, "p")
    with pytest.raises(
        CheckpointError, match=f"'p' is running already \\(process {os.getpid()} on .*stop it first"
    ):
        await second.acquire(FACTS)
    await second.close()
    other = await started(where, pipeline="another one")
    await other.close()
    await store.close()
    store = await started(where)
    await store.close()


async def test_a_changed_plan_is_refused(where: str) -> None:
    store = await started(where)
    await store.load()
    await store.commit(Epoch(1))
    await store.close()
    store = open_store(where, "p")
    await store.acquire({"totals": {"kind": "aggregate", "window": "tumbling 1h"}})
    with pytest.raises(CheckpointError, match=r"totals: window was tumbling 5m, is tumbling 1h\); undo that"):
        await store.load()
    await store.close()
    store = open_store(where, "p")
    await store.acquire(FACTS | {"new": {"kind": "join"}})
    assert (await store.load()).epoch == 1
    await store.close()


async def test_an_unknown_id_is_refused_and_nothing_starts(where: str) -> None:
    store = await started(where)
    with pytest.raises(CheckpointError, match=r"there is no checkpoint of 'p' in .*; run the pipeline once"):
        await store.load("65f0a1b2c3d4e5-0000000007")
    assert await store.checkpoints() == []
    await store.close()


async def test_epochs_come_in_order(where: str) -> None:
    store = await started(where)
    await store.load()
    with pytest.raises(ValueError, match="epoch 2 does not follow 0"):
        await store.commit(Epoch(2))
    await store.close()


async def test_what_cannot_be_kept_is_refused_and_the_store_stays_whole(where: str) -> None:
    store = await started(where)
    await store.load()
    with pytest.raises(TypeError, match="object cannot be kept in a checkpoint; use numbers"):
        await store.commit(Epoch(1, state={"totals": {"k": object()}}))
    await store.commit(Epoch(1, state={"totals": {"k": 1}}))
    assert await stored(store) == {"k": 1}
    await store.close()


async def opened(folder: str) -> None:
    """Go on with a store, and give it back."""
    store = open_store(folder, "p")
    try:
        await store.acquire(FACTS)
        await store.load()
    finally:
        await store.close()


async def test_looking_makes_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path / "state", "p")
    assert await store.checkpoints() == []
    await store.close()
    assert await asyncio.to_thread(os.listdir, tmp_path) == []


# Damage


async def written(folder: str) -> Path:
    """A store with something in it; its file."""
    store = await started(folder)
    await store.load()
    for number in range(1, 4):
        state: dict[StateKey, Any] = {f"k{n}": "x" * 200 + str(number) for n in range(200)}
        await store.commit(Epoch(number, state={"totals": state}))
    await store.close()
    return Path(folder, "p.checkpoint")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * 4096 * 4)


def replace_all(path: Path) -> None:
    path.write_bytes(b"these are not the bytes of a database, by far" * 100)


def flip_one_letter(path: Path) -> None:
    """In a value: the file is a good database, and holds something else than was written."""
    path.write_bytes(path.read_bytes().replace(b"x" * 200 + b"3", b"y" + b"x" * 199 + b"3"))


def lose_an_epoch(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("delete from epochs where epoch = 3")
    connection.commit()
    connection.close()


@pytest.mark.parametrize("harm", [empty, truncate, overwrite, replace_all, flip_one_letter, lose_an_epoch])
async def test_damage_is_found(folder: str, harm: Any) -> None:
    path = await written(folder)
    harm(path)
    with pytest.raises(
        CheckpointError, match=r"p\.checkpoint is damaged \(.*\); restore it from a backup, or"
    ):
        await opened(folder)


async def test_a_newer_format_is_refused(folder: str) -> None:
    path = await written(folder)
    connection = sqlite3.connect(path)
    connection.execute("update pipelines set format = 99")
    connection.commit()
    connection.close()
    with pytest.raises(
        CheckpointError, match="has format 99, this version reads 1; use the version that wrote it"
    ):
        await opened(folder)


async def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = open_store(tmp_path / "file" / "state", "p")
    with pytest.raises(CheckpointError, match="cannot be used: Not a directory; make it writable"):
        await store.acquire(FACTS)
    await store.close()


# Crashes


def commit_for_ever(where: str) -> None:
    """What the killed process does: commit, say so, again."""

    async def run() -> None:
        store = await started(where, keep=3)
        found = await store.load()
        number = found.epoch
        while True:
            number += 1
            await store.commit(
                Epoch(
                    number,
                    positions={"in": {"p": number}},
                    state={
                        "totals": {"count": number, f"k{number % 50}": number, f"k{(number + 25) % 50}": None}
                    },
                    outbox={"out": [number]},
                )
            )
            os.write(1, f"{number}\n".encode())
            store.delivered(number - 1)

    asyncio.run(run())


def model_of(number: int) -> dict[StateKey, Any]:
    state: dict[StateKey, Any] = {}
    for n in range(1, number + 1):
        state |= {"count": n, f"k{n % 50}": n}
        state.pop(f"k{(n + 25) % 50}", None)
    return state


def run_and_kill(where: str, epochs: int) -> int:
    """Let it commit at least so many epochs, and kill it; the last one that it spoke of."""
    code = f"from tests.integration.local.test_checkpoints import commit_for_ever; commit_for_ever({where!r})"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        said = [process.stdout.readline() for _ in range(epochs)]
        process.send_signal(signal.SIGKILL)
        said += process.stdout.readlines()
    return int(said[-1])


async def test_kill_in_the_middle_of_commits(where: str) -> None:
    chance = random.Random(11)
    for _ in range(4):
        said = await asyncio.to_thread(run_and_kill, where, chance.randrange(5, 40))
        store = await started(where, keep=3)
        found = await store.load()
        await store.close()
        assert found.epoch in (said, said + 1)  # killed between the commit and the word of it
        assert found.positions == {"in": {"p": found.epoch}}
        assert found.state == {"totals": model_of(found.epoch)}
        undelivered = [row for delivery in found.outbox for row in delivery.rows]
        assert undelivered == list(range(found.epoch - len(undelivered) + 1, found.epoch + 1))
        assert 1 <= len(undelivered) <= 2


async def cut_off(url: str) -> None:
    """End the connections of all runs, as a restart of the server does."""
    admin = await asyncpg.connect(url)
    await admin.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'queen %'"
    )
    await admin.close()


async def test_a_lost_connection_is_made_again(
    empty_database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await started(empty_database_url)
    await store.load()
    await store.commit(Epoch(1, state={"totals": {"k": 1}}))
    await cut_off(empty_database_url)
    await store.commit(Epoch(2, state={"totals": {"k": 2}}))
    assert await stored(store) == {"k": 2}
    monkeypatch.setattr("queenstream.engines.local.checkpoints.postgres.LOCK_SECONDS", 0.1)
    second = open_store(empty_database_url, "p")
    with pytest.raises(CheckpointError, match="is running already"):
        await second.acquire(FACTS)
    await second.close()
    await store.close()


async def test_a_run_that_lost_its_lock_is_fenced_off(empty_database_url: str) -> None:
    store = await started(empty_database_url)
    await store.load()
    await cut_off(empty_database_url)
    other = await started(empty_database_url)
    await other.load()
    await other.commit(Epoch(1, state={"totals": {"k": "other"}}))
    await other.close()
    with pytest.raises(
        CheckpointError, match="another run has taken over the pipeline 'p', and this one ends"
    ):
        await store.commit(Epoch(1, state={"totals": {"k": "mine"}}))
    await store.close()
    reader = open_store(empty_database_url, "p")
    assert await stored(reader) == {"k": "other"}
    await reader.close()


async def test_no_server_is_said(tmp_path: Path) -> None:
    store = open_store("postgresql://127.0.0.1:1/none", "p")
    with pytest.raises(
        CheckpointError, match=r"PostgreSQL does not answer .*; start the server, or check the URL"
    ):
        await store.acquire(FACTS)
    await store.close()
