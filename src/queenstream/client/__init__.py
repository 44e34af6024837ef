"""The Python client: ``AsyncQueen`` by hand in ``_async``, ``Queen`` in ``_sync`` made from it."""
