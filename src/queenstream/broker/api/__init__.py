"""All the routes, from one module each: ``ROUTES`` is the API, ``PAGES`` the files of the page at ``/``."""

from __future__ import annotations

from queenstream.broker.api import (
    audit,
    console,
    dead_letters,
    groups,
    history,
    live,
    messages,
    pipelines,
    queues,
    rules,
    search,
    sinks,
    stream_views,
    streams,
    system,
    timeline,
)

ROUTES = tuple(
    route
    for module in (
        messages,
        streams,
        stream_views,
        timeline,
        queues,
        history,
        dead_letters,
        search,
        groups,
        live,
        pipelines,
        sinks,
        rules,
        system,
        audit,
    )
    for route in module.routes
)
PAGES = tuple(console.routes)
