"""The checks of ``queen doctor``: from facts to findings, without a server."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from queenstream.cli import doctor
from queenstream.cli.doctor import probes
from queenstream.cli.doctor.checks import CHECKS, Finding, Status, examine
from queenstream.cli.doctor.facts import (
    GB,
    MB,
    Broker,
    Clock,
    Facts,
    Health,
    Holder,
    Missing,
    Schema,
    Server,
    Table,
    Value,
)
from queenstream.cli.doctor.settings import SETTINGS, set_it
from queenstream.config import Settings
from queenstream.errors import ConfigError, DatabaseUnusable

SERVER = Server(180_006, "18.6", "queen", "me")
GOOD = {
    "synchronous_commit": Value("on", "on", context="user"),
    "fsync": Value("on", "on"),
    "full_page_writes": Value("on", "on"),
    "max_wal_size": Value("4GB", "4096", "MB"),
    "checkpoint_timeout": Value("15min", "900", "s"),
    "wal_compression": Value("lz4", "lz4", choices=("pglz", "lz4", "on", "off")),
    "wal_buffers": Value("16MB", "2048", "8kB", context="postmaster"),
    "autovacuum": Value("on", "on"),
    "autovacuum_naptime": Value("10s", "10", "s"),
    "autovacuum_vacuum_cost_limit": Value("2000", "2000"),
    "autovacuum_vacuum_cost_delay": Value("2ms", "2", "ms"),
    "vacuum_cost_limit": Value("200", "200"),
    "max_locks_per_transaction": Value("256", "256", context="postmaster"),
    "max_connections": Value("100", "100", context="postmaster"),
    "superuser_reserved_connections": Value("3", "3", context="postmaster"),
    "jit": Value("off", "off", context="user"),
    "idle_in_transaction_session_timeout": Value("5min", "300000", "ms", context="user"),
    "shared_buffers": Value("2GB", "262144", "8kB", context="postmaster"),
}
BROKER = Broker("http://a:6632", "1.0", pool=8, open_connections=10)
HEALTHY = Facts(
    python=(3, 11, 7),
    queenstream="1.0",
    java="17.0.15",
    place="db:5432/queen",
    server=SERVER,
    schema=Schema(1, 1),
    settings=GOOD,
    checkpoints=(50, 2),
    memory_bytes=8 * GB,
    cache=(1_000_000, 10),
    connections=(20, 12),
    needed_connections=12,
    database_clock=Clock(0.01, 0.001),
    broker_clock=Clock(0.5, 1),
    holders=(),
    tables=(Table("messages", 10 * MB, 1000, 10, 60.0), Table("cursors", MB, 10, 500, None)),
    wraparound=("queen", 1_000_000),
    commit_seconds=0.0005,
    disk=("/data", 50 * GB, 100 * GB),
    open_files=65_536,
    broker_url="http://a:6632",
    health=Health(True, "1.0", "connected"),
    brokers=(BROKER,),
    maintenance="",
    insecure=False,
)


def one(check: str, **changes: object) -> Finding:
    """The only finding of a check when some facts of a healthy installation are others."""
    [finding] = examine(replace(HEALTHY, **changes), only=check)  # type: ignore[arg-type]
    return finding


def with_setting(name: str, value: Value) -> Finding:
    return one(name, settings=GOOD | {name: value})


def test_a_healthy_installation_has_nothing_but_ok() -> None:
    findings = examine(HEALTHY)
    assert {finding.status for finding in findings} == {Status.OK}
    assert not any(finding.remedy for finding in findings)
    assert len(findings) == len(CHECKS) + 1  # two tables


def test_the_settings_are_those_of_the_documentation() -> None:
    text = Path(__file__).parents[3].joinpath("docs", "performance.md").read_text("utf-8")
    section = text.partition("## PostgreSQL settings")[2].partition("\n## ")[0]
    documented = {}
    for names, value in re.findall(r"^\| (`.+?) \| (.+?) \|", section, re.MULTILINE):
        for name in re.findall(r"`(\w+)`", names):
            documented[name] = value.removesuffix(" or more")
    assert documented.pop("shared_buffers") == "a quarter of the memory"
    assert documented == {row.name: row.advice for row in SETTINGS}
    assert "alter system set shared_buffers = '2048MB'" in one(
        "shared_buffers", settings=GOOD | {"shared_buffers": Value("6GB", "6144", "MB")}
    ).remedy  # fmt: skip


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("synchronous_commit", Value("off", "off"), Status.PROBLEM),
        ("synchronous_commit", Value("remote_apply", "remote_apply"), Status.OK),
        ("fsync", Value("off", "off"), Status.PROBLEM),
        ("full_page_writes", Value("off", "off"), Status.PROBLEM),
        ("autovacuum", Value("off", "off"), Status.PROBLEM),
        ("max_wal_size", Value("1GB", "1024", "MB"), Status.WARNING),
        ("max_wal_size", Value("16GB", "16384", "MB"), Status.OK),
        ("checkpoint_timeout", Value("5min", "300", "s"), Status.WARNING),
        ("wal_compression", Value("off", "off"), Status.WARNING),
        ("wal_compression", Value("pglz", "pglz"), Status.OK),
        ("wal_buffers", Value("4MB", "512", "8kB"), Status.WARNING),
        ("autovacuum_naptime", Value("1min", "60", "s"), Status.WARNING),
        ("autovacuum_vacuum_cost_limit", Value("-1", "-1"), Status.WARNING),
        ("max_locks_per_transaction", Value("64", "64"), Status.WARNING),
        ("jit", Value("on", "on"), Status.NOTE),
        ("idle_in_transaction_session_timeout", Value("0", "0", "ms"), Status.WARNING),
        ("idle_in_transaction_session_timeout", Value("1h", "3600000", "ms"), Status.WARNING),
        ("idle_in_transaction_session_timeout", Value("1min", "60000", "ms"), Status.OK),
    ],
)
def test_a_setting(name: str, value: Value, status: Status) -> None:
    finding = with_setting(name, value)
    assert finding.status is status
    assert finding.why
    assert finding.remedy.startswith(f"alter system set {name} = '") is (status is not Status.OK)


def test_a_cost_limit_counts_only_with_a_delay() -> None:
    settings = GOOD | {
        "autovacuum_vacuum_cost_limit": Value("-1", "-1"),
        "autovacuum_vacuum_cost_delay": Value("0", "0", "ms"),
    }
    assert one("autovacuum_vacuum_cost_limit", settings=settings).status is Status.OK
    settings = GOOD | {"autovacuum_vacuum_cost_limit": Value("-1", "-1")}
    assert one("autovacuum_vacuum_cost_limit", settings=settings).found == "200"


def test_a_compression_that_this_server_has_is_advised() -> None:
    value = Value("off", "off", choices=("pglz", "on", "off"))
    assert "wal_compression = 'on'" in with_setting("wal_compression", value).remedy


@pytest.mark.parametrize(
    ("source", "context", "remedy"),
    [
        ("configuration file", "sighup", "alter system set x = '1'; select pg_reload_conf();"),
        ("default", "postmaster", "alter system set x = '1'; then restart PostgreSQL"),
        ("database", "user", 'alter database "que""en" reset x;'),
        ("user", "user", 'alter role "me" reset x;'),
        ("database user", "user", 'alter role "me" in database "que""en" reset x;'),
        ("client", "user", "take x out of the URL's options and of PGOPTIONS"),
        ("command line", "sighup", "take x off the server's command line, then restart PostgreSQL"),
    ],
)
def test_the_remedy_goes_where_the_value_comes_from(source: str, context: str, remedy: str) -> None:
    value = Value("2", "2", source=source, context=context)
    assert set_it("x", "1", value, replace(SERVER, database='que"en')) == remedy
    waiting = set_it("x", "1", replace(value, pending_restart=True), SERVER)
    assert waiting.startswith("restart PostgreSQL")


@pytest.mark.parametrize(
    ("check", "changes", "status"),
    [
        ("python", {"python": (3, 10, 0)}, Status.PROBLEM),
        ("java", {"java": None}, Status.NOTE),
        ("java", {"java": "1.8.0_392"}, Status.NOTE),
        ("java", {"java": "21"}, Status.OK),
        ("postgresql", {"server": Server(140_010, "14.10", "d", "u")}, Status.PROBLEM),
        ("postgresql", {"server": Server(160_000, "16.0", "d", "u", in_recovery=True)}, Status.PROBLEM),
        ("schema", {"schema": Schema(None, 2)}, Status.NOTE),
        ("schema", {"schema": Schema(1, 2)}, Status.WARNING),
        ("schema", {"schema": Schema(3, 2, compatible=False)}, Status.PROBLEM),
        ("schema", {"schema": Schema(3, 2)}, Status.OK),
        ("schema", {"schema": Schema(2, 2, functions_current=False)}, Status.WARNING),
        ("checkpoints", {"checkpoints": (5, 6)}, Status.WARNING),
        ("checkpoints", {"checkpoints": (0, 9)}, Status.OK),
        ("shared_buffers", {"memory_bytes": 64 * GB}, Status.NOTE),
        ("shared_buffers", {"memory_bytes": 64 * GB, "cache": (800_000, 200_000)}, Status.WARNING),
        ("shared_buffers", {"memory_bytes": 3 * GB}, Status.WARNING),
        ("max_connections", {"connections": (90, 12)}, Status.WARNING),
        ("max_connections", {"brokers": (BROKER,) * 9}, Status.WARNING),
        ("max_connections", {"brokers": Missing("no"), "needed_connections": 120}, Status.WARNING),
        ("open files", {"open_files": 256}, Status.WARNING),
        ("open files", {"open_files": 1024}, Status.NOTE),
        ("open files", {"brokers": (replace(BROKER, open_connections=60_000),)}, Status.WARNING),
        ("database's clock", {"database_clock": Clock(-2, 0.1)}, Status.WARNING),
        ("database's clock", {"database_clock": Clock(31, 0.1)}, Status.PROBLEM),
        ("database's clock", {"database_clock": Clock(3, 2.5)}, Status.OK),
        ("broker's clock", {"broker_clock": Clock(-40, 1)}, Status.PROBLEM),
        ("transaction ids", {"wraparound": ("a", 600_000_000)}, Status.WARNING),
        ("transaction ids", {"wraparound": ("a", 1_900_000_000)}, Status.PROBLEM),
        ("commit time", {"commit_seconds": 0.02}, Status.WARNING),
        ("disk", {"disk": ("/d", GB // 2, 100 * GB)}, Status.PROBLEM),
        ("disk", {"disk": ("/d", 9 * GB, 100 * GB)}, Status.WARNING),
        ("disk", {"disk": ("/d", 4 * GB, 8 * GB)}, Status.WARNING),
        ("broker", {"health": None}, Status.NOTE),
        ("broker", {"health": Health(False, "1.0", "disconnected")}, Status.PROBLEM),
        ("brokers' versions", {"queenstream": "1.1"}, Status.WARNING),
        ("brokers' versions", {"brokers": (BROKER, replace(BROKER, version="0.9"))}, Status.WARNING),
        ("access", {"insecure": True}, Status.WARNING),
        ("maintenance", {"maintenance": "all"}, Status.WARNING),
        ("maintenance", {"maintenance": "pop"}, Status.WARNING),
        ("background failures", {"brokers": (replace(BROKER, failures={"expire": 3}),)}, Status.WARNING),
    ],
)
def test_a_check(check: str, changes: dict[str, object], status: Status) -> None:
    finding = one(check, **changes)
    assert finding.status is status
    assert bool(finding.remedy) is (status is not Status.OK)


def holder(**changes: object) -> Holder:
    base = Holder("backend", 4711, None, "psql", "ann", "idle in transaction", 5.0, 3)
    return replace(base, **changes)  # type: ignore[arg-type]


def test_a_young_transaction_is_named_and_left_alone() -> None:
    finding = one("held rows", holders=(holder(),))
    assert finding.status is Status.OK
    assert "pid 4711 (application psql, user ann, idle in transaction) for 5 s, 3 trans" in finding.found


def test_everybody_who_holds_rows_for_long_is_named_with_the_remedy() -> None:
    holders = (
        holder(seconds=7300.0, transactions=90),
        holder(pid=1, seconds=61.0),
        holder(pid=2),
        holder(kind="prepared", pid=None, name="it's", state="prepared", seconds=600.0),
        holder(kind="slot", pid=None, name="old", state="inactive", seconds=None, transactions=2_000_000),
    )
    findings = examine(replace(HEALTHY, holders=holders), only="held rows")
    assert [(f.check, f.status) for f in findings] == [
        ("held rows 4711", Status.PROBLEM),
        ("held rows 1", Status.WARNING),
        ("held rows it's", Status.WARNING),
        ("held rows old", Status.WARNING),
    ]
    assert "for 2 h, 90 transactions" in findings[0].found
    assert [f.remedy.rpartition(": ")[2] for f in findings] == [
        "select pg_terminate_backend(4711);",
        "select pg_terminate_backend(1);",
        "rollback prepared 'it''s';",
        "select pg_drop_replication_slot('old');",
    ]


def test_what_a_role_may_not_see_is_said() -> None:
    hidden = holder(application=None, state=None, seconds=None)
    assert "pid 4711 (user ann, state hidden: needs pg_monitor)" in one("held rows", holders=(hidden,)).found


def test_dead_rows() -> None:
    tables = (Table("messages", GB, 10_000, 30_000, 7200.0), Table("cursors", MB, 10, 900, None))
    messages, cursors = examine(replace(HEALTHY, tables=tables), only="table")
    assert (messages.check, messages.status) == ("table queen.messages", Status.WARNING)
    assert messages.found == "1.0 GB, 30000 dead rows (75%), vacuumed 2 h ago"
    assert messages.remedy.endswith("vacuum (analyze) queen.messages;")
    assert (cursors.status, cursors.found.endswith("vacuumed never")) == (Status.OK, True)


def test_what_could_not_be_looked_at_is_said_and_the_rest_goes_on() -> None:
    findings = examine(replace(HEALTHY, schema=Missing("needs more rights"), disk=Missing("elsewhere")))
    unknown = {f.check: f.found for f in findings if f.status is Status.UNKNOWN}
    assert unknown == {
        "schema": "could not look: needs more rights",
        "disk": "could not look: elsewhere",
    }
    settings = {name: value for name, value in GOOD.items() if name != "fsync"}
    assert "pg_read_all_settings" in one("fsync", settings=settings).found


def test_without_a_database_there_is_one_problem_and_no_noise() -> None:
    facts = Facts(python=(3, 11, 0), queenstream="1", server=Missing("no PostgreSQL; start it: queen up"))
    findings = examine(facts)
    assert [(f.check, f.status) for f in findings if f.status is not Status.OK] == [
        ("postgresql", Status.PROBLEM)
    ]
    assert (findings[-1].found, findings[-1].remedy) == ("no PostgreSQL", "start it: queen up")


@pytest.mark.parametrize(
    "url",
    [
        "http://ann:secret@host",
        "ftp://host",
        "host:6632",
        "http://host:port",
        "http://h?token=secret",
        "http://",
    ],
)
def test_an_address_that_is_printed_holds_no_secret(url: str) -> None:
    with pytest.raises(ConfigError) as raised:
        doctor.checked_url(url)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:se/cret@h/d", "postgresql://u:se#cret@h/d", "postgresql://u:secret@h:x/d"],
)
def test_an_unusable_url_is_not_shown(url: str) -> None:
    with pytest.raises(DatabaseUnusable) as raised:
        probes.database_url(Settings(pg=url), probes.Deadline())
    assert "cret" not in str(raised.value)


def test_what_hangs_is_left_behind() -> None:
    never = threading.Event()
    with pytest.raises(TimeoutError):
        probes.within(0.05, never.wait)
    never.set()
