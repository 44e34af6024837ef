"""Settings: precedence, types, errors that name their source, and secrets that never show."""

from __future__ import annotations

import dataclasses
import doctest
import os
import pickle
from pathlib import Path

import pytest

from queenstream import config
from queenstream.config import SETTINGS, Settings, load
from queenstream.errors import ConfigError


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No queen.toml of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def from_env(**variables: str) -> Settings:
    return load({}, variables, None)


def from_toml(text: str) -> Settings:
    Path("queen.toml").write_text(text, encoding="utf-8")
    return load({}, {}, None)


def test_defaults() -> None:
    settings = load({}, {}, None)
    assert settings == Settings(data=settings.data)
    assert (settings.host, settings.port, settings.pg) == ("127.0.0.1", 6632, None)
    assert settings.max_body_bytes == 64 * 1024 * 1024
    assert settings.max_wait == 600
    assert settings.dead_letter_retention == 30 * 86400
    assert {row["source"] for row in settings.describe().values()} == {"default"}


def test_a_flag_beats_a_variable_beats_the_file() -> None:
    Path("queen.toml").write_text("port = 1\nworkers = 1\npool = 3\n", encoding="utf-8")
    settings = load({"port": 5, "host": None}, {"QUEEN_PORT": "4", "QUEEN_WORKERS": "2"}, None)
    assert (settings.port, settings.workers, settings.pool) == (5, 2, 3)
    described = settings.describe()
    assert described["port"] == {"value": 5, "source": "flag --port"}
    assert described["workers"]["source"] == "variable QUEEN_WORKERS"
    assert described["pool"]["source"] == "queen.toml, key pool"
    assert described["host"]["source"] == "default"


def test_the_file_is_the_named_one_or_that_of_queen_config(tmp_path: Path) -> None:
    named, by_variable = tmp_path / "a.toml", tmp_path / "b.toml"
    named.write_text("port = 1")
    by_variable.write_text("port = 2")
    Path("queen.toml").write_text("port = 3")
    environ = {"QUEEN_CONFIG": str(by_variable)}
    assert load({}, environ, named).port == 1
    assert load({}, environ, None).port == 2
    assert load({}, {}, None).port == 3


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone\.toml: No such file"):
        load({}, {}, tmp_path / "gone.toml")
    with pytest.raises(ConfigError, match=r"cannot read gone\.toml"):
        load({}, {"QUEEN_CONFIG": "gone.toml"}, None)


def test_a_file_that_is_not_toml() -> None:
    with pytest.raises(ConfigError, match=r"queen\.toml is not TOML: .*line 1"):
        from_toml("port: 6632")
    Path("queen.toml").write_bytes(b"host = '\xff'")
    with pytest.raises(ConfigError, match=r"queen\.toml is not UTF-8"):
        load({}, {}, None)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("port", "0", 0),
        ("workers", " 4 ", 4),
        ("max_wait", "5m", 300.0),
        ("max_wait", "90", 90.0),
        ("receive_timeout", "500ms", 0.5),
        ("trace_retention", "1w", 604800.0),
        ("max_body_bytes", "64MB", 64_000_000),
        ("max_body_bytes", "16MiB", 16 * 1024 * 1024),
        ("max_pop_bytes", "2048", 2048),
        ("max_pop_bytes", "1.5 kib", 1536),
        ("ephemeral", "yes", True),
        ("ephemeral", "TRUE", True),
        ("ephemeral", "1", True),
        ("ephemeral", "no", False),
        ("ephemeral", "0", False),
        ("log_level", "DEBUG", "debug"),
        ("log_format", "json", "json"),
        ("auth_leeway", "5m", 300.0),
        ("auth_jwks_url", "https://id.example.com/jwks", "https://id.example.com/jwks"),
        ("pg", "postgresql:///queen", "postgresql:///queen"),
    ],
)
def test_text_becomes_the_type(name: str, text: str, expected: object) -> None:
    value = getattr(from_env(**{SETTINGS[name].variable: text}), name)
    assert value == expected
    assert type(value) is type(expected)


