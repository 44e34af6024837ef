"""The broker's settings: by flag, by ``QUEEN_*`` variable, by TOML file, in that order.

``Settings`` is the one table: each field declares its default, what it may be, and its help. The
variable's name, the file's key, the flag and its help all derive from it (``SETTINGS``).

>>> settings = load({"port": 7000}, {"QUEEN_LOG_LEVEL": "debug", "QUEEN_DRAIN_TIMEOUT": "1m"}, None)
>>> settings.port, settings.log_level, settings.drain_timeout
(7000, 'debug', 60.0)
>>> settings.describe()["port"]
{'value': 7000, 'source': 'flag --port'}
>>> load({}, {"QUEEN_PROT": "7000"}, None)
Traceback (most recent call last):
queenstream.errors.ConfigError: there is no variable QUEEN_PROT; did you mean QUEEN_PORT?
"""

from __future__ import annotations

import dataclasses
import difflib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

from queenstream.core import durations
from queenstream.errors import ConfigError

T = TypeVar("T")

# Ours, but for somebody else: the file's name is read here, the others by the clients.
IGNORED_VARIABLES = frozenset({"QUEEN_CONFIG", "QUEEN_CONTEXT", "QUEEN_TOKEN", "QUEEN_URL"})
DEFAULT_FILE = "queen.toml"

_HIDDEN = "***"
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,255}|\[?[0-9A-Fa-f:.]{2,45}\]?")
_KIB, _MIB, _GIB = 1 << 10, 1 << 20, 1 << 30
_DAY = 86_400.0


@dataclass(frozen=True)
class Kind:
    """What a setting may be: ``parse`` raises ValueError or ConfigError for anything else."""

    allowed: str
    parse: Callable[[object], Any]
    show: Callable[[Any], object] = lambda value: value


def _text(allowed: str = "text that is not empty", fits: Callable[[str], bool] | None = None) -> Kind:
    def parse(value: object) -> str:
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError
        if fits is not None and not fits(value):
            raise ValueError
        return value

    return Kind(allowed, parse)


def _hosts() -> Kind:
    def parse(value: object) -> tuple[str, ...]:
        hosts = value.split(",") if isinstance(value, str) and value else value or ()
        if not isinstance(hosts, list | tuple):
            raise ValueError
        if not all(isinstance(host, str) and _HOST.fullmatch(host.strip()) for host in hosts):
            raise ValueError
        return tuple(host.strip().strip("[]").removesuffix(".").lower() for host in hosts)

    allowed = "host names or addresses without a port, with commas between them"
    return Kind(allowed, parse, ",".join)


