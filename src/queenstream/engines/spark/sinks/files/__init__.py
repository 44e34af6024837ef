"""Folders of files as sinks: tasks write whole files into a hidden folder, and the driver moves them.

    out/_staged-<generation>-<step>/0000000002/0000000007/    what owner epoch 2 has staged of batch 7
    out/part-<generation>-0000000007-task-00000-<step>.parquet

``sink`` has the driver's part, ``location`` the file systems, ``frame`` Spark's own writer, ``columns`` the
stage for columns, and ``records`` the stage for records.
"""

from queenstream.engines.spark.sinks.files.sink import FilesSink, refuse_remote

__all__ = ["FilesSink", "refuse_remote"]