def test_toml_takes_its_own_types_and_text() -> None:
    settings = from_toml(
        'port = 7000\nephemeral = true\nmax_wait = 1.5\nmax_batch = "5"\nmax_body_bytes = "1MiB"\n'
    )
    assert (settings.port, settings.ephemeral, settings.max_wait) == (7000, True, 1.5)
    assert (settings.max_batch, settings.max_body_bytes) == (5, 1024 * 1024)


@pytest.mark.parametrize(
    ("name", "text", "allowed"),
    [
        ("port", "abc", "a whole number from 0 to 65535"),
        ("port", "65536", "a whole number from 0 to 65535"),
        ("port", "-1", "a whole number"),
        ("port", "1.5", "a whole number"),
        ("workers", "0", "a whole number from 1"),
        ("pool", "", "a whole number from 1"),
        ("host", " ", "a host name or address"),
        ("max_wait", "5 parsecs", "a duration from 1ms to 1d"),
        ("max_wait", "2d", "a duration from 1ms to 1d"),
        ("auth_leeway", "301", "a duration from 0s to 5m"),
        ("max_body_bytes", "10GiB", "a size from 1KiB to 1GiB"),
        ("max_body_bytes", "64 bits", "a size from"),
        ("max_pop_bytes", "1024.5", "a size from"),
        ("ephemeral", "maybe", "true or false"),
        ("log_level", "loud", "debug, info, warning or error"),
        ("log_format", "xml", "text or json"),
        ("data", "", "the path of a folder"),
    ],
)
def test_a_bad_value_names_setting_source_value_and_what_is_allowed(
    name: str, text: str, allowed: str
) -> None:
    variable = SETTINGS[name].variable
    with pytest.raises(ConfigError) as caught:
        from_env(**{variable: text})
    assert f"{name} (variable {variable}) is {text!r}; use {allowed}" in str(caught.value)


def test_a_bad_value_names_a_flag_or_a_file_too() -> None:
    with pytest.raises(ConfigError, match=r"log_level \(flag --log-level\) is 'loud'; use debug"):
        load({"log_level": "loud"}, {}, None)
    with pytest.raises(ConfigError, match=r"port \(queen\.toml, key port\) is True; use a whole"):
        from_toml("port = true")
    with pytest.raises(ConfigError, match=r"host \(queen\.toml, key host\) is \{'a': 1\}"):
        from_toml("[host]\na = 1")
    with pytest.raises(ConfigError, match=r"max_wait \(queen\.toml, key max_wait\) is True"):
        from_toml("max_wait = true")


def test_a_value_that_is_written_over_is_not_judged() -> None:
    assert load({"port": 1}, {"QUEEN_PORT": "bad"}, None).port == 1


@pytest.mark.parametrize(
    ("given", "near"),
    [
        ("QUEEN_PROT", "QUEEN_PORT"),
        ("QUEEN_port", "QUEEN_PORT"),
        ("QUEEN_LOGLEVEL", "QUEEN_LOG_LEVEL"),
        ("QUEEN_JWKS_URL", "QUEEN_AUTH_JWKS_URL"),
        ("QUEEN_PG_URL", "QUEEN_PG"),
    ],
)
def test_an_unknown_variable_names_the_nearest(given: str, near: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_env(**{given: "sEcReT"})
    assert str(caught.value) == f"there is no variable {given}; did you mean {near}?"


def test_an_unknown_key_names_the_nearest_and_the_file() -> None:
    expected = r"there is no key log-levle in queen\.toml; did you mean log_level\?"
    with pytest.raises(ConfigError, match=expected):
        from_toml('log-levle = "info"')
    with pytest.raises(ConfigError, match=r"there is no key zzzzz in queen\.toml; there are allow_host"):
        from_toml("zzzzz = 1")


def test_an_unknown_flag_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no flag --log-levle; did you mean --log-level\?"):
        load({"log_levle": "info"}, {}, None)


def test_variables_of_others_are_left_alone() -> None:
    environ = {"QUEEN_TOKEN": "t", "QUEEN_URL": "http://x", "QUEENSLAND": "1", "PORT": "9"}
    assert load({}, environ, None).port == 6632


def test_pg_and_ephemeral_contradict() -> None:
    expected = r"pg \(variable QUEEN_PG\) and ephemeral \(flag --ephemeral\) contradict"
    with pytest.raises(ConfigError, match=expected):
        load({"ephemeral": True}, {"QUEEN_PG": "postgres://db/queen"}, None)


SECRET = "tUr7-never-shown"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encryption_keys", SECRET),
        ("auth_secret", SECRET),
        ("auth_public_key", f"-----BEGIN PRIVATE KEY-----\n{SECRET}"),
        ("pg", f"postgres://user:{SECRET}@host/db"),
        ("pg", f"postgres://user:a@/?{SECRET}@host/db?sslmode=require"),
        ("pg", f"postgresql://host/db?user=u&password={SECRET}&sslmode=require"),
    ],
)
def test_secrets_are_in_no_repr_and_no_description(name: str, value: str) -> None:
    settings = from_env(**{SETTINGS[name].variable: value})
    assert getattr(settings, name) == value
    for shown in (repr(settings), str(settings), f"{settings}", str(settings.describe())):
        assert SECRET not in shown
    described = settings.describe()[name]
    assert described["value"]
    assert described["source"] == f"variable {SETTINGS[name].variable}"


