"""The audit log: each administrative act that was done, noted by the router and not by the routes.

Every route that changes something is audited, unless its declaration says that it is traffic (pushes, pops,
acknowledgements, reports of runs). The act stands when it is noted: a note that fails is logged and counted.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec
from msgspec import UNSET, Raw, Struct

from queenstream.broker.http.openapi import role_name
from queenstream.broker.http.routing import Call
from queenstream.errors import Unavailable

if TYPE_CHECKING:
    from queenstream.broker.app import Broker

log = logging.getLogger(__name__)

MOST_DETAILS_BYTES = 4_096
MOST_TARGET = 1_000  # characters
MOST_ACTS = 100_000  # kept
# Programs say these whenever they start; what changes nothing is noted once.
_SAID_AGAIN = frozenset({"configure", "define_stream"})
# Fields of bodies that say what an act is about, where the path does not.
_TARGETS = ("queue", "name", "stream_name", "consumer_group")


async def note(broker: Broker, call: Call) -> None:
    """Note what a call has done; a rehearsal (``dryRun``) has done nothing."""
    route, request = call.route, call.request
    if route is None or not route.audited or getattr(call.body, "dry_run", False):
        return
    action = route.handler.__name__
    forwarded = request.headers.get(b"x-forwarded-for", b"").decode("latin-1").replace("\0", "")
    try:
        await broker.database.upkeep(
            "note_act", request.subject, role_name(request.role), request.address, forwarded[:255] or None,
            action, target(call), details(call), broker.database.now(), action in _SAID_AGAIN,
        )  # fmt: skip
    except (Unavailable, asyncpg.PostgresError) as error:
        log.warning("audit: %s is done, and could not be noted: %s", action, error)
        broker.metrics.background_failed("audit")


def target(call: Call) -> str:
    """What an act is about, in a few words: ``queue orders, group billing``."""
    about = dict(call.params)
    for name in _TARGETS:
        value = getattr(call.body, name, None)
        if isinstance(value, str):
            about.setdefault(name.replace("_", " "), value)
    return ", ".join(f"{name} {value}" for name, value in about.items())[:MOST_TARGET]


def details(call: Call) -> bytes:
    """All that was said, as JSON, without payloads; what is too long is left out as a whole."""
    said = {"path": call.params, "query": plain(call.query), "body": plain(call.body)}
    made = msgspec.json.encode({name: value for name, value in said.items() if value})
    return made if len(made) <= MOST_DETAILS_BYTES else b'{"tooLong":true}'


def plain(value: Any) -> Any:
    """A request as it came, without what is somebody's data (``Raw``) and what was not said.

    >>> class Body(Struct, rename="camel"):
    ...     dead_letter: str
    ...     payload: Raw
    ...     note: str | None = None
    >>> plain(Body("7", Raw(b'{"card": 1}')))
    {'deadLetter': '7'}
    """
    if isinstance(value, Struct):
        named = zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True)
        given = ((name, getattr(value, field)) for name, field in named)
        return {n: plain(v) for n, v in given if v is not UNSET and v is not None and not isinstance(v, Raw)}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value
