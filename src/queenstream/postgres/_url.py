"""The servers that a PostgreSQL URL names, and how to show one without its secrets."""

from __future__ import annotations

import os
from urllib.parse import parse_qs, unquote, urlsplit

from queenstream.errors import PostgresError

_PORT = 5432
_DEFAULT_SOCKET = "/var/run/postgresql"


def hosts_of(url: str) -> list[tuple[str, int]]:
    """Every server of a URL as host (a socket's folder begins with ``/``) and port, as libpq reads them.

    >>> hosts_of("postgresql://ann:pw@a:1,b/shop?target_session_attrs=read-write")
    [('a', 1), ('b', 5432)]
    >>> hosts_of("postgresql:///shop?host=/run/one,/run/two&port=5433")
    [('/run/one', 5433), ('/run/two', 5433)]
    """
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    netloc = parts.netloc.rpartition("@")[2]
    hosts: list[str] = []
    ports: list[str] = []
    for each in netloc.split(",") if netloc else ():
        host, port = _split(each)
        hosts.append(host)
        ports.append(port)
    if not any(hosts):
        hosts = query.get("host", [os.environ.get("PGHOST", "")])[0].split(",")
    if not any(ports):
        ports = query.get("port", [os.environ.get("PGPORT", "")])[0].split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    if len(ports) != len(hosts):
        raise PostgresError(
            f"the PostgreSQL URL names {len(hosts)} hosts and {len(ports)} ports;"
            " give one port for all, or one for each"
        )
    try:
        numbers = [int(port or _PORT) for port in ports]
    except ValueError:
        raise PostgresError("a port in the PostgreSQL URL is not a number; write host:5432") from None
    return [(unquote(host) or _DEFAULT_SOCKET, port) for host, port in zip(hosts, numbers, strict=True)]


def names_session(url: str) -> bool:
    """Whether a URL says itself which kind of server it wants (``target_session_attrs``).

    >>> names_session("postgresql://a,b/shop?target_session_attrs=any")
    True
    """
    return "target_session_attrs" in parse_qs(urlsplit(url).query)


def place_of(url: str) -> str:
    """Where a URL leads, without user and password.

    >>> place_of("postgresql://ann:secret@a:5433,b/shop?password=secret")
    'a:5433,b:5432/shop'
    """
    try:
        hosts = hosts_of(url)
    except (ValueError, PostgresError):
        return "that URL"
    names = (host if host.startswith("/") else f"{_bracketed(host)}:{port}" for host, port in hosts)
    return f"{','.join(names)}{urlsplit(url).path}"


def _split(address: str) -> tuple[str, str]:
    if address.startswith("["):
        host, _, rest = address[1:].partition("]")
        return host, rest.removeprefix(":")
    host, _, port = address.partition(":")
    return host, port


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
