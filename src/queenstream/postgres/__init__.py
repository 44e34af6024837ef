"""An embedded PostgreSQL: found when it runs, started when it does not, stopped cleanly.

>>> from queenstream import postgres
>>> server = postgres.start("/var/lib/queenstream/data")  # doctest: +SKIP
>>> server.url  # doctest: +SKIP
'postgresql://postgres@/queen?host=/var/lib/queenstream/data/socket&port=5432'
>>> server.stop()  # doctest: +SKIP
"""

from queenstream.postgres._server import Server, ephemeral, find, start

__all__ = ["Server", "ephemeral", "find", "start"]
