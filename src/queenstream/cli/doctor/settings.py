"""The PostgreSQL settings that matter: the one table, the same as in docs/performance.md, and how to set one.

>>> [row] = [row for row in SETTINGS if row.name == "max_wal_size"]
>>> row.advice, row.fits(Value("1GB", "1024", "MB"))
('4GB', False)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from queenstream.cli.doctor.facts import GB, MB, Server, Value

MINUTE = 60.0


@dataclass(frozen=True)
class Expected:
    """A setting, the value to give it, and when another is as good."""

    name: str
    advice: str
    group: str
    why: str
    fits: Callable[[Value], bool]
    otherwise: str = "warning"  # or what it is otherwise


def _on(value: Value) -> bool:
    return value.setting == "on"


def _off(value: Value) -> bool:
    return value.setting == "off"


def _not_off(value: Value) -> bool:
    return value.setting != "off"


def _least(number: float) -> Callable[[Value], bool]:
    return lambda value: value.number >= number


def _most(number: float) -> Callable[[Value], bool]:
    return lambda value: 0 < value.number <= number


SETTINGS = (
    Expected("synchronous_commit", "on", "durability",
             "an answered push is on the disk; the broker asks for it itself, a pooler may not pass that on",
             _not_off, "problem"),
    Expected("fsync", "on", "durability", "an answered push is on the disk", _on, "problem"),
    Expected("full_page_writes", "on", "durability",
             "a page half written in a crash is made whole again", _on, "problem"),
    Expected("max_wal_size", "4GB", "log and checkpoints",
             "few checkpoints: after each one, whole pages are logged again", _least(4 * GB)),
    Expected("checkpoint_timeout", "15min", "log and checkpoints",
             "few checkpoints: after each one, whole pages are logged again", _least(15 * MINUTE)),
    Expected("wal_compression", "lz4", "log and checkpoints",
             "whole pages are most of the log", _not_off),
    Expected("wal_buffers", "16MB", "log and checkpoints", "so that a batch fits", _least(16 * MB)),
    Expected("autovacuum_naptime", "10s", "vacuum",
             "cursors change all the time; the schema sets their thresholds", _most(10)),
    Expected("autovacuum_vacuum_cost_limit", "2000", "vacuum",
             "so that it keeps up with deletions", _least(2000)),
    Expected("max_locks_per_transaction", "256", "connections",
             "a push into many partitions holds a lock for each stripe, 1024 at most", _least(256)),
    Expected("jit", "off", "connections",
             "statements are short; the broker asks for it itself", _off, "note"),
    Expected("idle_in_transaction_session_timeout", "5min", "vacuum",
             "so that nobody else keeps dead rows alive for long", _most(5 * MINUTE)),
)  # fmt: skip

# Read besides, for the checks below.
MORE_SETTINGS = (
    "shared_buffers",
    "autovacuum",
    "vacuum_cost_limit",
    "autovacuum_vacuum_cost_delay",
    "max_connections",
    "superuser_reserved_connections",
)


def quoted(name: str) -> str:
    """A name as an SQL identifier.

    >>> quoted('a"b')
    '"a""b"'
    """
    return '"' + name.replace('"', '""') + '"'


def set_it(name: str, advice: str, value: Value, server: Server) -> str:
    """The statement that gives a setting another value, by where it has this one from.

    >>> server = Server(180000, "18.0", "queen", "me")
    >>> set_it("jit", "off", Value("on", "on", source="database"), server)
    'alter database "queen" reset jit;'
    """
    if value.pending_restart:
        return "restart PostgreSQL: a new value is written, but not in effect"
    database, user = quoted(server.database), quoted(server.user)
    where = {
        "database": f"alter database {database} reset {name};",
        "user": f"alter role {user} reset {name};",
        "database user": f"alter role {user} in database {database} reset {name};",
        "client": f"take {name} out of the URL's options and of PGOPTIONS",
        "command line": f"take {name} off the server's command line, then restart PostgreSQL",
    }
    if value.source in where:
        return where[value.source]
    then = "then restart PostgreSQL" if value.context == "postmaster" else "select pg_reload_conf();"
    return f"alter system set {name} = '{advice}'; {then}"
