"""For tests of your own: a pipeline without servers, and a real broker for pytest.

>>> from queenstream import Function, Memory, Pipeline, count, tumbling
>>> from queenstream.testing import PipelineDriver
>>> clicks = (
...     Pipeline("clicks")
...     .source(Memory([]))
...     .key_by("user")
...     .window(tumbling("1m"), time="at")
...     .aggregate(n=count())
...     .to(Function(print))
... )
>>> with PipelineDriver(clicks) as driver:
...     driver.send({"user": "ann", "at": 0}, {"user": "ann", "at": 30_000})
...     driver.advance("1m")
...     [(row["user"], row["n"]) for row in driver.rows()]
[('ann', 2)]

``pytest_plugin`` brings the fixture ``queen_broker``; pytest finds it by itself.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from queenstream.testing.brokers import TemporaryBroker, TemporaryBrokers
    from queenstream.testing.driver import PipelineDriver

__all__ = ["PipelineDriver", "TemporaryBroker", "TemporaryBrokers"]

# Loaded when used: pytest imports this package in every test run, pipelines or not.
_HOMES = {"PipelineDriver": "driver", "TemporaryBroker": "brokers", "TemporaryBrokers": "brokers"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'queenstream.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"queenstream.testing.{home}"), name)
