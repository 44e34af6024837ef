"""The definition of a pipeline: what to do, and nothing of how it runs. No I/O, no engine, no Spark.

``expressions`` are computations over a record (``col("amount") > 100``), ``values`` what they mean for
plain Python values, and ``grammar`` how they are written as text.
"""
