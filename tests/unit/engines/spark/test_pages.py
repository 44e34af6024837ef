"""What a key keeps by time: small maps with its own state, large ones in pages that are read when needed."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from queenstream.engines.spark.keyed.pages import PAGE_BYTES, TimeMap


class Store:
    """Pages in a dictionary, and what was done with them."""

    def __init__(self) -> None:
        self.pages: dict[int, str] = {}
        self.calls: Counter[str] = Counter()
        self.bytes_written = 0

    def read(self, name: str, page: int) -> str:
        self.calls["read"] += 1
        return self.pages[page]

    def write(self, name: str, page: int, text: str) -> None:
        self.calls["write"] += 1
        self.bytes_written += len(text)
        self.pages[page] = text

    def remove(self, name: str, page: int) -> None:
        self.calls["remove"] += 1
        del self.pages[page]

    def begin(self) -> None:
        self.calls.clear()
        self.bytes_written = 0


def saved(rows: TimeMap, store: Store, *, outside: bool = True) -> TimeMap:
    """The map as the next batch has it."""
    rows.save("m", store, outside=outside)
    return TimeMap.restore(json.loads(json.dumps(rows.stored())), "m", store)


def filled(number: int, store: Store) -> TimeMap:
    rows = TimeMap()
    for at in range(number):
        rows.change(at, lambda: [0, 0.5, "a value"])
    return saved(rows, store)


def test_a_small_map_needs_no_pages() -> None:
    store = Store()
    rows = TimeMap()
    for at in range(10):
        rows.change(at, list)
    again = saved(rows, store, outside=False)
    assert [at for at, _ in again.items()] == [*range(10)]
    assert not store.calls


def test_a_value_of_a_large_map_costs_a_page() -> None:
    store = Store()
    rows = filled(5_000, store)
    store.begin()
    rows.change(4_990, list)[0] = 7
    again = saved(rows, store, outside=False)
    assert store.calls == {"read": 1, "write": 1}
    assert store.bytes_written <= PAGE_BYTES
    assert len(json.dumps(again.stored())) <= PAGE_BYTES
    assert [value for _, value in again.items(4_990, 4_991)] == [[7, 0.5, "a value"]]


def test_what_is_asked_first_is_known_without_a_page() -> None:
    store = Store()
    rows = filled(5_000, store)
    store.begin()
    assert rows.first == 0
    assert rows.first_read() is None
    assert not store.calls


def test_pages_are_deleted_with_their_last_value() -> None:
    store = Store()
    rows = filled(5_000, store)
    pages = len(store.pages)
    assert [at for at, _ in rows.pop_until(2_500)] == [*range(2_500)]
    rows = saved(rows, store, outside=False)
    assert pages / 2 - 2 <= len(store.pages) <= pages / 2 + 2
    rows.pop_until(5_000)
    rows.save("m", store, outside=False)
    assert not store.pages


def test_what_is_left_of_a_large_map_needs_no_pages() -> None:
    store = Store()
    rows = filled(5_000, store)
    rows.pop_until(4_998)
    assert [at for at, _ in saved(rows, store, outside=False).items()] == [4_998, 4_999]
    assert not store.pages


_TIMES = st.integers(0, 300)
_OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("change"), _TIMES),
        st.tuples(st.just("remove"), _TIMES),
        st.tuples(st.just("pop"), _TIMES),
        st.tuples(st.just("look"), _TIMES),
        st.tuples(st.just("save"), _TIMES),
    ),
    max_size=120,
)


@given(st.lists(_TIMES, max_size=200), _OPERATIONS)
def test_it_is_a_sorted_dictionary(times: list[int], operations: list[tuple[str, int]]) -> None:
    """With values so long that a few make a page."""
    store, rows = Store(), TimeMap()
    model: dict[int, Any] = {}
    for at in times:
        rows.change(at, lambda: ["x" * 600])
        model.setdefault(at, ["x" * 600])
    rows = saved(rows, store)
    for what, at in operations:
        if what == "change":
            rows.change(at, list).append("y" * 300)
            model.setdefault(at, []).append("y" * 300)
        elif what == "remove" and at in model:
            rows.remove(at)
            del model[at]
        elif what == "pop":
            ripe = sorted(each for each in model if each < at)[:20]
            stop = ripe[-1] + 1 if ripe else 0
            assert rows.pop_until(stop) == [(each, model.pop(each)) for each in ripe]
        elif what == "look":
            before = max((each for each in model if each <= at), default=None)
            assert rows.floor(at) == (None if before is None else (before, model[before]))
            assert [*rows.items(at, at + 9)] == sorted(
                (each, value) for each, value in model.items() if at <= each < at + 9
            )
        elif what == "save":
            rows = saved(rows, store, outside=at % 2 == 0)
        assert rows.first == min(model, default=None)
        assert bool(rows) == bool(model)
    assert [*rows.items()] == sorted(model.items())
    rows.pop_until(1_000)
    rows.save("m", store, outside=False)
    assert not store.pages
