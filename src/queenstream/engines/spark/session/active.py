"""Which session is Spark's active one in a thread.

Spark looks data sources of Python up in the active session, whichever session is asked for them, and takes
settings from it. It makes a session active that makes a data frame of Python's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import SparkSession


@contextmanager
def activated(spark: SparkSession) -> Iterator[None]:
    """Make a session the active one of this thread, and then the one before it again.

    What ``SparkSession.getActiveSession()`` gives is one for all threads, and stays what it is.
    """
    python: Any = SparkSession
    of_java: Any = spark
    java = python._get_j_spark_session_class(of_java._jvm)
    before, before_in_java = python._activeSession, java.getActiveSession()
    java.setActiveSession(of_java._jsparkSession)
    try:
        yield
    finally:
        if python._activeSession is spark:  # it has made a data frame
            python._activeSession = before
        if before_in_java.isDefined():
            java.setActiveSession(before_in_java.get())
        else:
            java.clearActiveSession()
