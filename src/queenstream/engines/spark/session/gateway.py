"""The JVM that PySpark starts, without what it and its workers tell of themselves on standard error.

Everything else that is written there (what a user's function prints, or what Java says before it has a log)
comes to this process' standard error, as it would have by itself.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway

_CHATTER = re.compile(
    rb"WARNING: (Using incubator modules|A (terminally deprecated|restricted) method|.+ has been called by |"
    rb"Please consider reporting this|Use --enable-native-access|Restricted methods will be|"
    rb"A future release will|sun\.misc\.Unsafe|package \S+ not in )|"
    rb"(Starting )?Streaming TransformWithStateInPandas Python worker|"
    rb"Using Spark's default log4j profile|Setting default log level to|To adjust logging level use"
)


def start(settings: Mapping[str, str]) -> None:
    """Start the JVM for a session of these settings, unless this process has one, or is to use another's."""
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="spark-stderr", daemon=True).start()
    try:
        started = launch_gateway(conf, {"stderr": writing})  # type: ignore[no-untyped-call]
        SparkContext._ensure_initialized(conf=conf, gateway=started)
    finally:
        os.close(writing)


def _pass_on(reading: int) -> None:
    with os.fdopen(reading, "rb") as lines:
        for line in told(lines):
            # Where nobody can see it, it is read all the same, or Java would wait.
            with contextlib.suppress(OSError):
                os.write(2, line)


def told(lines: Iterable[bytes]) -> Iterator[bytes]:
    r"""The lines that are for people.

    >>> chatter = b"Starting Streaming TransformWithStateInPandas Python worker.\n"
    >>> list(told([chatter, b"\n", b"mine\n", b"\n"]))
    [b'mine\n', b'\n']
    """
    dropped = False
    for line in lines:
        blank_behind = dropped and line.isspace()
        dropped = _CHATTER.match(line) is not None
        if not dropped and not blank_behind:
            yield line
