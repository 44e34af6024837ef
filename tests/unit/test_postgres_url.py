"""PostgreSQL URLs with one host or several, wherever they are taken apart."""

from __future__ import annotations

import pytest

from queenstream import config
from queenstream.cli.doctor.probes import hosts_of as doctor_hosts_of
from queenstream.connectors.reporter import without_secrets
from queenstream.errors import PostgresError
from queenstream.postgres import hosts_of, names_session, place_of

SEVERAL = "postgresql://ann:s3cret@a:1,b:2/db?target_session_attrs=read-write"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://h/db", [("h", 5432)]),
        ("postgres://ann:pw@h:7/db", [("h", 7)]),
        (SEVERAL, [("a", 1), ("b", 2)]),
        ("postgresql://a,b:2/db", [("a", 5432), ("b", 2)]),
        ("postgresql:///db?host=a,b&port=7", [("a", 7), ("b", 7)]),
        ("postgresql://postgres@/db?host=%2Frun%2Fq&port=5432", [("/run/q", 5432)]),
        ("postgresql://[::1]:7/db", [("::1", 7)]),
    ],
)
def test_hosts(url: str, hosts: list[tuple[str, int]]) -> None:
    assert hosts_of(url) == hosts


def test_hosts_and_ports_that_do_not_go_together() -> None:
    with pytest.raises(PostgresError, match="3 hosts and 2 ports"):
        hosts_of("postgresql:///db?host=a,b,c&port=1,2")
    with pytest.raises(PostgresError, match="not a number"):
        hosts_of("postgresql://a:x/db")


def test_several_hosts_are_shown_without_secrets() -> None:
    assert place_of(SEVERAL) == "a:1,b:2/db"
    assert place_of("postgresql://u:s3cret@a:x/db") == "that URL"
    assert without_secrets(SEVERAL) == "postgresql://a:1,b:2/db"
    settings = config.load({"pg": SEVERAL}, {}, None)
    assert settings.pg == SEVERAL
    assert "s3cret" not in repr(settings)
    assert doctor_hosts_of(SEVERAL) == ["a", "b"]


def test_the_kind_of_server_is_the_users_to_say() -> None:
    assert names_session(SEVERAL)
    assert not names_session("postgresql://a/db")
