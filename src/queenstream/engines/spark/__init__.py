"""Spark: the session, and the data source ``queen`` for anybody's Spark code. Only here pyspark is imported.

>>> from queenstream.spark import session
>>> spark = session("orders")  # doctest: +SKIP
>>> spark.read.format("queen").option("queue", "orders").load().show()  # doctest: +SKIP
"""

from queenstream.engines.spark import versions

versions.check_supported()  # before anything is imported that another version does not have

from queenstream.engines.spark.datasource import register  # noqa: E402 - see above
from queenstream.engines.spark.session.factory import log_file, session  # noqa: E402

__all__ = ["log_file", "register", "session"]
