"""``queen pipeline dlq``: the dead letters of a pipeline, as somebody at a terminal and a script see them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenstream.broker.app import Broker
from tests.integration.cli.running import Queen

DLQ = ("pipeline", "dlq")


@pytest.fixture
async def letters(http: httpx.AsyncClient) -> None:
    """Four dead letters of two steps."""
    made = [
        ("parse", "timeout", 10),
        ("parse", "bad amount", 20),
        ("send", "timeout", 30),
        ("send", "no", 40),
    ]
    items = [
        {
            "queue": "failed",
            "transactionId": f"halving:7:{amount}",
            "payload": {
                "record": {"amount": amount, "user": {"name": "Ann"}, "tags": ["a", "b"]},
                "error": error,
                "error_type": "ValueError",
                "step": step,
                "attempts": 2,
                "pipeline": "halving",
                "failed_at": "2026-01-31T12:00:00Z",
                "time": "2026-01-31T11:00:00Z",
                "key": ["s", 7],
                "input": 0,
            },
        }
        for step, error, amount in made
    ]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201


def amounts(rows: list[Any]) -> list[int]:
    return [row["record"]["amount"] for row in rows]


async def replayed(http: httpx.AsyncClient) -> list[Any]:
    """What the pipeline would get."""
    answer = await http.get(
        "/api/v1/pop/queue/failed.replay", params={"batch": 10, "consumerGroup": "halving"}
    )
    return [message["data"] for message in answer.json()["messages"]] if answer.status_code == 200 else []


@pytest.mark.usefixtures("letters")
async def test_list_and_show(queen: Queen, http: httpx.AsyncClient) -> None:
    assert amounts(await queen.rows(*DLQ, "ls", "failed")) == [40, 30, 20, 10]
    assert amounts(await queen.rows(*DLQ, "ls", "failed", "-n", "1")) == [40]
    assert amounts(await queen.rows(*DLQ, "ls", "failed", "--step", "parse")) == [20, 10]
    assert amounts(await queen.rows(*DLQ, "ls", "failed", "--error", "TIME")) == [30, 10]
    some = await queen.rows(*DLQ, "ls", "failed", "--matching", "record.amount > 15 and step = 'parse'")
    assert amounts(some) == [20]
    letter = (await queen(*DLQ, "show", "failed", some[0]["id"])).row
    assert letter == some[0]
    assert (letter["key"], letter["time"], letter["attempts"]) == (["s", 7], "2026-01-31T11:00:00Z", 2)
    (await queen(*DLQ, "show", "failed", "999999")).failed(
        5, "there is no dead letter 999999 in queue failed"
    )
    (await queen(*DLQ, "ls", "nowhere")).failed(5, "nowhere")
    async with queen.terminal(*DLQ, "ls", "failed", "--step", "send", columns=160) as terminal:
        assert await terminal.ended() == 0
    assert terminal.lines[0].split() == ["ID", "FAILED", "PIPELINE", "STEP", "ATTEMPTS", "ERROR", "RECORD"]
    assert "ValueError: no " in terminal.lines[1]
    assert '{"amount":40' in terminal.lines[1]
    # To look takes nothing from anybody.
    popped = await http.get("/api/v1/pop/queue/failed", params={"batch": 10})
    assert len(popped.json()["messages"]) == 4


@pytest.mark.usefixtures("letters")
async def test_edit_and_replay(queen: Queen, http: httpx.AsyncClient) -> None:
    [first] = await queen.rows(*DLQ, "ls", "failed", "--matching", "record.amount = 10")
    change = (
        "--set",
        "amount=5",
        "--set",
        "data.user.name=Bob",
        "--set",
        "tags.1=c",
        "--set",
        "new.flag=true",
    )
    edited = (await queen(*DLQ, "edit", "failed", first["id"], *change)).row
    assert edited["record"] == {
        "amount": 5,
        "user": {"name": "Bob"},
        "tags": ["a", "c"],
        "new": {"flag": True},
    }
    assert (edited["step"], edited["error"]) == ("parse", "timeout")
    assert amounts(await queen.rows(*DLQ, "ls", "failed")) == [5, 40, 30, 20]
    done = (await queen(*DLQ, "replay", "failed", edited["id"])).row
    assert done == {"replayed": 1}
    [letter] = await replayed(http)
    assert (letter["record"]["amount"], letter["key"], letter["input"]) == (5, ["s", 7], 0)
    (await queen(*DLQ, "replay", "failed", edited["id"])).failed(5, "it may have been replayed")


@pytest.mark.usefixtures("letters")
async def test_edit_the_rest_of_a_letter_and_replay_it_at_once(queen: Queen, http: httpx.AsyncClient) -> None:
    [last] = await queen.rows(*DLQ, "ls", "failed", "-n", "1")
    other = (
        "--record",
        "[1]",
        "--time",
        "2026-02-01T00:00:00Z",
        "--key",
        "ann",
        "--step",
        "parse",
        "--replay",
    )
    await queen.rows(*DLQ, "edit", "failed", last["id"], *other)
    [letter] = await replayed(http)
    assert [letter[name] for name in ("record", "time", "key", "step")] == [
        [1],
        "2026-02-01T00:00:00Z",
        "ann",
        "parse",
    ]
    assert amounts(await queen.rows(*DLQ, "ls", "failed")) == [30, 20, 10]


@pytest.mark.usefixtures("letters")
async def test_what_cannot_be_edited_stays_as_it_is(queen: Queen) -> None:
    [last] = await queen.rows(*DLQ, "ls", "failed", "-n", "1")
    edit = (*DLQ, "edit", "failed", last["id"])
    (await queen(*edit)).failed(2, "there is nobody to edit it; say --set")
    (await queen(*edit, "--record", "{")).failed(2, "--record is not JSON")
    (await queen(*edit, "--set", "amount")).failed(2, "write PATH=VALUE")
    (await queen(*edit, "--set", "amount.x=1")).failed(2, "there is no place 'x' in 40")
    assert await queen.rows(*DLQ, "ls", "failed", "-n", "1") == [last]


@pytest.mark.usefixtures("letters")
async def test_an_editor_of_one_s_own(broker: Broker, tmp_path: Path) -> None:
    script = tmp_path / "editor.py"
    script.write_text(
        "import json, pathlib, sys\n"
        "file = pathlib.Path(sys.argv[1])\n"
        "letter = json.loads(file.read_text())\n"
        "assert set(letter) == {'step', 'time', 'key', 'record'}\n"
        "letter['record'] = {'amount': 7}\n"
        "file.write_text(json.dumps(letter))\n"
    )
    queen = Queen(broker.address, EDITOR=f"{sys.executable} {script}")
    [last] = await queen.rows(*DLQ, "ls", "failed", "-n", "1")
    async with queen.terminal(*DLQ, "edit", "failed", last["id"]) as terminal:
        assert await terminal.ended() == 0, terminal.text
    assert f"edited: dead letter {last['id']} is now" in terminal.text
    assert amounts(await queen.rows(*DLQ, "ls", "failed")) == [7, 30, 20, 10]
    lazy = Queen(broker.address, EDITOR="true")
    async with lazy.terminal(*DLQ, "edit", "failed", last["id"]) as terminal:
        assert await terminal.ended() == 5
    [last] = await queen.rows(*DLQ, "ls", "failed", "-n", "1")
    async with lazy.terminal(*DLQ, "edit", "failed", last["id"]) as terminal:
        assert await terminal.ended() == 0
    assert "nothing was changed" in terminal.text


@pytest.mark.usefixtures("letters")
async def test_replay_what_fits(queen: Queen, http: httpx.AsyncClient) -> None:
    replay = (*DLQ, "replay", "failed", "--error", "timeout")
    assert amounts(await queen.rows(*replay, "--dry-run")) == [10, 30]
    assert len(await queen.rows(*DLQ, "ls", "failed")) == 4
    assert (await queen(*replay)).row == {"replayed": 2}
    assert [letter["record"]["amount"] for letter in await replayed(http)] == [10, 30]
    assert (await queen(*replay)).row == {"replayed": 0}
    assert (await queen(*DLQ, "replay", "failed", "--all")).row == {"replayed": 2}
    assert await queen.rows(*DLQ, "ls", "failed") == []


@pytest.mark.usefixtures("letters")
async def test_delete(queen: Queen) -> None:
    (await queen(*DLQ, "delete", "failed", "--all")).failed(2, "add --yes")
    (await queen(*DLQ, "delete", "failed")).failed(2, "say which")
    (await queen(*DLQ, "delete", "failed", "1", "--all")).failed(2, "say which")
    [last] = await queen.rows(*DLQ, "ls", "failed", "-n", "1")
    assert (await queen(*DLQ, "delete", "failed", last["id"], "--yes")).row == {"deleted": 1}
    assert amounts(await queen.rows(*DLQ, "delete", "failed", "--step", "parse", "--dry-run")) == [10, 20]
    assert (await queen(*DLQ, "delete", "failed", "--all", "-y")).row == {"deleted": 3}
    assert json.dumps(await queen.rows(*DLQ, "ls", "failed")) == "[]"
