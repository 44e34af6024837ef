"""``queen config``: contexts, and which broker a command talks to."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from queenstream.broker.app import Broker
from tests.conftest import StartBroker
from tests.integration.cli.running import Queen
from tests.integration.test_roles import SECRET, token
from tests.processes import free_port


@pytest.fixture
def queen(tmp_path: Path) -> Queen:
    """Without QUEEN_URL, with a configuration folder of its own."""
    return Queen(XDG_CONFIG_HOME=str(tmp_path))


async def test_contexts_from_the_first_to_the_last(queen: Queen, tmp_path: Path) -> None:
    assert await queen.rows("config", "get-contexts") == []
    (await queen("config", "current-context")).failed(2, "use-context")
    made = await queen("config", "set-context", "dev", "--url", "http://127.0.0.1:7000")
    assert made.row == {"name": "dev", "current": True, "url": "http://127.0.0.1:7000", "token": None}
    prod = ("config", "set-context", "prod", "--url", "https://one.example.com,https://two.example.com")
    assert (await queen(*prod, "--token-stdin", stdin="secret-token\n")).row["token"] == "***"
    file = tmp_path / "queenstream" / "contexts.toml"
    assert "secret-token" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700

    assert (await queen("config", "current-context")).out == "dev\n"
    await queen("config", "use-context", "prod")
    assert (await queen("config", "current-context")).out == "prod\n"
    listed = {row["name"]: row for row in await queen.rows("config", "get-contexts")}
    assert {name: row["current"] for name, row in listed.items()} == {"dev": False, "prod": True}
    viewed = (await queen("config", "view")).row
    assert (viewed["decidedBy"], viewed["token"], viewed["file"]) == (
        "current context prod",
        "***",
        str(file),
    )
    assert viewed["url"] == "https://one.example.com:443,https://two.example.com:443"
    assert (await queen("config", "view", "--context", "dev")).row["decidedBy"] == "--context dev"

    (await queen("config", "delete-context", "prod")).failed(2, "--yes")
    assert (await queen("config", "delete-context", "prod", "--yes")).row == {"deleted": True, "name": "prod"}
    assert "secret-token" not in file.read_text()
    (await queen("config", "use-context", "prod")).failed(2, "there is no context 'prod'", "dev")
    (await queen("config", "delete-context", "prod", "--yes")).failed(2, "there is no context 'prod'")


async def test_on_a_terminal(queen: Queen) -> None:
    async with queen.terminal("config", "set-context", "p", "--url", "a:1", "--token-stdin") as terminal:
        await terminal.until("Token: ")
        terminal.type("secret-token\n")
        assert await terminal.ended() == 0
    assert "secret-token" not in terminal.raw
    async with queen.terminal("config", "get-contexts") as terminal:
        assert await terminal.ended() == 0
    assert [line.split() for line in terminal.lines] == [
        ["CURRENT", "CONTEXT", "URL", "TOKEN"],
        ["*", "p", "http://a:1", "***"],
    ]


async def test_what_cannot_be_set(queen: Queen) -> None:
    made = ("config", "set-context", "dev")
    (await queen(*made)).failed(2, "--url")
    (await queen(*made, "--url", "ftp://x")).failed(2, "is not an address")
    (await queen(*made, "--url", "a:1", "--token-stdin", stdin="")).failed(2, "got nothing")
    (await queen(*made, "--url", "a:1", "--token-stdin", stdin="two words")).failed(2, "holds a space")
    (await queen(*made, "--url", "a:1", "--token-stdin", "--no-token")).failed(2, "contradict")
    (await queen("config", "set-context", "a b", "--url", "a:1")).failed(2, "cannot name a context")
    assert await queen.rows("config", "get-contexts") == []


async def test_a_token_does_not_follow_to_another_address(queen: Queen, tmp_path: Path) -> None:
    made = ("config", "set-context", "prod", "--url")
    await queen(*made, "a:1", "--token-stdin", stdin="secret-token")
    (await queen(*made, "b:1")).failed(2, "--token-stdin or --no-token")
    assert (await queen(*made, "a:1")).row["token"] == "***"
    assert (await queen(*made, "b:1", "--no-token")).row["token"] is None
    assert "secret-token" not in (tmp_path / "queenstream" / "contexts.toml").read_text()


async def test_a_file_that_others_may_read_is_refused(queen: Queen, tmp_path: Path) -> None:
    await queen("config", "set-context", "dev", "--url", "a:1", "--token-stdin", stdin="secret-token")
    file = tmp_path / "queenstream" / "contexts.toml"
    file.chmod(0o644)
    for command in (("queue", "ls"), ("config", "view"), ("config", "use-context", "dev")):
        refused = await queen(*command)
        refused.failed(2, "others may read", f"chmod 600 {file}")
        assert "secret-token" not in refused.err
    file.chmod(0o600)
    assert (await queen("config", "current-context")).out == "dev\n"


async def test_commands_go_to_the_broker_that_is_chosen(
    queen: Queen, broker: Broker, start_broker: StartBroker, tmp_path: Path
) -> None:
    guarded = await start_broker(auth_secret=SECRET)
    nowhere = f"http://127.0.0.1:{free_port()}"
    await queen("config", "set-context", "open", "--url", broker.address)
    await queen("config", "set-context", "away", "--url", nowhere)
    admin = token("admin")
    await queen("config", "set-context", "guarded", "--url", guarded.address, "--token-stdin", stdin=admin)
    assert (await queen("push", "orders", "1")).row["status"] == "queued"  # the first is the current one
    assert (await queen("queue", "ls", "--context", "guarded")).row["name"] == "orders"  # the same database
    (await queen("queue", "ls", "--context", "away")).failed(3, nowhere)
    (await queen("queue", "ls", "--url", nowhere)).failed(3, nowhere)
    (await queen("queue", "ls", "--url", "x", "--context", "open")).failed(2, "give one of them")
    (await queen("queue", "ls", "--context", "none")).failed(2, "there is no context 'none'")

    by_variable = Queen(XDG_CONFIG_HOME=str(tmp_path), QUEEN_CONTEXT="guarded")
    assert len(await by_variable.rows("queue", "ls")) == 1
    by_url = Queen(XDG_CONFIG_HOME=str(tmp_path), QUEEN_URL=guarded.address, QUEEN_CONTEXT="guarded")
    (await by_url("queue", "ls")).failed(6, "token")  # a context's token is for its own address only
    with_token = Queen(XDG_CONFIG_HOME=str(tmp_path), QUEEN_URL=guarded.address, QUEEN_TOKEN=admin)
    assert len(await with_token.rows("queue", "ls")) == 1
    assert len(await by_url.rows("queue", "ls", "--token", admin)) == 1

    two = Queen(XDG_CONFIG_HOME=str(tmp_path), QUEEN_URL=f"{nowhere},{broker.address}")
    assert len(await two.rows("queue", "ls")) == 1


async def test_roles(queen: Queen, start_broker: StartBroker) -> None:
    guarded = await start_broker(auth_secret=SECRET)
    reading = Queen(guarded.address, QUEEN_TOKEN=token("read-only"))
    refused = await reading("push", "orders", "1")
    refused.failed(6, "role")
    assert token("read-only") not in refused.err
    await Queen(guarded.address, QUEEN_TOKEN=token("read-write"))("push", "orders", "1")
    assert (await reading("tail", "orders")).row["data"] == 1
    wrong = Queen(guarded.address, QUEEN_TOKEN=token("admin", secret="x" * 40))
    (await wrong("status")).failed(6, "token")
