"""``queen doctor`` as a user runs it: a process against real servers."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
from typing import Any

import asyncpg
import jwt
import pytest

from queenstream import postgres
from tests.conftest import StartBroker
from tests.databases import database_of
from tests.processes import QUEEN, clean_environment, folder, free_port, other_postgres, up

# These depend on the machine that the tests run on.
OF_THE_MACHINE = {"java", "disk", "commit time", "open files", "database's clock", "broker's clock"}


def run(*args: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [QUEEN, "doctor", *args], capture_output=True, text=True, timeout=60, cwd="/",
        env=clean_environment(**environment),
    )  # fmt: skip


def findings(answer: subprocess.CompletedProcess[str]) -> dict[str, dict[str, Any]]:
    """By check; the shape of every line is looked at on the way."""
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    summary = lines.pop()["summary"]
    assert set(summary) == {"ok", "note", "warning", "problem", "unknown"}
    for line in lines:
        assert set(line) == {"check", "status", "found", "why", "remedy"}
    assert sum(summary.values()) == len(lines)
    return {line["check"]: line for line in lines}


@pytest.fixture
def nowhere() -> str:
    """The address of a broker that is not there."""
    return f"http://127.0.0.1:{free_port()}"


def test_the_embedded_server_and_its_broker_are_fine() -> None:
    with folder() as place, up("--data", str(place / "data"), "--port", "0") as running:
        address = running.ready()
        answer = run("--data", str(place / "data"), "--url", address)
        assert (answer.returncode, answer.stderr) == (0, "")
        found = findings(answer)
        told = {f["check"]: f for f in found.values() if f["status"] != "ok"}
        # A note: the embedded server is set for a small machine.
        assert set(told) - OF_THE_MACHINE <= {"shared_buffers"}, told
        assert found["shared_buffers"]["status"] in ("ok", "note")
        assert found["broker"]["found"] == f"healthy at {address}"
        assert found["brokers alive"]["found"].startswith("1: ")
        assert found["commit time"]["found"].endswith("ms (median)")
        assert running.stop() == 0
        stopped = run("--data", str(place / "data"), "--url", address)
        assert stopped.returncode == 3
        found = findings(stopped)
        assert found["postgresql"]["status"] == "problem"
        assert "queen up" in found["postgresql"]["remedy"]
        assert found["broker"]["status"] == "note"


async def test_a_held_transaction_is_named_and_its_query_is_not(database_url: str, nowhere: str) -> None:
    connection = await asyncpg.connect(database_url, server_settings={"application_name": "forgetful"})
    try:
        await connection.execute("begin isolation level repeatable read")
        await connection.fetch("select 'top secret'")
        answer = run("--pg", database_url, "--url", nowhere)
        pid = await connection.fetchval("select pg_backend_pid()")
    finally:
        await connection.close()
    held = findings(answer)["held rows"]["found"]
    assert f"pid {pid} (application forgetful, user postgres, idle in transaction)" in held
    assert "secret" not in answer.stdout


async def test_a_database_that_does_not_wait_for_the_disk_is_a_problem(
    database_url: str, nowhere: str
) -> None:
    connection = await asyncpg.connect(database_url)
    name = await connection.fetchval("select current_database()")
    await connection.execute(f"alter database {name} set synchronous_commit = off")
    await connection.close()
    answer = run("--pg", database_url, "--url", nowhere)
    assert answer.returncode == 1
    found = findings(answer)["synchronous_commit"]
    assert (found["status"], found["found"]) == ("problem", "off")
    assert found["remedy"] == f'alter database "{name}" reset synchronous_commit;'
    connection = await asyncpg.connect(database_url)
    await connection.execute(found["remedy"])
    await connection.close()
    assert run("--pg", database_url, "--url", nowhere).returncode == 0


async def test_a_role_without_rights_sees_what_it_may(
    server: postgres.Server, database_url: str, nowhere: str
) -> None:
    admin = await asyncpg.connect(database_url)
    await admin.execute("create role doctor_guest login")
    try:
        await admin.execute("begin isolation level repeatable read")  # a snapshot comes with the first query
        pid = await admin.fetchval("select pg_backend_pid()")
        answer = run("--pg", database_url.replace("postgres@", "doctor_guest@"), "--url", nowhere)
        await admin.execute("rollback")
    finally:
        await admin.execute("drop role doctor_guest")
        await admin.close()
    assert (answer.returncode, answer.stderr) == (0, "")
    found = findings(answer)
    assert found["schema"]["status"] == "unknown"
    assert found["schema"]["found"].startswith("could not look: needs more rights")
    assert "pg_read_all_settings" in found["disk"]["found"]
    assert f"pid {pid}" in found["held rows"]["found"]
    assert "needs pg_monitor" in found["held rows"]["found"]
    for check in ("fsync", "max_wal_size", "commit time", "database's clock", "checkpoints"):
        assert found[check]["status"] in ("ok", "warning")


async def test_an_empty_database_has_no_schema_yet(empty_database_url: str, nowhere: str) -> None:
    found = findings(run("--pg", empty_database_url, "--url", nowhere))
    assert found["schema"]["status"] == "note"


async def test_a_schema_of_a_newer_version_is_a_problem(database_url: str, nowhere: str) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("insert into queen.migrations (number, name, functions) values (9999, 'x', '')")
    await connection.close()
    answer = run("--pg", database_url, "--url", nowhere)
    assert (answer.returncode, findings(answer)["schema"]["status"]) == (1, "problem")


async def test_a_broker_that_wants_a_token(start_broker: StartBroker, database_url: str) -> None:
    secret = "s" * 32
    broker = await start_broker(auth_secret=secret)
    token = jwt.encode({"sub": "d", "role": "read-only", "exp": 4_000_000_000}, secret, "HS256")

    async def ask(**environment: str) -> dict[str, dict[str, Any]]:
        answer = await asyncio.to_thread(run, "--pg", database_url, QUEEN_URL=broker.address, **environment)
        assert answer.returncode == 0
        assert token not in answer.stdout + answer.stderr
        return findings(answer)

    without = await ask()
    assert without["broker"]["status"] == "ok"
    assert "--token" in without["maintenance"]["found"]
    assert without["background failures"]["status"] == "unknown"
    await broker.database.admin("write_setting", "maintenance", "true")
    broker.metrics.background_failed("expire")
    found = await ask(QUEEN_TOKEN=token)
    assert (found["maintenance"]["status"], found["maintenance"]["found"]) == ("warning", "on")
    assert (found["background failures"]["status"], found["background failures"]["found"]) == (
        "warning",
        "expire 1",
    )


def test_another_server_with_a_password(nowhere: str) -> None:
    """An older PostgreSQL with the settings it came with; nothing shows the password."""
    with other_postgres() as url:
        answer = run("--pg", url, "--url", nowhere)
        refused = run("--pg", url.replace("ss%20word", "ss%20wrong"), "--url", nowhere)
    assert (answer.returncode, answer.stderr) == (0, "")
    found = findings(answer)
    for check in ("max_wal_size", "checkpoint_timeout", "autovacuum_naptime", "max_locks_per_transaction"):
        assert found[check]["status"] == "warning"
        assert found[check]["remedy"].startswith(f"alter system set {check} = '")
    assert "timed" in found["checkpoints"]["found"]
    assert found["disk"]["status"] in ("ok", "warning")
    assert refused.returncode == 3
    assert "refuses the user" in findings(refused)["postgresql"]["found"]
    for text in (answer.stdout, refused.stdout, refused.stderr):
        assert "ss word" not in text
        assert "ss%20w" not in text
        assert "ss wrong" not in text


def test_a_database_that_is_not_there(nowhere: str) -> None:
    url = f"postgresql://ann:hunter22@127.0.0.1:{free_port()}/queen"
    answer = run("--url", nowhere, QUEEN_PG=url)
    assert (answer.returncode, answer.stderr) == (3, "")
    found = findings(answer)
    assert found["postgresql"]["found"].startswith("no PostgreSQL answers at 127.0.0.1:")
    assert found["python"]["status"] == "ok"
    assert "hunter22" not in answer.stdout


def test_on_a_terminal_it_is_for_people(server: postgres.Server, nowhere: str) -> None:
    ours, theirs = pty.openpty()
    arguments = [QUEEN, "doctor", "--pg", database_of(server.url, "queen"), "--url", nowhere]
    environment = clean_environment(TERM="xterm-256color", LC_ALL="C.UTF-8")
    process = subprocess.Popen(arguments, stdout=theirs, cwd="/", env=environment)
    os.close(theirs)
    read = b""
    try:
        while chunk := os.read(ours, 65536):
            read += chunk
    except OSError:
        pass  # the terminal's end
    finally:
        os.close(ours)
    text = read.decode()
    assert process.wait(30) == 0
    assert "\x1b[" in text
    assert "✓ ok" in text
    assert "durability" in text
    piped = run("--pg", database_of(server.url, "queen"), "--url", nowhere, "-o", "table")
    assert "✓ ok" in piped.stdout
    assert "\x1b[" not in piped.stdout


def test_wrong_usage(nowhere: str) -> None:
    answer = run("--url", "http://ann:hunter22@host")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "hunter22" not in answer.stderr
