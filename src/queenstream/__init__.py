"""Queenstream: partitioned queues and windows on PostgreSQL, data pipelines on Spark.

The broker runs as a command, ``queen up``; the public Python names will stand here.
"""
