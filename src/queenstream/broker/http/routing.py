"""Routes: what a path takes, answers and needs, declared once.

A route's declaration is the single source for dispatch, for checking requests, for the table of roles
and for ``/openapi.json``. Handlers take a ``Call`` and return a ``Response``::

    routes = Routes("queues")

    @routes.post("/api/v1/configure", role=Role.READ_WRITE, body=ConfigureBody, answers={201: Configured})
    async def configure(call: Call) -> Response:
        "Create a queue or replace its options."
        ...
"""

from __future__ import annotations

import enum
from asyncio import BaseTransport
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import ip_address
from time import perf_counter
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec

from queenstream.errors import InvalidRequest, MethodNotAllowed, NotFound, RequestError, Unauthorized

if TYPE_CHECKING:
    from queenstream.broker.app import Broker
    from queenstream.broker.auth.scope import Scope, ScopeRule

JSON = "application/json"
_PAGE_HINT = (
    "; to reach what lies further, narrow the list down, or page with after or before where there is one"
)


class Role(enum.IntEnum):
    """What a token may do; a higher role includes the lower ones."""

    PUBLIC = 0
    READ_ONLY = 1
    READ_WRITE = 2
    ADMIN = 3


class Request:
    """One HTTP request, as the protocol hands it over."""

    __slots__ = (
        "anonymous", "answer", "body", "call", "gone", "headers", "method", "on_gone", "path", "query",
        "refusal", "role", "scope", "subject", "transport", "undecided",
    )  # fmt: skip

    def __init__(self, method: str, path: str, query: str, headers: dict[bytes, bytes], body: bytes) -> None:
        self.method = method
        self.path = path  # still percent-encoded
        self.query = query  # still percent-encoded
        self.headers = headers  # names in lower case
        self.body = body
        self.call: Call  # until it is handled
        self.refusal: Response | None = None  # the answer, if the headers were refused
        self.anonymous = False  # nobody has vouched for it, so little of its body is kept
        self.undecided = False  # whether anybody does is not known yet
        self.subject: str | None = None  # the token's ``sub``
        self.role = Role.ADMIN  # the token's; without a key in the settings, anybody's
        self.scope: Scope | None = None  # the queues that the token is limited to
        self.gone = False  # the client has closed the connection
        self.on_gone: Callable[[], None] | None = None  # called once, when ``gone`` becomes true
        self.answer: Callable[[Request, Response], None]  # for a handler that returns no coroutine
        self.transport: BaseTransport  # what it came through

    @property
    def is_local(self) -> bool:
        """Whether it comes from this machine, and not for somebody else through a proxy that runs here."""
        if b"x-forwarded-for" in self.headers or b"forwarded" in self.headers:
            return False
        address = self.address
        return address is not None and ip_address(address).is_loopback

    @property
    def caller(self) -> str:
        """Who asks, for limits: the token's ``sub``, or the address."""
        return self.subject or self.address or ""

    @property
    def address(self) -> str | None:
        """Where the connection comes from; None: that is not known."""
        peer = self.transport.get_extra_info("peername")
        return peer[0].partition("%")[0] if peer else None


class Response:
    """Status, body and headers; the protocol adds the framing.

    ``undelivered`` is called when the client went away before the answer was written.

    ``chunks`` stands in for ``body`` where the answer is too large to hold: the next piece is asked for when
    the client has taken what came before. Pieces of some kB are best; each becomes one HTTP chunk. If the
    client leaves, the iterator is cancelled where it waits, then closed. If it raises, the connection breaks:
    the client sees an answer cut short, never one that looks whole.
    """

    __slots__ = ("body", "chunks", "content_type", "headers", "status", "undelivered")

    def __init__(
        self,
        status: int = 200,
        body: bytes = b"",
        content_type: str = JSON,
        headers: tuple[tuple[str, str], ...] = (),
        undelivered: Callable[[], None] | None = None,
        chunks: AsyncIterator[bytes] | None = None,
    ) -> None:
        self.status = status
        self.body = body
        self.content_type = content_type
        self.headers = headers
        self.undelivered = undelivered
        self.chunks = chunks


