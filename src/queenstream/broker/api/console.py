"""The console at ``/``: static files that use the public API like any client.

Its files are built from ``console/`` into ``broker/static`` and are part of the wheel. Where they are
missing, a plain page says how to build them.
"""

from __future__ import annotations

import asyncio
from functools import cache
from importlib import resources

from queenstream.broker.http.routing import Call, Response, Role, Routes
from queenstream.broker.http.static_files import Files

routes = Routes("page")

# Every address that the console shows something at; ``console/src/lib/routes.ts`` has the same, by page.
ADDRESSES = (
    "/",
    "/queues",
    "/queues/{queue}",
    "/messages/{partition}/{transaction}",
    "/groups",
    "/groups/{group}",
    "/streams",
    "/streams/{stream}",
    "/dead-letters",
    "/dead-letters/{letter}",
    "/pipelines",
    "/pipelines/{pipeline}",
    "/analytics",
    "/system",
)


@cache
def _built() -> Files:
    return Files(resources.files("queenstream.broker").joinpath("static"))


@cache
def _plain() -> Files:
    return Files(resources.files("queenstream.broker").joinpath("page"))


async def page(call: Call) -> Response:
    """The console; which page of it, its script reads from the address."""
    built = await asyncio.to_thread(_built)
    if "index.html" in built:
        return built.answer("index.html", call.request)
    return _plain().answer("plain.html", call.request)


for _address in ADDRESSES:
    routes.get(_address, role=Role.PUBLIC, answers={200: str, 304: None})(page)


@routes.get("/console/{file}", role=Role.PUBLIC, answers={200: str, 304: None})
async def console_file(call: Call) -> Response:
    """A script, style or picture of the console."""
    name = call.params["file"]
    built = await asyncio.to_thread(_built)
    return (_plain() if name == "plain.css" else built).answer(name, call.request)
