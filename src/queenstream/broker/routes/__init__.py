"""All the routes, from one module each: ``ROUTES`` is the API, ``PAGES`` the files of the page at ``/``."""

from __future__ import annotations

from queenstream.broker.routes import (
    groups,
    history,
    messages,
    page,
    pipelines,
    resources,
    stream_resources,
    streams,
    system,
)

ROUTES = tuple(
    route
    for module in (messages, streams, stream_resources, resources, history, groups, pipelines, system)
    for route in module.routes
)
PAGES = tuple(page.routes)
