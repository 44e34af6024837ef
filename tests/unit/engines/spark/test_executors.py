"""How many executors to wait for."""

from __future__ import annotations

import pytest

from queenstream.engines.spark.session.executors import Expected, expected_of

RATIO = "spark.scheduler.minRegisteredResourcesRatio"


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local[4,4]", {}, None),
        ("local-cluster[3,1,512]", {}, Expected(executors=3)),
        ("yarn", {"spark.executor.instances": "4"}, Expected(executors=4)),
        ("yarn", {"spark.executor.instances": "4", RATIO: "0.8"}, Expected(executors=4)),
        ("yarn", {"spark.executor.instances": "4", RATIO: "0.5"}, Expected(executors=2)),
        ("yarn", {"spark.default.parallelism": "8"}, None),
        ("spark://head:7077", {}, Expected()),
        ("spark://head:7077", {"spark.cores.max": "8", RATIO: "0.5"}, Expected(cores=4)),
        ("k8s://api", {"spark.dynamicAllocation.enabled": "true"}, None),
        (
            "k8s://api",
            {"spark.dynamicAllocation.enabled": "true", "spark.dynamicAllocation.minExecutors": "2"},
            Expected(executors=2),
        ),
    ],
)
def test_what_is_waited_for(master: str, conf: dict[str, str], expected: Expected | None) -> None:
    assert expected_of(master, conf) == expected