class Call:
    """A request matched to its route, with everything checked and decoded."""

    __slots__ = ("body", "broker", "params", "query", "request", "route", "started")

    def __init__(self, broker: Broker, request: Request) -> None:
        self.broker = broker
        self.request = request
        self.started = perf_counter()
        self.route: Route | None = None
        self.params: dict[str, str] = {}
        self.query: Any = None
        self.body: Any = None

    def answer(self, response: Response | BaseException) -> None:
        """Send the answer; an error is one, too."""
        self.request.answer(self.request, self.broker.respond(self, response))

    def reply(self, value: Any, status: int = 200) -> None:
        """Send a value as JSON, or an error."""
        self.answer(value if isinstance(value, BaseException) else reply(value, status))


# A handler returns a coroutine of its answer. None, at once or from the coroutine, says that it calls
# ``call.answer`` itself, then or later; at once is for what is asked thousands of times a second: a task for
# each would cost more than all the rest.
Handler = Callable[[Call], Coroutine[Any, Any, Response | None] | None]


@dataclass(frozen=True)
class Route:
    """One method on one path."""

    method: str
    path: str
    role: Role
    handler: Handler
    tag: str
    body: Any = None
    query: Any = None
    answers: dict[int, Any] = field(default_factory=dict)
    decoder: msgspec.json.Decoder[Any] | None = None
    body_optional: bool = False
    changes_state: bool = False  # HEAD must not do what GET does
    audited: bool = False  # an administrative act: what it does is noted
    costly: bool = False  # an answer may be given again to who asks for no fresh one
    expensive: bool = False  # takes one of a few places (throttle.py)
    scope: ScopeRule | None = None  # which queues a request names; None: limited tokens are refused

    @property
    def summary(self) -> str:
        return (self.handler.__doc__ or "").strip().splitlines()[0]

    def decode_query(self, raw: str) -> Any:
        if self.query is None:
            return None
        try:
            pairs = parse_qsl(raw, keep_blank_values=True, errors="strict", max_num_fields=100)
            if "\0" in raw or "%00" in raw:
                raise ValueError("NUL is not allowed")
            return msgspec.convert(dict(pairs), self.query, strict=False)
        except (ValueError, msgspec.ValidationError) as error:
            hint = _PAGE_HINT if "$.offset" in str(error) else ""
            raise InvalidRequest(f"query string: {error}{hint}") from None

    def decode_body(self, raw: bytes) -> Any:
        if self.decoder is None:
            return None
        if not raw and self.body_optional:
            raw = b"{}"
        try:
            if not raw.isascii():
                raw.decode("utf-8", "strict")
            body = self.decoder.decode(raw)
            if b"\\u0000" in raw and _holds_nul(body):
                raise InvalidRequest("NUL (\\u0000) is for payloads only; leave it out of names and ids")
            return body
        except UnicodeDecodeError as error:
            raise InvalidRequest(f"the body is not UTF-8 (byte {error.start})") from None
        except RecursionError:
            raise InvalidRequest("the body is nested too deep; flatten it") from None
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"the body does not fit: {error}") from None
        except msgspec.DecodeError as error:
            raise InvalidRequest(f"the body is not JSON: {error}") from None


def _holds_nul(value: Any) -> bool:
    """Whether a text in a decoded body, payloads aside, holds NUL; PostgreSQL's text cannot."""
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, msgspec.Struct):
        # What a consumer says of its failure is taken as it is; NUL is cut out of it later.
        return any(_holds_nul(getattr(value, name)) for name in value.__struct_fields__ if name != "error")
    if isinstance(value, list):
        return any(_holds_nul(item) for item in value)
    return False


