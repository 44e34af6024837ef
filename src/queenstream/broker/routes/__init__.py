"""All the routes, from one module each."""

from __future__ import annotations

from queenstream.broker.routes import messages

ROUTES = tuple(route for module in (messages,) for route in module.routes)
