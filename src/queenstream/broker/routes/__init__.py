"""All the routes, from one module each: ``ROUTES`` is the API, ``PAGES`` the files of the page at ``/``."""

from __future__ import annotations

from queenstream.broker.routes import (
    audit,
    groups,
    history,
    letters,
    live,
    messages,
    page,
    pipelines,
    resources,
    rules,
    search,
    sinks,
    stream_resources,
    streams,
    system,
    timeline,
)

ROUTES = tuple(
    route
    for module in (
        messages,
        streams,
        stream_resources,
        timeline,
        resources,
        history,
        letters,
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
PAGES = tuple(page.routes)
