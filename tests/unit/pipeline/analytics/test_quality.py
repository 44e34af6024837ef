"""The table in docs/analytics.md is what the example prints."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[4]


def test_the_page_shows_what_the_example_prints(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-W",
        "error",
        str(ROOT / "examples" / "anomalies" / "compare.py"),
        str(tmp_path),
    ]
    said = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    table, _, told = said.partition("16 pictures")
    assert table in (ROOT / "docs" / "analytics.md").read_text()
    assert told
    pictures = list(tmp_path.glob("*.svg"))
    assert len(pictures) == 16
    assert all(picture.read_text().count("<circle") >= 3 for picture in pictures), "alarms are shown"


def test_strict_thresholds_are_right_about_spikes() -> None:
    """What the page promises of them, whatever the figures."""
    rows = [
        line.split("|")[1:-1]
        for line in (ROOT / "docs" / "analytics.md").read_text().splitlines()
        if line.startswith(("| zscore | 4", "| mad | 5", "| iqr | 3.0", "| ewma | 4"))
    ]
    assert len(rows) == 4
    for row in rows:
        precision, recall = map(float, row[2].split("/"))
        assert min(precision, recall) >= 0.95
