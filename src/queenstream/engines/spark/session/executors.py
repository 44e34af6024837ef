"""Waits until the executors of a cluster have registered, before something depends on how many there are.

A cluster starts executors one by one, and a query with state keeps the number of partitions that it begins
with. Spark itself waits on YARN and Kubernetes only, and only when a session is made.
"""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

log = logging.getLogger("queenstream.spark")

_RATIO = "spark.scheduler.minRegisteredResourcesRatio"
_LIMIT = "spark.scheduler.maxRegisteredResourcesWaitingTime"
_LIMIT_DEFAULT = "30s"
_QUIET_SECONDS = 2.0  # without a new one, where nobody says how many there will be
_LOOK_SECONDS = 0.1
_LOCAL_CLUSTER = re.compile(r"local-cluster\[\s*(\d+)\s*,")
_waited: set[str] = set()  # applications


@dataclass(frozen=True)
class Expected:
    """How many executors or cores are asked for; ``None``: it is not known."""

    executors: int | None = None
    cores: int | None = None

    def is_met(self, executors: int, cores: int) -> bool:
        """Whether so many are enough.

        >>> Expected(executors=2).is_met(1, 8), Expected(cores=8).is_met(1, 8), Expected().is_met(1, 8)
        (False, True, False)
        """
        known = self.executors is not None or self.cores is not None
        return known and executors >= (self.executors or 0) and cores >= (self.cores or 0)


def cores_of(spark: SparkSession) -> int:
    """How many tasks run at once in the whole cluster. Waits for its executors, once for an application."""
    context = spark.sparkContext
    application = str(context.applicationId)
    if application not in _waited:
        expected = expected_of(str(context.master), dict(context.getConf().getAll()))
        if expected is not None:
            _wait(context, expected)
        _waited.add(application)
    return int(context.defaultParallelism)


def expected_of(master: str, conf: dict[str, str]) -> Expected | None:
    """What to wait for; None: nothing.

    >>> expected_of("local[4]", {}) is None
    True
    >>> expected_of("yarn", {"spark.executor.instances": "3", _RATIO: "0.5"})
    Expected(executors=2, cores=None)
    >>> expected_of("spark://head:7077", {"spark.cores.max": "16"})
    Expected(executors=None, cores=16)
    """
    cluster = _LOCAL_CLUSTER.match(master)
    if "spark.default.parallelism" in conf or (master.startswith("local") and cluster is None):
        return None
    ratio = float(conf.get(_RATIO, "1"))
    executors = int(conf["spark.executor.instances"]) if "spark.executor.instances" in conf else None
    if conf.get("spark.dynamicAllocation.enabled", "").lower() == "true":
        names = ("initialExecutors", "minExecutors")
        least = [int(conf.get(f"spark.dynamicAllocation.{name}", "0")) for name in names]
        executors = max(*least, executors or 0)
        if executors == 0:
            return None  # the first comes with the first task
    elif cluster is not None:
        executors = int(cluster[1])
    elif "spark.cores.max" in conf and master.startswith("spark:"):
        return Expected(cores=math.ceil(ratio * int(conf["spark.cores.max"])))
    return Expected(executors=None if executors is None else math.ceil(ratio * executors))


def _wait(context: SparkContext, expected: Expected) -> None:
    of_java: Any = context
    inside = of_java._jsc.sc()
    limit = inside.conf().getTimeAsMs(_LIMIT, _LIMIT_DEFAULT) / 1_000
    begun = grown = time.monotonic()
    before = 0
    while True:
        executors = inside.getExecutorMemoryStatus().size() - 1  # the driver is one of them
        now = time.monotonic()
        if expected.is_met(executors, int(context.defaultParallelism)):
            return
        if executors > before:
            before, grown = executors, now
        if expected == Expected() and executors and now - grown >= _QUIET_SECONDS:
            return
        if now - begun >= limit:
            break
        time.sleep(_LOOK_SECONDS)
    log.warning(
        "after %.0f s %s executors have registered, with %s cores; a query that begins now "
        "gets partitions for these. Set %s to wait longer",
        limit, executors, context.defaultParallelism, _LIMIT,
    )  # fmt: skip