def _choice(*choices: str) -> Kind:
    def parse(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in choices:
            raise ValueError
        return value.lower()

    return Kind(f"{', '.join(choices[:-1])} or {choices[-1]}", parse)


def _integer(low: int, high: int) -> Kind:
    def parse(value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError
        return _within(int(value), low, high)

    return Kind(f"a whole number from {low} to {high}", parse)


def _boolean() -> Kind:
    words = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

    def parse(value: object) -> bool:
        try:
            return words[str(value).lower()]
        except KeyError:
            raise ValueError from None

    return Kind("true or false (or yes, no, 1, 0)", parse)


def _duration(low: str, high: str) -> Kind:
    def parse(value: object) -> float:
        if not isinstance(value, str | int | float):
            raise ValueError
        return _within(durations.seconds(value), durations.seconds(low), durations.seconds(high))

    return Kind(f"a duration from {low} to {high}, such as 500ms, 30s, 5m", parse, durations.format)


def _size(low: int, high: int) -> Kind:
    def parse(value: object) -> int:
        return _within(parse_size(value), low, high)

    allowed = f"a size from {format_size(low)} to {format_size(high)}, such as 64MB or 16MiB"
    return Kind(allowed, parse, format_size)


def _path(allowed: str) -> Kind:
    def parse(value: object) -> Path:
        if not isinstance(value, str | Path) or not str(value).strip() or "\0" in str(value):
            raise ValueError
        try:
            # Absolute now: a worker may run in another folder.
            return Path(value).expanduser().absolute()
        except RuntimeError:
            raise ValueError from None

    return Kind(allowed, parse, str)


def _within(value: T, low: T, high: T) -> T:
    if not low <= value <= high:  # type: ignore[operator]
        raise ValueError
    return value


_SIZE_UNITS = {
    "": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": _KIB, "mib": _MIB, "gib": _GIB,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([kmg]i?b|b)?", re.IGNORECASE)


def parse_size(value: object) -> int:
    """Bytes: a whole number, or text with a unit; MB counts in thousands, MiB in 1024s.

    >>> parse_size("64MB"), parse_size("1.5 KiB"), parse_size(512)
    (64000000, 1536, 512)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size; write bytes, or a unit as in 64MB or 16MiB")
    size = Decimal(match[1]) * _SIZE_UNITS[(match[2] or "").lower()]
    if size != int(size):
        raise ValueError(f"{value!r} is not a whole number of bytes; round it")
    return int(size)


def format_size(size: int) -> str:
    """The size in its largest whole binary unit.

    >>> format_size(67108864), format_size(1000)
    ('64MiB', '1000B')
    """
    for unit, factor in (("GiB", _GIB), ("MiB", _MIB), ("KiB", _KIB)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return f"{size}B"


def http_address(host: str, port: int) -> str:
    """The URL of a broker; an IPv6 address stands in brackets.

    >>> http_address("::1", 6632)
    'http://[::1]:6632'
    """
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _is_postgres_url(text: str) -> bool:
    return text.startswith(("postgres://", "postgresql://"))


def _is_web_url(text: str) -> bool:
    # A user in the address would be a secret in a place where addresses are shown.
    try:
        parts = urlsplit(text)
        _ = parts.port  # urlsplit looks at the port only when asked
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc


def _hide(_value: str) -> str:
    return _HIDDEN


def _hide_password(url: str) -> str:
    scheme, found, rest = url.partition("://")
    if not found:
        return _HIDDEN
    # To the last @: a password may hold an @ or a / that somebody forgot to encode.
    user, at, host = rest.rpartition("@")
    if at and ":" in user:
        rest = f"{user.partition(':')[0]}:{_HIDDEN}@{host}"
    return f"{scheme}://" + re.sub(r"(?i)(password=)[^&]*", rf"\1{_HIDDEN}", rest)


def _hide_pem(text: str) -> str:
    # Public by right; but a private key pasted by mistake must not end in a log either.
    return "(PEM text)" if "-----" in text else text


@dataclass(frozen=True)
class Setting:
    """One row of the table, for help texts and for reading.

    >>> row = SETTINGS["log_level"]
    >>> row.flag, row.variable, row.key
    ('--log-level', 'QUEEN_LOG_LEVEL', 'log_level')
    """

    name: str
    kind: Kind
    help: str
    default: Any
    mask: Callable[[str], str] | None

    @property
    def key(self) -> str:
        return self.name

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "QUEEN_" + self.name.upper()

    def show(self, value: Any) -> object:
        """The value for people and logs; secrets are masked."""
        if value is None:
            return None
        return self.mask(value) if self.mask else self.kind.show(value)

    def parse(self, value: object, source: str) -> Any:
        try:
            return self.kind.parse(value)
        except (ValueError, ConfigError):
            # Not even masked: what does not parse may hold the secret anywhere.
            given = "does not fit" if self.mask else f"is {_shorten(value)}"
            raise ConfigError(f"{self.name} ({source}) {given}; use {self.kind.allowed}") from None


def _setting(default: T, kind: Kind, help: str, *, mask: Callable[[str], str] | None = None) -> T:
    # Typed as its value, as dataclasses.field is, so that Settings(port=1) checks.
    made: Any = field(default=default, metadata={"kind": kind, "help": help, "mask": mask})
    return made  # type: ignore[no-any-return]


def default_data_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Where the embedded PostgreSQL keeps its data when nobody says."""
    environ = os.environ if environ is None else environ
    if os.geteuid() == 0:
        return Path("/var/lib/queenstream/data")
    base = environ.get("XDG_DATA_HOME", "")
    # The XDG specification has relative paths ignored.
    folder = Path(base) if base.startswith("/") else Path("~/.local/share").expanduser()
    return folder / "queenstream"


@dataclass(frozen=True, kw_only=True, repr=False)
class Settings:
    """What the broker runs with; sizes in bytes, durations in seconds.

    >>> Settings(pg="postgres://queen:secret@db/queen").describe()["pg"]["value"]
    'postgres://queen:***@db/queen'
    """

    host: str = _setting("127.0.0.1", _text("a host name or address"), "Address to listen on.")
    port: int = _setting(6632, _integer(0, 65_535), "Port to listen on; 0 picks a free one.")
    allow_host: tuple[str, ...] = _setting(
        (), _hosts(), "Host to serve besides loopback when there is no key; may be repeated."
    )
    insecure: bool = _setting(
        False, _boolean(), "Let other machines use a broker that has no key: anyone may administer it."
    )
    pg: str | None = _setting(
        None, _text("an address such as postgres://user:password@host:5432/database",
                    _is_postgres_url),
        "PostgreSQL of your own; without it, the broker runs one.", mask=_hide_password,
    )  # fmt: skip
    pg_file: Path | None = field(
        default=None,
        metadata={
            "kind": _path("the path of a file"), "mask": None,
            "help": "File with the address of pg, password included: a process list shows no file.",
        },
    )  # fmt: skip
    data: Path = field(
        default_factory=default_data_folder,
        metadata={
            "kind": _path("the path of a folder"),
            "mask": None,
            "help": "Data folder of the embedded server.",
        },
    )
    ephemeral: bool = _setting(False, _boolean(), "Keep the data in a folder gone at the end.")
    workers: int = _setting(1, _integer(1, 256), "Processes that serve requests.")
    pool: int = _setting(8, _integer(1, 1_000), "Database connections of each worker.")
    log_level: str = _setting(
        "info", _choice("debug", "info", "warning", "error"), "The least serious thing to log."
    )
    log_format: Literal["text", "json"] = _setting(
        "text", _choice("text", "json"), "Log lines for people or for machines."
    )
    max_body_bytes: int = _setting(64 * _MIB, _size(_KIB, _GIB), "Largest request body; above it, 413.")
    max_batch: int = _setting(10_000, _integer(1, 50_000), "Most items in one request.")
    max_pop_bytes: int = _setting(
        16 * _MIB, _size(_KIB, _GIB), "Payload at which one pop's answer stops growing."
    )
    receive_timeout: float = _setting(30.0, _duration("10ms", "1h"), "How long a request may take to arrive.")
    drain_timeout: float = _setting(
        20.0, _duration("0s", "1h"), "How long a stop waits for requests under way."
    )
    max_wait: float = _setting(600.0, _duration("1ms", "1d"), "Longest a pop or poll may wait.")
    encryption_keys: str | None = _setting(
        None, _text("id:base64key[,id2:base64key2]"),
        "AES-256 keys as id:base64; the first encrypts, all decrypt.", mask=_hide,
    )  # fmt: skip
    auth_secret: str | None = _setting(
        None, _text(), "Secret of HS256 tokens, 32 bytes or more; turns authentication on.",
        mask=_hide,
    )  # fmt: skip
    auth_secret_file: Path | None = field(
        default=None,
        metadata={
            "kind": _path("the path of a file"), "mask": None,
            "help": "File with such secrets, one a line: the first signs, all are accepted; read on change.",
        },
    )  # fmt: skip
    auth_public_key: str | None = _setting(
        None, _text("public keys as PEM, or the path of a file with them"),
        "Public keys of RS256 or EdDSA tokens, PEM or path, read on change; turns authentication on.",
        mask=_hide_pem,
    )  # fmt: skip
    auth_jwks_url: str | None = _setting(
        None, _text("an http or https address without a user in it", _is_web_url),
        "Where the tokens' public keys are published; turns authentication on.",
        mask=_hide_password,
    )  # fmt: skip
    auth_issuer: str | None = _setting(None, _text(), "What a token's iss must be.")
    auth_audience: str | None = _setting(None, _text(), "What a token's aud must hold.")
    auth_role_claim: str = _setting("role", _text(), "Claim with the role, or a list of roles.")
    auth_leeway: float = _setting(30.0, _duration("0s", "5m"), "Clock difference to forgive in exp and nbf.")
    dead_letter_retention: float = _setting(
        30 * _DAY, _duration("1s", "3650d"), "How long dead letters are kept."
    )
    trace_retention: float = _setting(7 * _DAY, _duration("1s", "3650d"), "How long traces are kept.")
    audit_retention: float = _setting(
        90 * _DAY, _duration("1s", "3650d"), "How long administrative acts are kept."
    )
    max_queues: int = _setting(
        100_000, _integer(1, 1_000_000_000), "Most queues; another is refused with 409."
    )  # fmt: skip
    max_partitions: int = _setting(
        1_000_000, _integer(1, 1_000_000_000), "Most partitions of a queue; more are refused with 409."
    )
    max_groups: int = _setting(
        1_000, _integer(1, 1_000_000_000), "Most consumer groups of a queue; another is refused with 409."
    )
    max_new_names: int = _setting(
        300_000, _integer(0, 1_000_000_000),
        "Queues, partitions and groups that one caller may create in a minute, else 429; 0: any number.",
    )  # fmt: skip
    empty_partition_retention: float = _setting(
        30 * _DAY, _duration("0s", "3650d"), "How long a partition without messages is kept; 0: for good."
    )
    group_retention: float = _setting(
        0.0, _duration("0s", "3650d"),
        "After how long a group that takes none of its messages is forgotten; 0: never.",
    )  # fmt: skip
    staged_retention: float = _setting(
        7 * _DAY, _duration("1h", "3650d"),
        "How long rows that Spark staged are kept after the last of their sink.",
    )  # fmt: skip
    sink_retention: float = _setting(
        365 * _DAY, _duration("1d", "3650d"),
        "How long the stored batches of a Spark sink are known after the last one, which always is.",
    )  # fmt: skip
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def source(self, name: str) -> str:
        """Where the value of ``name`` came from, as an error or a log line puts it."""
        return self.sources.get(name, "code")

    def describe(self) -> dict[str, dict[str, object]]:
        """Every setting with its value, secrets masked, and its source."""
        return {
            name: {"value": row.show(getattr(self, name)), "source": self.source(name)}
            for name, row in SETTINGS.items()
        }

    def __repr__(self) -> str:
        shown = (f"{name}={row.show(getattr(self, name))!r}" for name, row in SETTINGS.items())
        return f"Settings({', '.join(shown)})"


SETTINGS: Mapping[str, Setting] = MappingProxyType(
    {
        f.name: Setting(
            f.name,
            f.metadata["kind"],
            f.metadata["help"],
            None if f.default is dataclasses.MISSING else f.default,
            f.metadata["mask"],
        )
        for f in dataclasses.fields(Settings)
        if f.metadata
    }
)


def load(flags: Mapping[str, object], environ: Mapping[str, str], file: Path | None) -> Settings:
    """The settings in effect. A flag that is None was not given; ``file`` is ``--config``.

    >>> load({"ephemeral": True}, {"QUEEN_MAX_BODY_BYTES": "8MiB"}, None).max_body_bytes
    8388608
    """
    values: dict[str, Any] = {"data": default_data_folder(environ)}
    sources = dict.fromkeys(SETTINGS, "default")
    # The weakest first: each stronger layer writes over it.
    given = _read_file(file, environ) | _read_environ(environ) | _read_flags(flags)
    for name, (value, source) in given.items():
        values[name] = SETTINGS[name].parse(value, source)
        sources[name] = source
    if values.get("pg_file") is not None:
        values["pg"] = _read_address(values.get("pg"), values["pg_file"], sources["pg_file"])
        sources["pg"] = f"file {values['pg_file']}"
    settings = Settings(**values, sources=sources)
    if settings.pg and settings.ephemeral:
        raise ConfigError(
            f"pg ({sources['pg']}) and ephemeral ({sources['ephemeral']}) contradict each other; "
            "leave one out: ephemeral is for the embedded server only"
        )
    return settings


def _read_address(pg: object, file: Path, source: str) -> str:
    """The address of PostgreSQL that a file holds."""
    if pg is not None:
        raise ConfigError(f"pg and pg_file ({source}) both name a PostgreSQL; give one of them")
    try:
        text = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"pg_file ({source}) cannot be read: {error.strerror}; check the path") from None
    except UnicodeDecodeError:
        raise ConfigError(
            f"pg_file ({source}) is not text; write the address of PostgreSQL into it"
        ) from None
    address: str = SETTINGS["pg"].parse(text, f"file {file}")
    return address


def _read_flags(flags: Mapping[str, object]) -> dict[str, tuple[object, str]]:
    by_flag = {row.flag: row for row in SETTINGS.values()}
    given: dict[str, tuple[object, str]] = {}
    for name, value in flags.items():
        flag = "--" + name.replace("_", "-")
        if flag not in by_flag:
            raise _unknown(f"flag {flag}", flag, by_flag)
        if value is not None:
            given[by_flag[flag].name] = (value, f"flag {flag}")
    return given


def _read_environ(environ: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    by_variable = {row.variable: row for row in SETTINGS.values()}
    given: dict[str, tuple[object, str]] = {}
    for variable, value in environ.items():
        if not variable.startswith("QUEEN_") or variable in IGNORED_VARIABLES:
            continue
        if variable not in by_variable:
            raise _unknown(f"variable {variable}", variable, by_variable)
        given[by_variable[variable].name] = (value, f"variable {variable}")
    return given


def _read_file(file: Path | None, environ: Mapping[str, str]) -> dict[str, tuple[object, str]]:
    path = file or (Path(environ["QUEEN_CONFIG"]) if environ.get("QUEEN_CONFIG") else None)
    if path is None:
        path = Path(DEFAULT_FILE)
        if not path.is_file():
            return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}; check --config") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}; write lines such as port = 6632") from None
    for key in table:
        if key not in SETTINGS:
            raise _unknown(f"key {key} in {path}", key, SETTINGS)
    return {key: (value, f"{path}, key {key}") for key, value in table.items()}


def _unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    by_folded = {_fold(one): one for one in known}
    folded = _fold(name)
    longer = sorted((one for one in by_folded if folded.startswith(f"{one}_")), key=len)
    near = longer[-1:] or difflib.get_close_matches(folded, by_folded, n=1)
    hint = (
        f"did you mean {by_folded[near[0]]}?"
        if near
        else f"there are {', '.join(sorted(by_folded.values()))}"
    )
    return ConfigError(f"there is no {what}; {hint}")


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")


def _shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def replace(settings: Settings, **changes: Any) -> Settings:
    """The settings with some of them changed in code.

    >>> replace(Settings(), port=7000).port
    7000
    """
    return dataclasses.replace(settings, **changes)
