"""What a failure of the database means: the HTTP status, and whether its connection can be used again.

One table by SQLSTATE, for requests, background work and probes alike. A code that is not in it, nor its
class (the first two characters), is a defect of ours: 500, with the error in the log.

>>> meaning_of(asyncpg.ReadOnlySQLTransactionError("cannot execute INSERT in a read-only transaction")).status
503
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

import asyncpg

from queenstream.errors import Unavailable


class Connections(enum.Enum):
    """What becomes of the connections when a statement has failed."""

    KEEP = "this one is as good as before"
    DROP = "this one is closed; the next statement makes another"
    RENEW = "all are closed: this server is no longer the one to write to"


@dataclass(frozen=True)
class Meaning:
    """What a failure means for whoever asked and for the connection."""

    message: str
    connections: Connections = Connections.KEEP
    status: int = Unavailable.status
    repeat: bool = False  # the statement lost to another and is tried again before anybody is told


_AGAIN = "try again in a moment"
_AWAY = Meaning(f"the database is away; {_AGAIN}", Connections.DROP)
_RESTARTS = Meaning(f"the database stops or starts; {_AGAIN}", Connections.DROP)
_READ_ONLY = Meaning(f"the database is read-only, as after a failover; {_AGAIN}", Connections.RENEW)
_FULL = Meaning("the database has too many connections; raise its max_connections, or lower pool")
_SLOW = Meaning(f"the database took too long and the statement was cancelled; {_AGAIN}")
_LOST = Meaning(f"too many conflicts in the database; {_AGAIN}", repeat=True)
_REFUSED = Meaning("the database refuses the broker's user; check user and password in the URL")

MEANINGS: dict[str, Meaning] = {
    "08": _AWAY,  # connection failures
    "0A000": _LOST,  # only as "cached plan must not change result type": a table changed under the statement
    "25006": _READ_ONLY,  # read_only_sql_transaction
    "25P03": _AWAY,  # idle_in_transaction_session_timeout
    "25P04": _AWAY,  # transaction_timeout
    "28": _REFUSED,  # invalid authorization
    "3D000": _AWAY,  # invalid_catalog_name: the database is being restored
    "40001": _LOST,  # serialization_failure
    "40P01": _LOST,  # deadlock_detected
    "42883": Meaning(f"the database lacks the functions of this release; they are made again: {_AGAIN}"),
    "53100": Meaning("the database's disk is full; nothing was stored. Free space."),
    "53200": Meaning(f"the database is out of memory; {_AGAIN}", Connections.DROP),
    "53300": _FULL,  # too_many_connections
    "55P03": _SLOW,  # lock_not_available
    "57014": _SLOW,  # query_canceled
    "57P01": _RESTARTS,  # admin_shutdown
    "57P02": _RESTARTS,  # crash_shutdown
    "57P03": _RESTARTS,  # cannot_connect_now
    "57P04": _AWAY,  # database_dropped
    "57P05": _AWAY,  # idle_session_timeout
}


def meaning_of(error: BaseException) -> Meaning | None:
    """What a failure means, or None when it says nothing about the state of the database."""
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return _READ_ONLY
    if isinstance(error, asyncpg.FeatureNotSupportedError):
        return _LOST if isinstance(error, asyncpg.InvalidCachedStatementError) else None
    if isinstance(error, asyncpg.OutdatedSchemaCacheError):
        return _LOST
    if isinstance(error, asyncpg.PostgresError):
        state = error.sqlstate or ""
        return MEANINGS.get(state) or MEANINGS.get(state[:2])
    # asyncpg's own words for a connection that is no more, or was closed under a statement.
    if isinstance(error, (OSError, TimeoutError, asyncpg.InterfaceError, asyncpg.InternalClientError)):
        return _AWAY
    return None
