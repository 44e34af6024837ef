"""What both engines share while a pipeline runs: records, keys, state, look-ups, metrics, the summary."""
