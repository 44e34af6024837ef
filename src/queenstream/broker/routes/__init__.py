"""All the routes, from one module each."""

from __future__ import annotations

from queenstream.broker.routes import messages, system

ROUTES = tuple(route for module in (messages, system) for route in module.routes)
