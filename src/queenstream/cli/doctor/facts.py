"""What ``queen doctor`` looks at: the facts about an installation. ``probes.py`` finds them out.

A fact that could not be found out is ``Missing``, with the reason; ``known`` gives it or raises.

>>> known(Facts(python=(3, 11, 7)).python)
(3, 11, 7)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

KB, MB, GB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True)
class Missing:
    """A fact that could not be found out, and why; ``silent`` ones have been said elsewhere."""

    reason: str = ""
    silent: bool = False


class CannotLook(Exception):
    """A check lacks a fact."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(missing.reason)
        self.missing = missing


UNASKED = Missing(silent=True)


def known(fact: T | Missing) -> T:
    """The fact, or CannotLook."""
    if isinstance(fact, Missing):
        raise CannotLook(fact)
    return fact


@dataclass(frozen=True)
class Server:
    version_number: int
    version: str
    database: str
    user: str
    in_recovery: bool = False


@dataclass(frozen=True)
class Schema:
    applied: int | None  # None: the schema is not there
    known: int
    functions_current: bool = True
    compatible: bool = True  # this version works with it, also if it is newer


@dataclass(frozen=True)
class Value:
    """A row of pg_settings: ``value`` as PostgreSQL shows it, ``setting`` in ``unit``."""

    value: str
    setting: str
    unit: str | None = None
    source: str = "default"
    context: str = "sighup"
    pending_restart: bool = False
    choices: tuple[str, ...] = ()

    @property
    def number(self) -> float:
        """In bytes or seconds.

        >>> Value("4GB", "4096", "MB").number == 4 * GB, Value("1min", "60", "s").number
        (True, 60.0)
        """
        return float(self.setting) * _unit(self.unit)


def _unit(unit: str | None) -> float:
    plain = {None: 1.0, "": 1.0, "ms": 0.001, "s": 1.0, "min": 60.0, "B": 1.0}
    if unit in plain:
        return plain[unit]
    found = re.fullmatch(r"(\d*)(kB|MB|GB)", unit or "")
    if found is None:
        raise ValueError(f"{unit!r} is not a unit of PostgreSQL")
    return float(int(found[1] or 1) * {"kB": KB, "MB": MB, "GB": GB}[found[2]])


@dataclass(frozen=True)
class Clock:
    """``ahead_seconds`` of this machine's, give or take ``error_seconds``."""

    ahead_seconds: float
    error_seconds: float


@dataclass(frozen=True)
class Holder:
    """What keeps dead rows: a backend, a prepared transaction or a replication slot."""

    kind: str
    pid: int | None
    name: str | None
    application: str | None
    user: str | None
    state: str | None
    seconds: float | None
    transactions: int | None


@dataclass(frozen=True)
class Table:
    name: str
    bytes: int
    live: int
    dead: int
    vacuumed_seconds: float | None


@dataclass(frozen=True)
class Broker:
    """One live broker process."""

    address: str
    version: str
    pool: int = 0
    open_connections: int = 0
    failures: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Health:
    healthy: bool
    version: str
    database: str


@dataclass(frozen=True)
class Facts:
    """Everything the checks look at. What nobody asked for stays silent."""

    python: tuple[int, int, int] | Missing = UNASKED
    queenstream: str | Missing = UNASKED
    java: str | Missing | None = UNASKED
    place: str | Missing = UNASKED  # of the database, without a password
    server: Server | Missing = UNASKED
    schema: Schema | Missing = UNASKED
    settings: Mapping[str, Value] | Missing = UNASKED
    checkpoints: tuple[int, int] | Missing = UNASKED  # timed, requested
    memory_bytes: int | Missing = UNASKED
    cache: tuple[int, int] | Missing = UNASKED  # hits, reads
    connections: tuple[int, int] | Missing = UNASKED  # all, of ours
    needed_connections: int = 0  # of the brokers that would be started with these settings
    database_clock: Clock | Missing = UNASKED
    broker_clock: Clock | Missing = UNASKED
    holders: tuple[Holder, ...] | Missing = UNASKED
    tables: tuple[Table, ...] | Missing = UNASKED
    wraparound: tuple[str, int] | Missing = UNASKED
    commit_seconds: float | Missing = UNASKED
    disk: tuple[str, int, int] | Missing = UNASKED  # where, free, all
    open_files: int | Missing = UNASKED
    broker_url: str = ""
    health: Health | Missing | None = UNASKED  # None: nobody listens there
    brokers: tuple[Broker, ...] | Missing = UNASKED
    maintenance: str | Missing = UNASKED  # '': off
    insecure: bool | Missing = UNASKED  # other machines may use the broker without a token
