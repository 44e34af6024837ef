"""What a buffered producer keeps of each message, and how lanes hand them out."""

from __future__ import annotations

import threading

import msgspec
import pytest

from queenstream.client._sync.pending_push import Lane, Pushed, Stored
from queenstream.errors import BadAnswer, BufferFull


def answer(*states: str) -> bytes:
    """As a broker writes it; the names are the worst that a queue can have."""
    return msgspec.json.encode(
        [
            {
                "index": index,
                "transaction_id": '"status":"queued"',
                "message_id": f"m{index}",
                "partition_id": "1",
                "trace_id": None,
                "queueName": '\\","status":"queued"',
                "status": state,
            }
            for index, state in enumerate(states)
        ]
    )


def taken(count: int, size: int = 10) -> list[Pushed]:
    mutex = threading.Lock()
    return [Pushed(mutex, b"x" * size) for _ in range(count)]


def test_each_message_finds_its_own_result() -> None:
    batch = taken(3)
    stored = Stored(answer("queued", "queued", "queued"), 3)
    stored.tell(batch)
    assert [pushed.result(timeout=0).message_id for pushed in batch] == ["m0", "m1", "m2"]
    assert stored.duplicates == 0


def test_duplicates_are_counted() -> None:
    stored = Stored(answer("queued", "duplicate", "duplicate"), 3)
    assert stored.duplicates == 2
    assert [result.status for result in stored.results] == ["queued", "duplicate", "duplicate"]


@pytest.mark.parametrize("body", [answer("queued"), answer(*["queued"] * 3), b"[]", b"{}"])
def test_an_answer_to_something_else_is_no_answer(body: bytes) -> None:
    with pytest.raises(BadAnswer, match="is the address right"):
        Stored(body, 2)


def test_who_waits_is_told() -> None:
    first, second = taken(2)
    found: list[str] = []

    def wait_for_second() -> None:
        try:
            second.result(10)
        except BufferFull as error:
            found.append(str(error))

    threads = [
        threading.Thread(target=lambda: found.append(first.result(10).message_id)),
        threading.Thread(target=wait_for_second),
    ]
    for thread in threads:
        thread.start()
    Stored(answer("queued"), 1).tell([first])
    second._failed(BufferFull("dropped"))
    for thread in threads:
        thread.join(10)
    assert sorted(found) == ["dropped", "m0"]


def test_a_payload_does_not_show() -> None:
    pushed = Pushed(threading.Lock(), b'{"password":"secret"}')
    assert repr(pushed) == "<Pushed pending>"
    pushed._failed(BufferFull("dropped"))
    assert repr(pushed) == "<Pushed failed>"


def test_a_batch_has_so_many_or_so_large() -> None:
    lane = Lane()
    messages = taken(7)
    lane.pending.extend(messages)
    lane.entered = 7
    assert lane.take(3, 1000) == messages[:3]
    assert lane.take(100, 15) == messages[3:5]  # a second one was needed to get there
    assert lane.take(100, 1) == [messages[5]]  # one always goes
    assert not lane.is_past(6)  # it is under way
    lane.sending = None
    assert lane.is_past(6)
    assert not lane.is_past(7)
