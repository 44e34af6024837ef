"""An embedded PostgreSQL: found when it runs, started when it does not, stopped cleanly.

>>> from queenstream import postgres
>>> server = postgres.start("/var/lib/queenstream/data")  # doctest: +SKIP
>>> server.url  # doctest: +SKIP
'postgresql://postgres@/queen?host=/var/lib/queenstream/data/socket&port=5432'
>>> server.stop()  # doctest: +SKIP
"""

from queenstream.postgres._restarts import Restarts
from queenstream.postgres._restarts import read as read_restarts
from queenstream.postgres._server import Server, ephemeral, find, start
from queenstream.postgres._supervisor import Supervisor
from queenstream.postgres._url import hosts_of, names_session, place_of

__all__ = [
    "Restarts",
    "Server",
    "Supervisor",
    "ephemeral",
    "find",
    "hosts_of",
    "names_session",
    "place_of",
    "read_restarts",
    "start",
]
