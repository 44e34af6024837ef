"""The addresses of brokers, as users write them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlsplit

from queenstream.errors import ConfigError

DEFAULT = "http://127.0.0.1:6632"


@dataclass(frozen=True)
class Address:
    """Where a broker listens. ``prefix``: of every path, when the broker is behind a proxy."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @property
    def authority(self) -> str:
        """Host and port, as the ``Host`` header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.authority}{self.prefix}"


def parse(url: str) -> Address:
    """Read an address.

    >>> parse("https://queen.example.com/broker/").url
    'https://queen.example.com:443/broker'
    >>> parse("localhost:6632").url
    'http://localhost:6632'
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{url} is not an address ({error}); write it like {DEFAULT}") from None
    if parts.username is not None or parts.password is not None:
        # Said without the address: it holds a password.
        raise ConfigError("the address holds a name or password; give a token instead")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"{url} is not an address; write it like {DEFAULT}")
    if not re.fullmatch(r"[!-~]*", parts.path):
        raise ConfigError(f"{url}: the path holds characters that must be %-encoded")
    tls = parts.scheme == "https"
    return Address(parts.hostname, port or (443 if tls else 80), tls, parts.path.rstrip("/"))


def parse_all(urls: str | Iterable[str]) -> list[Address]:
    """One address, several with commas between them, or a list; each once.

    >>> [address.port for address in parse_all("http://a:1, http://b:2")]
    [1, 2]
    """
    written = urls.split(",") if isinstance(urls, str) else list(urls)
    found = [parse(url.strip()) for url in written if url.strip()]
    if not found:
        raise ConfigError(f"no address of a broker is given; write one like {DEFAULT}")
    return list(dict.fromkeys(found))


def check_token(token: str | None) -> str | None:
    """A token that can travel in a header, or None."""
    if not token:
        return None
    if not re.fullmatch(r"[!-~]+", token):
        raise ConfigError("the token holds a space, a line end or a special character; copy it again")
    return token
