"""StreamProcessor from many threads at once: nothing is lost, nothing is counted twice, nobody waits."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from queenstream.processor.processor import Event, StreamProcessor

THREADS = 8
EACH = 400


@pytest.fixture(autouse=True)
def _switch_often() -> Iterator[None]:
    """Threads take turns as often as Python can: races show that would take days otherwise."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def together(*jobs: Callable[[], object]) -> None:
    """Each in a thread of its own, all at once; what one raises is raised here."""
    barrier = threading.Barrier(len(jobs))

    def start(job: Callable[[], object]) -> None:
        barrier.wait(30)
        job()

    with ThreadPoolExecutor(len(jobs)) as pool:
        for done in [pool.submit(start, job) for job in jobs]:
            done.result(timeout=60)


def emitter(stream: StreamProcessor, thread: int) -> Callable[[], None]:
    def emit() -> None:
        for number in range(EACH):
            stream.emit(f"{thread}-{number}", {"n": number, "t": thread}, key=f"k{thread}", timestamp=number)

    return emit


def test_events_from_many_threads_are_all_there_once() -> None:
    sunk: list[str] = []
    stream = StreamProcessor("threads").sliding_window(100, 50).sink(lambda event: sunk.append(event.id))
    together(*(emitter(stream, thread) for thread in range(THREADS)))
    everyone = sorted(f"{thread}-{number}" for thread in range(THREADS) for number in range(EACH))
    assert sorted(sunk) == everyone
    arrived = stream.get_recent_events(10**6)
    assert sorted(event.id for event in arrived) == everyone
    for thread in range(THREADS):  # a thread's own order is kept
        own = [event.data["n"] for event in arrived if event.data["t"] == thread]
        assert own == list(range(EACH))
    in_range = stream.get_events_in_range(0, EACH)
    assert [event.timestamp for event in in_range] == sorted(event.timestamp for event in in_range)
    assert len(in_range) == THREADS * EACH
    windows = stream.get_windows()
    assert [len(window.events) for window in windows[1:-1]] == [100 * THREADS] * (len(windows) - 2)
    assert all(window.complete for window in windows)


def test_figures_add_up_under_errors_filters_and_bounds(caplog: pytest.LogCaptureFixture) -> None:
    def fussy(event: Event) -> Event:
        if event.data["n"] % 10 == 1:
            raise ValueError("no ones")
        return event

    stream = StreamProcessor("threads", max_events=100, max_windows=20).session_window(3)
    stream.filter(lambda event: event.data["n"] % 2 == 1).map(fussy)
    together(*(emitter(stream, thread) for thread in range(THREADS)))
    total = THREADS * EACH
    metrics = stream.get_metrics()
    assert metrics["events_received"] == total
    assert metrics["events_filtered"] == total // 2
    assert metrics["events_failed"] == metrics["errors"] == total // 10
    assert metrics["events_processed"] == total * 4 // 10
    assert metrics["events_kept"] == 100
    assert metrics["events_evicted"] == metrics["events_processed"] - 100
    assert metrics["windows_kept"] <= 20


def test_one_may_ask_and_change_while_others_emit(caplog: pytest.LogCaptureFixture) -> None:
    left = StreamProcessor("left", max_events=300, clock=lambda: EACH / 2).session_window(5)
    right = StreamProcessor("right", max_events=300, clock=lambda: EACH / 2).tumbling_window(10)
    done = threading.Event()

    def ask(one: StreamProcessor, other: StreamProcessor) -> None:
        while not done.is_set():
            for window in one.get_windows():
                assert all(window.start <= event.timestamp < window.end for event in window.events)
            for ours, theirs in one.join_streams(other, "n", 0):
                assert ours.data["n"] == theirs.data["n"]
            metrics = one.get_metrics()
            outcomes = ("events_processed", "events_filtered", "events_failed")
            assert metrics["events_received"] == sum(metrics[name] for name in outcomes)  # type: ignore[literal-required]
            one.count_by_key("t")
            one.clear_old_windows()
            one.reset()

    def emit_and_end() -> None:
        try:
            together(*(emitter(stream, thread) for stream in (left, right) for thread in range(3)))
        finally:
            done.set()

    together(emit_and_end, lambda: ask(left, right), lambda: ask(right, left))


def test_steps_are_added_while_events_come() -> None:
    stream = StreamProcessor("growing")
    calls: list[int] = []

    def add(thread: int) -> Callable[[], None]:
        def more() -> None:
            for _ in range(20):
                stream.sink(lambda event: calls.append(thread))

        return more

    together(emitter(stream, 0), *(add(thread) for thread in range(4)))
    calls.clear()
    stream.emit("last", {})
    assert len(calls) == 80


def test_a_slow_sink_holds_up_nobody_else() -> None:
    entered, leave = threading.Event(), threading.Event()

    def slow(event: Event) -> None:
        if event.id == "slow":
            entered.set()
            assert leave.wait(30)

    stream = StreamProcessor("slow").sink(slow)
    with ThreadPoolExecutor(1) as pool:
        emitting = pool.submit(stream.emit, "slow", {})
        assert entered.wait(30)
        stream.emit("quick", {})
        assert [event.id for event in stream.get_recent_events()] == ["quick"]
        leave.set()
        assert emitting.result(30) is not None
    assert [event.id for event in stream.get_recent_events()] == ["quick", "slow"]
