"""The in-process engine: a plan becomes operators, which micro-batches of records flow through.

``compile`` makes the operators, ``engine`` lets records flow through them (no I/O, no threads), and only
``run`` has threads, signals, sources, sinks and checkpoints.
"""
