"""Contexts: named brokers, each with its addresses and a token, in a file that only its owner may read.

The file is ``queenstream/contexts.toml`` in the user's configuration folder. It holds tokens: one that
others may read is refused, and what is written gets mode 0600 in a folder of mode 0700.

>>> chosen(Flags(url="broker:7000"), {}, Contexts())
Context(urls=('http://broker:7000',))
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from queenstream.cli.support.target import checked_token, parse_target
from queenstream.errors import ConfigError

DEFAULT_URL = "http://127.0.0.1:6632"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class Context:
    """A broker's addresses, and the token for it, which nothing prints."""

    urls: tuple[str, ...]
    token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class Contexts:
    """What the file holds: contexts by name, and which is used when nothing else is said."""

    current: str | None = None
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def named(self, name: str) -> Context:
        """The context of that name."""
        if name not in self.by_name:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise ConfigError(
                f"there is no context {name!r} (there are: {known}); "
                f"make it with `queen config set-context {name} --url …`"
            )
        return self.by_name[name]

    def with_context(self, name: str, context: Context) -> Contexts:
        """The same with that context; the first one becomes the current one."""
        if _NAME.fullmatch(name) is None:
            raise ConfigError(
                f"{name!r} cannot name a context; use up to 64 letters, digits, dots, dashes and underscores"
            )
        return Contexts(self.current or name, {**self.by_name, name: context})

    def without(self, name: str) -> Contexts:
        """The same without that context."""
        self.named(name)
        rest = {known: context for known, context in self.by_name.items() if known != name}
        return Contexts(None if self.current == name else self.current, rest)

    def using(self, name: str) -> Contexts:
        """The same with that context as the current one."""
        self.named(name)
        return replace(self, current=name)


@dataclass(frozen=True)
class Flags:
    """What the command line said about the broker."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    context: str | None = None


def chosen(flags: Flags, environ: Mapping[str, str], contexts: Contexts) -> Context:
    """The broker to talk to: flags, then QUEEN_* variables, then the current context, then this machine.

    A context's token is sent to that context's addresses and nowhere else.
    """
    if flags.url and flags.context:
        raise ConfigError("--url and --context both name a broker; give one of them")
    token = flags.token or None
    if flags.url:
        context = Context(addresses(flags.url))
    elif flags.context:
        context = contexts.named(flags.context)
        token = token or context.token  # named together with the address: before QUEEN_TOKEN
    elif environ.get("QUEEN_URL"):
        context = Context(addresses(environ["QUEEN_URL"], "QUEEN_URL"))
    elif environ.get("QUEEN_CONTEXT"):
        context = contexts.named(environ["QUEEN_CONTEXT"])
    elif contexts.current is not None:
        context = contexts.named(contexts.current)
    else:
        context = Context((DEFAULT_URL,))
    token = token or environ.get("QUEEN_TOKEN") or context.token
    return Context(context.urls, checked_token(token) if token else None)


def addresses(text: str, where: str = "--url") -> tuple[str, ...]:
    """The addresses in a list with commas, each checked.

    >>> addresses("one:6632, https://two.example.com/queen/")
    ('http://one:6632', 'https://two.example.com:443/queen')
    """
    found = tuple(parse_target(url.strip()).url for url in text.split(",") if url.strip())
    if not found:
        raise ConfigError(f"{where} names no address; write it like {DEFAULT_URL}")
    return found


def default_path(environ: Mapping[str, str]) -> Path:
    """Where the file is, by the XDG specification.

    >>> default_path({"XDG_CONFIG_HOME": "/home/ann/conf"})
    PosixPath('/home/ann/conf/queenstream/contexts.toml')
    """
    base = environ.get("XDG_CONFIG_HOME", "")
    # The specification has relative paths ignored.
    folder = Path(base) if base.startswith("/") else Path("~/.config").expanduser()
    return folder / "queenstream" / "contexts.toml"


def load(path: Path) -> Contexts:
    """What the file holds; nothing if there is none. One that others may read or replace is refused."""
    try:
        with path.open("rb") as file:
            _refuse_shared(path, os.fstat(file.fileno()), 0o077, "read", "600")
            _refuse_shared(path.parent, path.parent.stat(), 0o022, "write to", "700")
            return _read(path, tomllib.load(file))
    except FileNotFoundError:
        return Contexts()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check who owns it") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is damaged: {error}; mend it or delete it") from None


def change(path: Path, made: Callable[[Contexts], Contexts]) -> Contexts:
    """Store what ``made`` makes of the contexts; no change of somebody else at the same time is lost."""
    try:
        with _locked(path.parent):
            changed = made(load(path))
            _store(path, changed)
            return changed
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}; check who owns the folder") from None


def _refuse_shared(path: Path, found: os.stat_result, bits: int, may: str, mode: str) -> None:
    if found.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"{path} belongs to another user, and what it says decides where tokens go; remove it"
        )
    if found.st_mode & bits:
        raise ConfigError(
            f"others may {may} {path} (mode {found.st_mode & 0o777:04o}), which is for tokens; "
            f"run `chmod {mode} {path}`, and replace tokens that others may have seen"
        )


def _read(path: Path, found: dict[str, object]) -> Contexts:
    by_name: dict[str, Context] = {}
    tables = found.get("contexts", {})
    current = found.get("current")
    if not isinstance(tables, dict) or not isinstance(current, str | None):
        raise ConfigError(f"{path} is damaged: it needs `current` and [contexts.NAME]; mend it or delete it")
    for name, table in tables.items():
        urls = table.get("url") if isinstance(table, dict) else None
        token = table.get("token") if isinstance(table, dict) else None
        if not isinstance(urls, str) or not isinstance(token, str | None):
            raise ConfigError(
                f'{path}: context {name} needs url = "http://…"; set it with `queen config set-context`'
            )
        by_name[name] = Context(addresses(urls, f"{path}: url of {name}"), token)
    return Contexts(current if current in by_name else None, by_name)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The folder, made if need be, with nobody else writing in it."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fchmod(descriptor, 0o700)  # it is ours alone; it may be older than this rule
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _store(path: Path, contexts: Contexts) -> None:
    """Whole or not at all: written beside, then moved over."""
    # A string of JSON is one of TOML, apart from DEL, which no name, address or token holds.
    lines = [f"current = {json.dumps(contexts.current)}"] if contexts.current else []
    for name, context in sorted(contexts.by_name.items()):
        lines += ["", f"[contexts.{json.dumps(name)}]", f"url = {json.dumps(','.join(context.urls))}"]
        if context.token:
            lines.append(f"token = {json.dumps(context.token)}")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines).lstrip("\n") + "\n")
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
