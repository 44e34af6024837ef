"""Plans that need no Python: typed columns from the source to the sink, and Spark's own state in between.

A plan is native if its sources have schemas, every step is an expression, and at most one step has state:
an aggregate over tumbling or sliding windows, or a join of two sources; and nobody wants the late records.
Dead letters may come back to it from a queue (``replays``): only to open these takes Python.
Everything else runs in stages (``compile``). The rows are the same; this is only quicker.

Two steps that Spark has too are not native, since they mean something else there: sessions (``windows``
says why), and ``dropDuplicatesWithinWatermark``, which goes by what its state still knows: of equal records
further apart than ``within`` it drops the second too, if the first has not been forgotten yet.
"""
