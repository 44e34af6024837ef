"""The page that ``make bench`` makes of what benchmarks print."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime

from tools.bench_report import page, result_of

AT = datetime(2026, 1, 31, 12, tzinfo=UTC)


def printed(value: float, target: str, verdict: str) -> str:
    line = {
        "targets": {"push <against> COPY": {"value": value, "target": target, "verdict": verdict}},
        "machine": {"cpu": "a <fast> one", "cores": 2},
    }
    return f"how fast is it\n\nrows/s  <b>12</b>\n{json.dumps(line)}\n"


def shown(value: float, target: str, verdict: str) -> str:
    return page([result_of("push", "python push.py", printed(value, target, verdict), 0)], {"a": "1.2"}, AT)


def width(made: str) -> int:
    [found] = re.findall(r"<rect y=3 width=(\d+)", made)
    return int(found)


def test_tables_figures_machine_versions_and_commands_are_on_it() -> None:
    made = shown(0.75, "≥ 0.5", "reached")
    for text in (
        "how fast is it",
        "0.75 reached",
        "≥ 0.5",
        "cores 2",
        "a 1.2",
        "python push.py",
        "2026-01-31",
    ):
        assert text in made


def test_what_was_printed_is_text() -> None:
    made = shown(1, "≥ 1", "reached")
    assert "push &lt;against&gt; COPY" in made
    assert "&lt;b&gt;12&lt;/b&gt;" in made
    assert "a &lt;fast&gt; one" in made


def test_a_longer_bar_is_better_whichever_way_the_target_goes() -> None:
    line = width(shown(1, "≥ 1", "reached"))
    assert width(shown(0.5, "≥ 1", "missed")) < line < width(shown(1.5, "≥ 1", "reached"))
    assert width(shown(30, "≤ 15", "missed")) < line < width(shown(10, "≤ 15", "reached"))
    assert width(shown(1_000, "≥ 1", "reached")) == 2 * line  # cut off


def test_one_that_could_not_run_says_so() -> None:
    made = page([result_of("push", "python push.py", "cannot run: no server\n", 1)], {}, AT)
    assert "it ended with exit code 1" in made
    assert "cannot run: no server" in made
