"""Spark: the session, and the data source ``queen`` for anybody's Spark code. Only here pyspark is imported.

>>> from queenstream.spark import session
>>> spark = session("orders")  # doctest: +SKIP
>>> spark.read.format("queen").option("queue", "orders").load().show()  # doctest: +SKIP
"""

from queenstream.spark.datasource import register
from queenstream.spark.session import log_file, session

__all__ = ["log_file", "register", "session"]
