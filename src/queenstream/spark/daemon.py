"""Spark's daemon of Python workers, with what they need loaded beforehand: a worker is a fork of it.

Without this every new worker would load Arrow and our steps anew, which takes longer than most batches.
``spark.python.daemon.module`` names it.
"""

from pyspark.daemon import manager

from queenstream.spark import stages  # noqa: F401 - loaded for the workers

if __name__ == "__main__":
    manager()
