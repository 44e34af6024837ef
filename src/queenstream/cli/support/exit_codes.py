"""The exit codes of ``queen``, which scripts may rely on, and which error ends with which."""

from __future__ import annotations

from queenstream.errors import (
    BrokerUnreachable,
    ConfigError,
    Forbidden,
    InvalidRequest,
    NotFound,
    PostgresError,
    QueenstreamError,
    Unauthorized,
    Unavailable,
)

FAILED = 1
USAGE = 2
UNREACHABLE = 3
PORT = 4
NOT_FOUND = 5
REFUSED = 6
INTERRUPTED = 130  # 128 and the number of the signal, as shells count
CLOSED_PIPE = 141

MEANINGS = {
    0: "done",
    FAILED: "failed",
    USAGE: "wrong usage or settings",
    UNREACHABLE: "PostgreSQL or the broker cannot be reached",
    PORT: "the port is taken",
    NOT_FOUND: "no such queue, group, stream, message or dead letter",
    REFUSED: "not allowed: no token, or one with too small a role",
    INTERRUPTED: "interrupted by Ctrl-C",
    CLOSED_PIPE: "who read the output went away (| head)",
}


class PortTaken(QueenstreamError):
    """Somebody listens on the port already."""


# The first that fits.
_CODES: tuple[tuple[type[QueenstreamError], int], ...] = (
    (PortTaken, PORT),
    (ConfigError, USAGE),
    (InvalidRequest, USAGE),
    (PostgresError, UNREACHABLE),
    (BrokerUnreachable, UNREACHABLE),
    (Unavailable, UNREACHABLE),
    (NotFound, NOT_FOUND),
    (Unauthorized, REFUSED),
    (Forbidden, REFUSED),
)


def code_of(error: QueenstreamError) -> int:
    """The exit code for an error.

    >>> code_of(NotFound("there is no queue orders"))
    5
    """
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
