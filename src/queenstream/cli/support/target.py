"""The broker that a command talks to: where it is, how a request to it looks, and single calls."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from queenstream.errors import BrokerUnreachable, ConfigError, QueenstreamError

if TYPE_CHECKING:
    import ssl

CALL_SECONDS = 15.0  # for one call to be answered
DELETE_SECONDS = 60.0  # a large queue takes a while


class CallFailed(QueenstreamError):
    """The broker refused a request."""


@dataclass(frozen=True)
class Target:
    """A broker's address, and the token for it, which nothing prints."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""  # of every path, when the broker is behind a proxy
    token: str | None = field(default=None, repr=False)
    bare: bool = False  # leave out what our own broker does not ask for

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"

    def request(self, method: str, path: str, body: bytes = b"") -> bytes:
        """A request as bytes, ready to send."""
        return self.head(method, path, len(body) if method != "GET" else None) + body

    def head(self, method: str, path: str, length: int | None) -> bytes:
        """The lines before the body; ``length`` is that of the body, None if there is none."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"Host: {host}:{self.port}"]
        if length is not None:
            lines.append(f"Content-Length: {length}")
            if not self.bare:
                lines.append("Content-Type: application/json")
        if self.token:
            lines.append(f"Authorization: Bearer {self.token}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")

    def tls_context(self) -> ssl.SSLContext | None:
        """How to check the broker's certificate, if it has one: as the machine does."""
        if not self.tls:
            return None
        import ssl

        return ssl.create_default_context()

    def hide(self, text: str) -> str:
        """The text without the token, should an answer repeat it."""
        return text.replace(self.token, "***") if self.token else text


def parse_target(url: str, token: str | None = None) -> Target:
    """Read an address as users write it.

    >>> parse_target("https://queen.example.com/broker/").url
    'https://queen.example.com:443/broker'
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url {url}: {error}; write it like http://127.0.0.1:6632") from None
    if parts.username is not None or parts.password is not None:
        # Said without the address: it holds a password.
        raise ConfigError("--url holds a name or password; give a token with --token or QUEEN_TOKEN instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"--url {url} is not an address; write it like http://127.0.0.1:6632")
    if not re.fullmatch(r"[!-~]*", parts.path):
        raise ConfigError(f"--url {url}: the path holds characters that must be %-encoded")
    tls = parts.scheme == "https"
    checked = checked_token(token) if token else None
    return Target(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"), checked)


def checked_token(token: str) -> str:
    """A token that fits into a header."""
    if not re.fullmatch(r"[!-~]+", token):
        raise ConfigError(
            "the token (--token, QUEEN_TOKEN) holds a space, a line end or a special character; "
            "give it as it was issued"
        )
    return token


def in_path(name: str) -> str:
    """A name as a part of a path or query."""
    return quote(name, safe="")


def unreachable(target: Target, error: BaseException) -> BrokerUnreachable:
    """What to say when nobody answers: the cause, and what to do."""
    cause = str(error) or "no answer in time" if isinstance(error, TimeoutError) else str(error)
    if isinstance(error, ConnectionRefusedError):
        cause = "the connection was refused"
    remedy = "start one with `queen up`, or give its address with --url or QUEEN_URL"
    return BrokerUnreachable(f"no broker at {target.url}: {cause or type(error).__name__}; {remedy}")


def call(
    target: Target, method: str, path: str, body: Any = None, *, seconds: float = CALL_SECONDS
) -> tuple[int, bytes]:
    """One request on a connection of its own; gives status and body. It blocks."""
    import http.client
    import json

    made: http.client.HTTPConnection
    context = target.tls_context()
    if context is None:
        made = http.client.HTTPConnection(target.host, target.port, timeout=seconds)
    else:
        made = http.client.HTTPSConnection(target.host, target.port, timeout=seconds, context=context)
    headers = {"Authorization": f"Bearer {target.token}"} if target.token else {}
    try:
        sent = None if body is None else json.dumps(body).encode()
        made.request(method, target.prefix + path, sent, headers)
        answer = made.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise unreachable(target, error) from None
    finally:
        made.close()


def must(target: Target, method: str, path: str, body: Any = None, *, also: tuple[int, ...] = ()) -> int:
    """One request that has to succeed; gives the status. ``also``: statuses that are fine too."""
    seconds = DELETE_SECONDS if method == "DELETE" else CALL_SECONDS
    status, answer = call(target, method, path, body, seconds=seconds)
    if status < 300 or status in also:
        return status
    raise CallFailed(target.hide(f"{method} {path.partition('?')[0]}: {refusal(status, answer)}"))


def refusal(status: int, body: bytes) -> str:
    """What a refusing answer says, in one line, with what to do about a token.

    >>> refusal(429, b'{"error":"the queue is full"}')
    'answered 429: the queue is full'
    """
    import json

    try:
        said = str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        said = body[:200].decode("utf-8", "replace")
    said = " ".join(said.split()) or "(nothing more)"
    remedy = "; give a token with --token or QUEEN_TOKEN" if status == 401 else ""
    return f"answered {status}: {said}{remedy}"
