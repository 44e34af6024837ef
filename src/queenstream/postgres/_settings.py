"""The server's settings: ours, the caller's over them, and a few that stay fixed."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from queenstream.errors import ConfigError

# For a queue on a small machine: many short commits, busy small tables, bursts of log.
_DEFAULTS: Mapping[str, str] = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_buffers": "16MB",
    "max_wal_size": "4GB",
    "checkpoint_timeout": "15min",
    "huge_pages": "try",
    "max_connections": "100",
    "max_locks_per_transaction": "256",
    "autovacuum_naptime": "10s",
    "autovacuum_vacuum_cost_limit": "2000",
    "track_io_timing": "off",
    "jit": "off",
    # An open transaction that was forgotten keeps every dead row alive.
    "idle_in_transaction_session_timeout": "5min",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "log_min_messages": "warning",
    # What is in a message is nobody's business in a log.
    "log_parameter_max_length": "0",
    "log_parameter_max_length_on_error": "0",
}

# An answered push is on the disk: these may be set, but not to something that breaks that.
_DURABLE: Mapping[str, tuple[str, ...]] = {
    "fsync": ("on",),
    "full_page_writes": ("on",),
    "synchronous_commit": ("on", "local", "remote_write", "remote_apply"),
}

# How the server is reached, found and logged is decided here; another value would lose it.
_FIXED = frozenset(
    {
        "config_file",
        "data_directory",
        "external_pid_file",
        "hba_file",
        "ident_file",
        "listen_addresses",
        "log_destination",
        "logging_collector",
        "port",
        "unix_socket_directories",
        "unix_socket_group",
        "unix_socket_permissions",
    }
)

_NAME = re.compile(r"[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*")
SOCKET_PORT = 5432


def _shared_buffers() -> str:
    """An eighth of the machine's memory, for the newest messages and indexes; the rest is the user's."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return f"{min(max(memory // 8 // 2**20, 128), 4096)}MB"


def render(*, socket: Path, port: int | None, lz4: bool, settings: Mapping[str, str] | None) -> str:
    """The text of ``queenstream.conf``.

    >>> text = render(socket=Path("/run/q"), port=None, lz4=False, settings={"work_mem": "8MB"})
    >>> "work_mem = '8MB'" in text and "listen_addresses = ''" in text
    True
    """
    values = {
        **_DEFAULTS,
        "shared_buffers": _shared_buffers(),
        "wal_compression": "lz4" if lz4 else "pglz",
        **checked(settings or {}),
        "logging_collector": "off",
        "log_destination": "stderr",
        "unix_socket_directories": str(socket),
        "unix_socket_permissions": "0700",
        # Without a port there is no way in but the socket. Its name holds a number all the same.
        "listen_addresses": "" if port is None else "127.0.0.1",
        "port": str(port or SOCKET_PORT),
    }
    lines = [f"{name} = '{_escaped(value)}'" for name, value in values.items()]
    return "\n".join(["# Written by Queenstream at every start; edits are lost.", *lines, ""])


def checked(settings: Mapping[str, str]) -> dict[str, str]:
    """The caller's settings, lower-cased, or ConfigError naming the one that cannot be used."""
    result = {name.lower(): value for name, value in settings.items()}
    for name, value in result.items():
        if not _NAME.fullmatch(name) or "\n" in value or "\0" in value:
            raise ConfigError(f"{name!r} = {value!r} is not a PostgreSQL setting; remove it")
        if name in _FIXED:
            raise ConfigError(f"the setting {name} is Queenstream's own; remove it")
        if name in _DURABLE and value not in _DURABLE[name]:
            raise ConfigError(
                f"{name} = {value!r} would lose answered messages in a crash;"
                f" use {name} = {' or '.join(_DURABLE[name])}"
            )
    return result


def checked_port(port: int | None) -> int | None:
    if port is not None and not 0 <= port <= 65535:
        raise ConfigError(f"port {port} is not between 1 and 65535; choose one that is, or 0 for a free one")
    return port


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("'", "''")