def test_a_pg_address_stays_recognisable() -> None:
    shown = Settings(pg=f"postgres://queen:{SECRET}@db:5432/q?password={SECRET}&a=b").describe()
    assert shown["pg"]["value"] == "postgres://queen:***@db:5432/q?password=***&a=b"
    assert Settings(pg="postgres://queen@db/q").describe()["pg"]["value"] == "postgres://queen@db/q"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pg", f"host=db password={SECRET}"),
        ("pg", f"mysql://u:{SECRET}@db/q"),
        ("auth_jwks_url", f"https://u:{SECRET}@id.example.com/jwks"),
        ("auth_jwks_url", f"file:///etc/{SECRET}"),
        ("auth_jwks_url", f"https://host:{SECRET}/jwks"),
        ("auth_secret", f"{SECRET}\0"),
        ("encryption_keys", ""),
    ],
)
def test_a_bad_secret_is_named_and_not_quoted(name: str, value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_env(**{SETTINGS[name].variable: value})
    message = str(caught.value)
    assert message.startswith(f"{name} (variable {SETTINGS[name].variable}) does not fit; use ")
    assert SECRET not in message
    assert caught.value.__suppress_context__


def test_the_data_folder_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setenv("HOME", "/home/ada")
    assert load({}, {"XDG_DATA_HOME": "/xdg"}, None).data == Path("/xdg/queenstream")
    home = Path("/home/ada/.local/share/queenstream")
    assert load({}, {}, None).data == home
    assert load({}, {"XDG_DATA_HOME": "relative"}, None).data == home
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert load({}, {"XDG_DATA_HOME": "/xdg"}, None).data == Path("/var/lib/queenstream/data")


def test_the_data_folder_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ada")
    assert load({"data": Path("here")}, {}, None).data == tmp_path / "here"
    assert from_env(QUEEN_DATA="~/queen").data == Path("/home/ada/queen")


def test_every_field_is_a_row_with_help_and_a_default_that_is_allowed() -> None:
    fields = {f.name for f in dataclasses.fields(Settings)} - {"sources"}
    assert set(SETTINGS) == fields
    for name, row in SETTINGS.items():
        assert row.help.endswith(".")
        default = getattr(Settings(), name)
        if default is not None:
            assert row.parse(default, "default") == default
        assert row.flag == "--" + name.replace("_", "-")
        assert row.variable == "QUEEN_" + name.upper()


def test_what_is_shown_is_read_back() -> None:
    for name, row in SETTINGS.items():
        default = getattr(Settings(), name)
        if default is not None:
            assert row.parse(str(row.show(default)), "default") == default


def test_settings_are_frozen_and_travel_to_workers() -> None:
    settings = from_env(QUEEN_PORT="7000")
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.port = 1  # type: ignore[misc]
    copy = pickle.loads(pickle.dumps(settings))
    assert copy == settings
    assert copy.describe() == settings.describe()


def test_settings_made_in_code_say_so() -> None:
    assert Settings(port=1).describe()["port"] == {"value": 1, "source": "code"}


def test_examples() -> None:
    assert doctest.testmod(config).failed == 0
