"""Engines that run pipelines: ``local`` in this process, ``spark`` on Spark. Neither imports the other."""
