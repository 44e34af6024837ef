"""An anomaly detector with a callback: temperatures unlike those before them, each sensor by itself.

A reading without a number is no reason to stop: it goes to the dead letters, which are a file here.
"""

import json
from pathlib import Path
from typing import Any

from queenstream import DeadLetters, Files, Memory, Pipeline

READINGS: list[dict[str, Any]] = [
    {"sensor": "oven", "at": second * 1_000, "temperature": 180 + second % 3} for second in range(60)
]
READINGS[30]["temperature"] = 240  # a spike
READINGS[40]["temperature"] = None  # a broken wire


def alert(anomaly: dict[str, Any]) -> None:
    value, mean, score = anomaly["value"], anomaly["mean"], anomaly["score"]
    print(f"{anomaly['key']} at {anomaly['time']:%M:%S}: {value:g}, usual is {mean:.1f} (score {score:.1f})")


(
    Pipeline("temperature-anomalies")
    .source(Memory(READINGS))
    .event_time("at")
    .anomalies(
        "temperature",
        by="sensor",
        algorithm="zscore",
        threshold=2.5,
        window="10m",
        on_error=DeadLetters(Files("bad-readings", format="ndjson")),
    )
    .to(alert)
    .run(engine="local")
)
for file in sorted(Path("bad-readings").iterdir()):
    for line in file.read_text().splitlines():
        letter = json.loads(line)
        print(f"dead letter: {letter['record']}: {letter['error']}")
