"""The Python client: ``AsyncQueen`` is written by hand in ``_async``; ``Queen`` in ``_sync`` is made from it."""
