"""Which detector finds what: four algorithms on series with planted anomalies, as a table and as pictures.

python examples/anomalies/compare.py            # the table
python examples/anomalies/compare.py pictures/  # and a picture of each, as SVG
"""

import sys
from html import escape
from pathlib import Path

from queenstream.pipeline.analytics.detectors import ALGORITHMS, THRESHOLDS, Algorithm, Detector
from queenstream.testing.series import SERIES, Series

SECOND = 1_000_000
WINDOW = 60  # seconds
SEEDS = 5
STRICT: dict[Algorithm, float] = {"zscore": 4.0, "mad": 5.0, "iqr": 3.0, "ewma": 4.0}
WIDTH, HEIGHT = 900, 160


def alarms(series: Series, algorithm: Algorithm, threshold: float) -> list[bool]:
    """Which values an algorithm finds unusual."""
    detector = Detector(algorithm, window_us=WINDOW * SECOND, threshold=threshold, min_samples=30)
    held = detector.begin()
    judged = [detector.judge(held, at * SECOND, value) for at, value in enumerate(series.values)]
    return [each is not None and each.unusual for each in judged]


def quality(name: str, algorithm: Algorithm, threshold: float) -> str:
    """Precision and recall, over several series of one kind."""
    found = [
        series.quality(alarms(series, algorithm, threshold))
        for series in (SERIES[name](seed) for seed in range(SEEDS))
    ]
    precision, recall = (sum(each) / SEEDS for each in zip(*found, strict=True))
    return f"{precision:.2f} / {recall:.2f}"


def table() -> None:
    """Precision / recall of each, with its usual threshold and with a strict one."""
    print(f"| algorithm | threshold | {' | '.join(SERIES)} |")
    print(f"|---|---|{'---|' * len(SERIES)}")
    for algorithm in ALGORITHMS:
        for threshold in (THRESHOLDS[algorithm], STRICT[algorithm]):
            cells = [quality(name, algorithm, threshold) for name in SERIES]
            print(f"| {algorithm} | {threshold} | {' | '.join(cells)} |")


def picture(series: Series, algorithm: Algorithm) -> str:
    """The series as a line, planted anomalies as bars behind it, alarms as dots on it."""
    low, high = min(series.values), max(series.values)
    across, up = WIDTH / len(series.values), (HEIGHT - 30) / (high - low)
    points = [(at * across, HEIGHT - 5 - (value - low) * up) for at, value in enumerate(series.values)]
    found = alarms(series, algorithm, STRICT[algorithm])
    bars = "".join(
        f'<rect x="{x - 2:.1f}" y="0" width="4" height="{HEIGHT}" fill="#fca"/>'
        for (x, _), planted in zip(points, series.planted, strict=True)
        if planted
    )
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#c00"/>'
        for (x, y), alarm in zip(points, found, strict=True)
        if alarm
    )
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    title = escape(f"{series.name}: {algorithm} > {STRICT[algorithm]}, window {WINDOW} s")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>{bars}'
        f'<polyline points="{line}" fill="none" stroke="#347" stroke-width="0.7"/>{dots}'
        f'<text x="8" y="16" font-size="13">{title}</text></svg>\n'
    )


def main() -> None:
    table()
    for folder in map(Path, sys.argv[1:]):
        folder.mkdir(parents=True, exist_ok=True)
        for name, make in SERIES.items():
            for algorithm in ALGORITHMS:
                file = folder / f"{name.replace(' ', '-')}-{algorithm}.svg"
                file.write_text(picture(make(0), algorithm))
        print(f"{len(SERIES) * len(ALGORITHMS)} pictures are in {folder}")


if __name__ == "__main__":
    main()
