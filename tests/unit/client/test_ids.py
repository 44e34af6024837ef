"""Transaction ids are nobody else's."""

from __future__ import annotations

import os
import threading

import pytest

from queenstream.client._base.ids import new_id, new_ids


def test_none_comes_twice() -> None:
    found = [new_id(), *new_ids(1000), new_id(), *new_ids(0)]
    assert len(set(found)) == 1002


def test_a_broker_takes_them() -> None:
    assert all(len(id) <= 64 and id.isascii() and id.isprintable() for id in new_ids(10))


def test_threads_share_none() -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.extend(new_ids(2000))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 16_000


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_begins_anew() -> None:
    before = new_id()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, "\n".join(new_ids(50)).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as lines:
        theirs = set(lines.read().split("\n"))
    os.waitpid(child, 0)
    ours = {before, *new_ids(50)}
    assert len(theirs) == 50
    assert not ours & theirs
    assert before.split("-")[0] == new_id().split("-")[0]
    assert all(id.split("-")[0] != before.split("-")[0] for id in theirs)
