"""Which hosts and web pages may use a broker that has no key.

A page on any site can make its visitor's browser send requests to a loopback address, directly or through a
name of its own that it points there (DNS rebinding). Without a key, nothing but these headers tells such
requests apart, so ``HostPolicy`` checks them before a body is read. A broker with a key does not need the
check: no page can know a token.

>>> policy = HostPolicy(["queen.example.com"])
>>> policy.check({b"host": b"localhost:6632"})
>>> policy.check({b"host": b"evil.example"})
Traceback (most recent call last):
queenstream.errors.Forbidden: this broker does not serve the host 'evil.example'; start it with \
--allow-host evil.example, or with a key
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

from queenstream.config import Settings
from queenstream.errors import ConfigError, Forbidden

_HOST = re.compile(r"(?:\[([0-9a-f:.]{2,45})\]|([a-z0-9_.-]{1,255}))(?::([0-9]{1,5}))?", re.IGNORECASE)
_DEFAULT_PORTS = {"http": 80, "https": 443}
_OWN_PAGES = frozenset({b"same-origin", b"none"})
_SHOWN_CHARS = 80


class HostPolicy:
    """Accepts requests to the given hosts and to loopback, and none that a page of another origin caused.

    ``any_address`` also accepts every numeric address: rebinding needs a name.
    """

    def __init__(self, hosts: Iterable[str] = (), *, any_address: bool = False) -> None:
        self._hosts = frozenset(_normalize(host) for host in hosts)
        self._any_address = any_address
        self._serves = lru_cache(256)(self._is_served)
        self._is_own = lru_cache(256)(_is_own_origin)

    @classmethod
    def from_settings(cls, settings: Settings) -> HostPolicy:
        """The policy for a broker without a key."""
        exposed = not listens_on_loopback(settings.host)
        return cls([*settings.allow_host, settings.host], any_address=exposed)

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Forbidden, unless the headers (names in lower case) name us, and no foreign page as the sender."""
        host = headers.get(b"host", b"")
        if not self._serves(host):
            raise _foreign_host(host)
        fetched = headers.get(b"sec-fetch-site")
        if fetched is not None and fetched not in _OWN_PAGES:
            raise _foreign_page()
        origin = headers.get(b"origin")
        if origin is not None and not self._is_own(origin, host):
            raise _foreign_page()

    def _is_served(self, host: bytes) -> bool:
        parsed = _parse(host)
        if parsed is None:
            return False
        name, _ = parsed
        return name in self._hosts or is_loopback(name) or (self._any_address and _is_address(name))


def has_key(settings: Settings) -> bool:
    """Whether the settings hold a key that tokens are checked with."""
    return bool(
        settings.auth_secret
        or settings.auth_secret_file
        or settings.auth_public_key
        or settings.auth_jwks_url
    )


def is_exposed(settings: Settings) -> bool:
    """Whether other machines can use the broker without a token."""
    return not has_key(settings) and not listens_on_loopback(settings.host)


def refuse_exposure(settings: Settings) -> None:
    """ConfigError, if other machines could use the broker without a token and nobody has asked for that."""
    if is_exposed(settings) and not settings.insecure:
        raise ConfigError(
            f"host ({settings.source('host')}) is {settings.host}, so other machines could administer this "
            "broker: there is no key. Make one (`queen keys new`) and set QUEEN_AUTH_SECRET to it, listen on "
            "127.0.0.1, or accept the risk with --insecure"
        )


def listens_on_loopback(host: str) -> bool:
    """Whether only this machine reaches what listens on ``host``."""
    if is_loopback(_normalize(host)):
        return True
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return True  # nothing can listen there; the attempt says why
    return all(is_loopback(str(address[0]).partition("%")[0]) for *_, address in found)


def is_loopback(name: str) -> bool:
    """Whether a host name or address always means the same machine.

    >>> [is_loopback(name) for name in ("localhost", "127.1.2.3", "::1", "10.0.0.1")]
    [True, True, True, False]
    """
    if name == "localhost":
        return True
    try:
        address = ip_address(name)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _normalize(host: str) -> str:
    return host.strip("[]").removesuffix(".").lower()


def _parse(host: bytes) -> tuple[str, int | None] | None:
    """Name and port of a Host header; None if it is not exactly one host."""
    match = _HOST.fullmatch(host.decode("latin-1"))
    if match is None:
        return None
    name = match[1] or match[2]
    return _normalize(name), int(match[3]) if match[3] else None


def _is_own_origin(origin: bytes, host: bytes) -> bool:
    """Whether ``origin`` is a page that came from ``host`` itself: the same name and port."""
    scheme, _, authority = origin.partition(b"://")
    default = _DEFAULT_PORTS.get(scheme.decode("latin-1").lower())
    theirs, ours = _parse(authority), _parse(host)
    if default is None or theirs is None or ours is None:
        return False
    return (theirs[0], theirs[1] or default) == (ours[0], ours[1] or default)


def _foreign_host(host: bytes) -> Forbidden:
    parsed = _parse(host)
    if parsed is None:
        return Forbidden("the request does not name one host; send one Host header, such as localhost:6632")
    name = parsed[0][:_SHOWN_CHARS]
    return Forbidden(
        f"this broker does not serve the host {name!r}; start it with --allow-host {name}, or with a key"
    )


def _foreign_page() -> Forbidden:
    return Forbidden(
        "a page of another site or port has sent this; without a key, a broker answers only its own console "
        "and programs: open its address directly, or give it a key"
    )
