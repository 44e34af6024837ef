"""Contexts: which broker a command talks to, and a file that keeps tokens to its owner."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from queenstream.cli.support.contexts import (
    DEFAULT_URL,
    Context,
    Contexts,
    Flags,
    change,
    chosen,
    default_path,
    load,
)
from queenstream.errors import ConfigError

PROD = Context(("https://a.example.com:443", "https://b.example.com:443"), "prod-token")
DEV = Context(("http://dev:6632",))
BOTH = Contexts("prod", {"prod": PROD, "dev": DEV})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queenstream" / "contexts.toml"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("flags", "environ", "contexts", "expected"),
    [
        (Flags(), {}, Contexts(), Context((DEFAULT_URL,))),
        (Flags(), {}, BOTH, PROD),
        (Flags(), {"QUEEN_CONTEXT": "dev"}, BOTH, DEV),
        (Flags(), {"QUEEN_URL": "http://env:1", "QUEEN_CONTEXT": "dev"}, BOTH, Context(("http://env:1",))),
        (Flags(context="prod"), {"QUEEN_URL": "http://env:1", "QUEEN_TOKEN": "t"}, BOTH, PROD),
        (Flags(url="flag:1"), {"QUEEN_URL": "http://env:1"}, BOTH, Context(("http://flag:1",))),
        (Flags(url="flag:1"), {"QUEEN_TOKEN": "t"}, BOTH, Context(("http://flag:1",), "t")),
        (Flags(token="f"), {"QUEEN_TOKEN": "t"}, BOTH, Context(PROD.urls, "f")),
        (Flags(), {"QUEEN_TOKEN": "t"}, BOTH, Context(PROD.urls, "t")),
        (Flags(context="dev"), {"QUEEN_TOKEN": "t"}, BOTH, Context(DEV.urls, "t")),
        (Flags(url="one:1,two:2"), {}, Contexts(), Context(("http://one:1", "http://two:2"))),
        (Flags(), {"QUEEN_URL": "", "QUEEN_TOKEN": "", "QUEEN_CONTEXT": ""}, BOTH, PROD),
    ],
)
def test_flags_then_variables_then_the_file(
    flags: Flags, environ: dict[str, str], contexts: Contexts, expected: Context
) -> None:
    assert chosen(flags, environ, contexts) == expected


def test_a_context_s_token_goes_to_its_own_addresses_only() -> None:
    assert chosen(Flags(url="elsewhere:1"), {}, BOTH).token is None
    assert chosen(Flags(), {"QUEEN_URL": "http://elsewhere:1"}, BOTH).token is None


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        (Flags(url="a:1", context="dev"), {}, "give one of them"),
        (Flags(context="none"), {}, "there are: dev, prod"),
        (Flags(), {"QUEEN_CONTEXT": "none"}, "set-context none"),
        (Flags(url="ftp://a"), {}, "is not an address"),
        (Flags(), {"QUEEN_URL": " , "}, "QUEEN_URL names no address"),
        (Flags(token="two words"), {}, "holds a space"),
    ],
)
def test_what_cannot_be_used(flags: Flags, environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        chosen(flags, environ, BOTH)
    assert "two words" not in str(caught.value)


def test_a_token_is_not_in_the_repr() -> None:
    assert "prod-token" not in repr(BOTH)
    assert "secret" not in repr(Flags(token="secret"))


def test_what_is_stored_is_loaded(path: Path) -> None:
    assert load(path) == Contexts()
    odd = Context(("http://[::1]:80/pre%20fix",), 'quo"te\\back')
    made = change(path, lambda found: found.with_context("odd.one-1", odd))
    assert made == load(path) == Contexts("odd.one-1", {"odd.one-1": odd})
    change(path, lambda found: found.with_context("prod", PROD))
    assert load(path) == Contexts("odd.one-1", {"odd.one-1": odd, "prod": PROD})
    change(path, lambda found: found.using("prod").without("odd.one-1"))
    assert load(path) == Contexts("prod", {"prod": PROD})
    change(path, lambda found: found.without("prod"))
    assert load(path) == Contexts()


def test_only_the_owner_may_read_it(path: Path) -> None:
    before = os.umask(0)
    try:
        change(path, lambda found: found.with_context("dev", DEV))
    finally:
        os.umask(before)
    assert (mode(path), mode(path.parent)) == (0o600, 0o700)
    assert [entry.name for entry in path.parent.iterdir()] == ["contexts.toml"]


def test_a_folder_that_is_older_is_closed(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o755)
    change(path, lambda found: found.with_context("dev", DEV))
    assert mode(path.parent) == 0o700


@pytest.mark.parametrize("bits", [0o644, 0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused(path: Path, bits: int) -> None:
    change(path, lambda found: found.with_context("prod", PROD))
    path.chmod(bits)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}") as caught:
        load(path)
    assert "prod-token" not in str(caught.value)
    with pytest.raises(ConfigError, match=f"chmod 600 {path}"):
        change(path, lambda found: found.without("prod"))
    path.chmod(0o600)
    assert load(path).current == "prod"


def test_a_folder_in_which_others_may_write_is_refused(path: Path) -> None:
    change(path, lambda found: found.with_context("prod", PROD))
    path.parent.chmod(0o777)
    with pytest.raises(ConfigError, match=f"chmod 700 {path.parent}"):
        load(path)


def test_another_user_s_file_is_refused(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    change(path, lambda found: found.with_context("prod", PROD))
    os.chown(path, 12345, 12345)
    with pytest.raises(ConfigError, match="belongs to another user"):
        load(path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("current = ", "is damaged"),
        ("contexts = 3", "is damaged"),
        ("current = 3", "is damaged"),
        ("[contexts.x]\ntoken = 'secret'", "context x needs url"),
        ("[contexts.x]\nurl = 'ftp://x'", "is not an address"),
        ("[contexts]\nx = 3", "context x needs url"),
        ("\xff", "is damaged"),
    ],
)
def test_a_damaged_file_says_so(path: Path, text: str, message: str) -> None:
    path.parent.mkdir(mode=0o700)
    path.write_bytes(text.encode("latin-1"))
    path.chmod(0o600)
    with pytest.raises(ConfigError, match=message) as caught:
        load(path)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "a b", "../x", "-x", "x" * 65, "ä"])
def test_names(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot name a context"):
        Contexts().with_context(name, DEV)


def test_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    expected = Path("/home/ann/.config/queenstream/contexts.toml")
    assert default_path({}) == default_path({"XDG_CONFIG_HOME": "relative"}) == expected
    assert default_path({"XDG_CONFIG_HOME": "/x"}) == Path("/x/queenstream/contexts.toml")
