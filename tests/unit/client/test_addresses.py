"""Where brokers listen, as users write it; and tokens."""

from __future__ import annotations

import pytest

from queenstream.client._base.addresses import Address, check_token, parse, parse_all
from queenstream.errors import ConfigError


@pytest.mark.parametrize(
    ("written", "url"),
    [
        ("http://127.0.0.1:6632", "http://127.0.0.1:6632"),
        ("localhost:6632", "http://localhost:6632"),
        ("queen.example.com", "http://queen.example.com:80"),
        ("https://queen.example.com", "https://queen.example.com:443"),
        ("https://queen.example.com:8443/broker/", "https://queen.example.com:8443/broker"),
        ("HTTP://Queen.Example.com/", "http://queen.example.com:80"),
        ("http://[::1]:6632", "http://[::1]:6632"),
    ],
)
def test_what_users_write(written: str, url: str) -> None:
    assert parse(written).url == url


def test_the_parts() -> None:
    assert parse("https://a:1/x/y") == Address("a", 1, True, "/x/y")
    assert parse("http://[::1]:6632").authority == "[::1]:6632"


@pytest.mark.parametrize(
    "written",
    ["ftp://a", "http://", "http://a:port", "http://a:99999", "http://a?x=1", "http://a#x", "http://a/b c"],
)
def test_what_is_no_address(written: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(written)
    assert written in str(caught.value)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(ConfigError, match="give a token instead") as caught:
        parse("http://ann:s3cret@a:1")
    assert "s3cret" not in str(caught.value)


def test_several_each_once() -> None:
    assert [address.port for address in parse_all("http://a:1, http://a:2,http://a:1")] == [1, 2]
    assert [address.port for address in parse_all(["a:1", "a:2", "http://a:1/"])] == [1, 2]


@pytest.mark.parametrize("nothing", ["", " , ", []])
def test_none_is_an_error(nothing: str | list[str]) -> None:
    with pytest.raises(ConfigError, match="no address"):
        parse_all(nothing)


def test_tokens() -> None:
    assert check_token("eyJ.abc-_=") == "eyJ.abc-_="
    assert check_token(None) is None
    assert check_token("") is None
    for bad in ("a b", "a\r\nX-Injected: 1", "tök"):
        with pytest.raises(ConfigError, match="copy it again") as caught:
            check_token(bad)
        assert bad not in str(caught.value)
