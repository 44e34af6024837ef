"""The summary of a run: what follows from the counts, and how it is shown."""

from __future__ import annotations

from typing import Any

from queenstream.pipeline.builder import Pipeline
from queenstream.pipeline.endpoints import Memory
from queenstream.pipeline.policies import DeadLetters
from queenstream.pipeline.shorthand import count, tumbling
from queenstream.runtime.summary import Checkpoint, complete_counts, make_summary, print_summary


def chain() -> Pipeline[Any]:
    return (
        Pipeline("orders")
        .source(Memory([]), name="in")
        .filter("amount > 1", name="large")
        .key_by("user")
        .window(tumbling("1m"), time="at")
        .aggregate(n=count(), step_name="sum")
        .to(print, name="out")
    )


COUNTS = {
    "in": {"taken": 1_000, "given": 1_000, "failed": 2},
    "large": {"taken": 1_000, "given": 400},
    "key_by": {"taken": 400, "given": 400},
    "event_time": {"taken": 400, "given": 390, "failed": 10, "dead_letters": 10},
    "sum": {"taken": 390, "given": 7, "late": 3},
    "out": {"taken": 7, "written": 6, "failed": 1},
}


def test_a_line_for_each_step_and_one_for_all() -> None:
    summary = make_summary(
        chain().plan(), COUNTS, state="ended", seconds=1.25, checkpoint=Checkpoint("17", "state/")
    )
    heading, _, titles, *rows, _, checkpoint = summary.text().splitlines()
    assert heading == (
        "orders ended after 1.2 s: 1,002 records read, 600 filtered, 13 failed, 3 late, 6 written"
    )
    assert titles.split("  ")[1:2] == ["STEP"]
    assert [row.split()[0] for row in rows] == ["in", "large", "key_by", "event_time", "sum", "out"]
    assert rows[0].split()[2:] == ["1,002", "2", "0", "0", "1,000"]
    assert rows[1].split()[2:] == ["1,000", "600", "0", "0", "0", "400"]
    assert titles.split()[2:] == ["IN", "FILTERED", "FAILED", "LATE", "DEAD", "LETTERS", "OUT"]
    assert rows[5].split()[2:] == ["7", "1", "0", "0", "6"]
    assert checkpoint == "  checkpoint: 17 in state/"
    # Columns stand under each other.
    assert len({len(line) for line in (titles, *rows)}) == 1
    assert (summary.read, summary.filtered, summary.failed, summary.late, summary.written) == (
        1_002, 600, 13, 3, 6,
    )  # fmt: skip


def test_what_an_engine_does_not_count_follows_from_its_neighbours_or_is_not_known() -> None:
    told = {"in": {"taken": 10}, "event_time": {"taken": 4, "failed": 1}, "out": {"taken": 2, "written": 2}}
    found = complete_counts(chain().plan(), told)
    assert found["large"] == {"taken": 10, "given": 4}
    assert found["key_by"] == {"taken": 4, "given": 4}
    assert found["sum"] == {"taken": 3, "given": 2}
    source: Memory[Any] = Memory([])
    two = Pipeline("p").source(source, name="in").filter("a = 1", name="a").filter("b = 1", name="b")
    plan = two.to(print, name="out").plan()
    told = {"in": {"taken": 10}, "out": {"taken": 2, "written": 2}}
    summary = make_summary(plan, told, state="running", seconds=75)
    assert summary.filtered is None
    assert summary.text().startswith("p running for 1 min 15 s: 10 records read, - filtered, ")
    empty = make_summary(plan, {"out": {"written": 0}}, state="ended", seconds=0)
    assert (empty.read, empty.filtered, empty.written) == (0, 0, 0)


def test_it_fits_the_terminal_and_nothing_in_it_commands_one() -> None:
    name = "a-step-with-a-name-that-is-quite-long-indeed"
    plan = Pipeline("p").source(Memory([]), name=name).filter("x = 1").to(print, name="\x1b[31mout").plan()
    error = ValueError("no \x1b[2J\nnumber")
    summary = make_summary(plan, {}, state="failed", seconds=1, error=error)
    wide, narrow = summary.text(), summary.text(70)
    assert name in wide
    table = [line for line in narrow.splitlines() if line.startswith("  ") and ":" not in line.split()[0]]
    assert max(map(len, table)) <= 70
    assert name not in narrow
    assert "…" in narrow
    assert "\x1b" not in wide + summary.html()
    assert "  error: ValueError: no \\x1b[2J number" in wide


def test_html_is_escaped_and_says_the_same() -> None:
    plan = Pipeline("<orders>").source(Memory([]), name="in & out").filter("amout = 1").to(print).plan()
    counts = {"filter": {"taken": 3, "field absent: amout": 3, "field similar: amout -> amount": 1}}
    shown = make_summary(plan, counts, state="ended", seconds=1).html()
    assert "&lt;orders&gt; ended after 1.0 s: " in shown
    assert "in &amp; out" in shown
    assert "did you mean &#x27;amount&#x27;?" in shown
    assert shown.count("<tr>") == 1 + len(plan.nodes)
    assert "color:inherit;font:inherit" in shown  # dark pages, too


def test_dead_letters_are_written_somewhere_too() -> None:
    source: Memory[Any] = Memory([])
    failing = Pipeline("p").source(source, name="in").on_error(DeadLetters("failed"))
    pipeline = failing.to(print, name="out")
    counts = {"out": {"written": 1}, "dead-letters:queue:failed": {"written": 2}}
    summary = make_summary(pipeline.plan(), counts, state="ended", seconds=1)
    assert summary.text().splitlines()[-1].split() == ["dead-letters:queue:failed", "-", "0", "0", "2"]
    assert summary.written == 1


class Broken:
    """A standard error that somebody has closed."""

    def isatty(self) -> bool:
        return False

    def write(self, text: str) -> int:
        raise ValueError(text)


def test_a_standard_error_that_is_closed_fails_no_run() -> None:
    print_summary(make_summary(chain().plan(), {}, state="ended", seconds=1), Broken())  # type: ignore[arg-type]
