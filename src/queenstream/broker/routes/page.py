"""The overview page at ``/``: static files that use the public API like any client."""

from __future__ import annotations

from importlib import resources

from queenstream.broker.routing import Call, Response, Role, Routes

routes = Routes("page")

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = (
    ("Content-Security-Policy", _POLICY),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-cache"),
)


def _file(name: str, content_type: str) -> Response:
    body = resources.files("queenstream.broker").joinpath("page", name).read_bytes()
    return Response(200, body, content_type, _HEADERS)


_PAGE = _file("index.html", "text/html; charset=utf-8")
_STYLE = _file("page.css", "text/css; charset=utf-8")
_SCRIPT = _file("page.js", "text/javascript; charset=utf-8")


@routes.get("/", role=Role.PUBLIC, answers={200: str})
async def page(_call: Call) -> Response:
    """The overview page."""
    return _PAGE


@routes.get("/console/page.css", role=Role.PUBLIC, answers={200: str})
async def page_style(_call: Call) -> Response:
    """The page's style."""
    return _STYLE


@routes.get("/console/page.js", role=Role.PUBLIC, answers={200: str})
async def page_script(_call: Call) -> Response:
    """The page's script."""
    return _SCRIPT
