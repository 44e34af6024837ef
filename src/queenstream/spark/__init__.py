"""Spark: sessions, and the data source ``queen`` for anybody's Spark code.

>>> from queenstream.spark import session
>>> spark = session("orders")  # doctest: +SKIP
>>> spark.read.format("queen").option("queue", "orders").load().show()  # doctest: +SKIP
"""

from queenstream.engines.spark import log_file, register, session

__all__ = ["log_file", "register", "session"]
