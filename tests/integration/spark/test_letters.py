"""Dead letters of a pipeline on Spark, in queues of a real broker: edited, and let in where they failed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from queenstream.connectors.letters import Letters
from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Function, Queue
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.state import State
from queenstream.testing.brokers import TemporaryBroker

Row = dict[str, Any]
pytestmark = [pytest.mark.usefixtures("spark"), pytest.mark.timeout(600)]


def summed(user: str, record: Row, state: State) -> Row:
    if record["n"] is None:
        raise ValueError("no number")
    state.set("sum", state.get("sum", 0) + record["n"])
    return {"user": user, "sum": state.get("sum")}


def parsed(record: Row) -> Row:
    return {**record, "n": None if record["n"] is None else int(record["n"])}


def test_letters_come_back_to_a_step_and_to_a_key(broker: TemporaryBroker, tmp_path: Path) -> None:
    rows: list[Row] = []
    pipeline = (
        Pipeline("sums")
        .source(Queue("numbers"))
        .key_by("user")
        .transform("parse", parsed)
        .stateful(summed, name="sum")
        .on_error(DeadLetters("failed"))
        .to(Function(rows.append, name="out"))
    )

    def run() -> Any:
        return pipeline.run(url=broker.address, checkpoint=str(tmp_path), until="caught_up")

    with broker.client() as queen:
        queen.queue("numbers").push(
            [{"user": "ann", "n": "1"}, {"user": "ann", "n": "two"}, {"user": "bob", "n": None}]
        )
        run()
        assert rows == [{"user": "ann", "sum": 1}]
        letters = Letters(queen, "failed")
        assert {letter.step: letter.key for letter in letters} == {"parse": "ann", "sum": "bob"}
        for letter in letters:
            letters.edit(letter, record={"n": "2" if letter.step == "parse" else 7})
        letters.replay(letters)
        ended = run()
        assert sorted(rows, key=lambda row: (row["user"], row["sum"])) == [
            {"user": "ann", "sum": 1},
            {"user": "ann", "sum": 3},
            {"user": "bob", "sum": 7},
        ]
        assert ended.get_stats()["steps.replay:failed.taken"] == 2
        assert not list(letters)
        run()
        assert len(rows) == 3