class Routes:
    """A group of routes under one tag."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self._routes: list[Route] = []

    def __iter__(self) -> Iterator[Route]:
        return iter(self._routes)

    def add(
        self,
        method: str,
        path: str,
        *,
        role: Role,
        body: Any = None,
        query: Any = None,
        answers: dict[int, Any] | None = None,
        body_optional: bool = False,
        changes_state: bool | None = None,
        audited: bool = True,
        costly: bool = False,
        expensive: bool = False,
        scope: ScopeRule | None = None,
    ) -> Callable[[Handler], Handler]:
        """Declare a route. ``audited``: false for traffic; a route that only reads is never audited.

        ``changes_state``: by default every method but GET does. A GET that does must declare it: HEAD is then
        405 on its path, because whoever sends HEAD expects that nothing happens.
        ``scope``: where a request names queues; without it, a token that is limited to some is refused.
        ``expensive``: it may take long, so only a few run at once (throttle.py).
        ``costly``: it is expensive, and who says ``Cache-Control: max-age=`` may get an answer made before.
        """
        changes = method != "GET" if changes_state is None else changes_state

        def declare(handler: Handler) -> Handler:
            decoder = None if body is None else msgspec.json.Decoder(body)
            self._routes.append(
                Route(
                    method,
                    path,
                    role,
                    handler,
                    self.tag,
                    body,
                    query,
                    answers or {200: Any},
                    decoder,
                    body_optional,
                    changes,
                    audited and changes,
                    costly,
                    expensive or costly,
                    scope,
                )
            )
            return handler

        return declare

    def get(self, path: str, **declared: Any) -> Callable[[Handler], Handler]:
        return self.add("GET", path, **declared)

    def post(self, path: str, **declared: Any) -> Callable[[Handler], Handler]:
        return self.add("POST", path, **declared)

    def delete(self, path: str, **declared: Any) -> Callable[[Handler], Handler]:
        return self.add("DELETE", path, **declared)


class _Node:
    __slots__ = ("children", "parameter", "routes")

    def __init__(self) -> None:
        self.children: dict[str, _Node] = {}
        self.parameter: _Node | None = None
        self.routes: dict[str, tuple[Route, tuple[str, ...]]] = {}

    @property
    def answers_head(self) -> bool:
        """Whether HEAD is safe here: there is a GET, and it changes nothing."""
        return "GET" in self.routes and not self.routes["GET"][0].changes_state


class Router:
    """Finds the route of a path: a tree by segment, where a name beats a parameter."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._root = _Node()
        self._fixed = {(route.method, route.path): route for route in self.routes if "{" not in route.path}
        for route in self.routes:
            node, names = self._root, []
            for segment in route.path.split("/")[1:]:
                if segment.startswith("{"):
                    names.append(segment[1:-1])
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
                else:
                    node = node.children.setdefault(segment, _Node())
            if route.method in node.routes:
                raise ValueError(f"{route.method} {route.path} is declared twice")
            node.routes[route.method] = (route, tuple(names))

    def match(self, method: str, path: str) -> tuple[Route, dict[str, str]]:
        """The route for ``method`` on ``path``, and the path's parameters, decoded."""
        known = self._fixed.get((method, path))
        if known is not None:
            return known, {}
        found = self._walk(self._root, path.split("/"), 1, ())
        if found is None:
            raise NotFound(f"there is no {path[:200]}; see /openapi.json for what there is")
        node, raw = found
        hit = node.routes.get(method)
        if hit is None and method == "HEAD" and node.answers_head:
            hit = node.routes["GET"]
        if hit is None:
            allowed = tuple(sorted([*node.routes, "HEAD"] if node.answers_head else node.routes))
            raise MethodNotAllowed(f"{method} is not possible here; use {', '.join(allowed)}", allowed)
        route, names = hit
        return route, {n: _decode(n, v) for n, v in zip(names, raw, strict=True)} if names else {}

    def _walk(
        self, node: _Node, segments: list[str], at: int, raw: tuple[str, ...]
    ) -> tuple[_Node, tuple[str, ...]] | None:
        if at == len(segments):
            return (node, raw) if node.routes else None
        child = node.children.get(segments[at])
        if child is not None:
            found = self._walk(child, segments, at + 1, raw)
            if found is not None:
                return found
        if node.parameter is not None:
            return self._walk(node.parameter, segments, at + 1, (*raw, segments[at]))
        return None


def _decode(name: str, value: str) -> str:
    try:
        text = unquote_to_bytes(value).decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidRequest(f"{name} in the path is not UTF-8; percent-encode it as UTF-8") from None
    if not text or "\0" in text:
        raise InvalidRequest(f"{name} in the path must not be empty or hold NUL")
    return text


def reply(value: Any, status: int = 200) -> Response:
    """A JSON answer."""
    return Response(status, msgspec.json.encode(value))


def error_response(error: RequestError) -> Response:
    """The JSON answer to a refused request."""
    headers: list[tuple[str, str]] = []
    if error.retry_after is not None:
        headers.append(("Retry-After", str(error.retry_after)))
    if isinstance(error, MethodNotAllowed):
        headers.append(("Allow", ", ".join(error.allowed)))
    if error.status == Unauthorized.status:
        headers.append(("WWW-Authenticate", "Bearer"))
    return Response(error.status, msgspec.json.encode({"error": str(error)}), JSON, tuple(headers))
