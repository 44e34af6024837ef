"""Anomalies and patterns: what steps of a pipeline look for in the records of a key, in event time."""
