"""What holds for all commands: help, completion, exit codes, starting quickly."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from queenstream.broker.app import Broker
from queenstream.cli import app
from queenstream.cli.support import exit_codes
from tests.integration.cli.running import Queen, environment
from tests.processes import QUEEN, free_port

Command = tuple[str, ...]


def commands(command: Any, name: Command = ()) -> dict[Command, Any]:
    """Every command and group of commands, by the words that call it."""
    found = {name: command}
    for word, inner in getattr(command, "commands", {}).items():
        found |= commands(inner, (*name, word))
    return found


COMMANDS = commands(typer.main.get_command(app()))


def help_of(*words: str) -> str:
    done = CliRunner().invoke(app(), [*words, "--help"], prog_name="queen", env={"COLUMNS": "80"})
    assert done.exit_code == 0
    return done.stdout


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_help_shows_examples_and_fits_80_columns(words: Command) -> None:
    text = help_of(*words)
    assert max(map(len, text.splitlines())) <= 80
    assert "Examples:" in text
    examples = text.split("Examples:\n")[1].split("\n\n")[0].splitlines()
    assert all("queen " in example for example in examples)
    assert any(f"queen {' '.join(words)}" in example for example in examples)
    listed = text.partition("Commands:\n")[2].split("\n\n")[0]
    assert "..." not in listed  # every summary is whole


def test_the_examples_name_options_that_exist() -> None:
    for words, command in COMMANDS.items():
        known = {opt for param in command.params for opt in (*param.opts, *param.secondary_opts)}
        if words == ():
            continue
        for line in (command.help or "").splitlines():
            start = f"  queen {' '.join(words)} "
            if line.startswith(start) and not hasattr(command, "commands"):
                mine = line.split(" | ")[0].split(" < ")[0].split()
                assert {word for word in mine if word.startswith("--")} <= known, line


def test_the_exit_codes_are_in_the_help() -> None:
    text = help_of()
    for code, meaning in exit_codes.MEANINGS.items():
        assert f"{code:<4} {meaning}" in text


def test_help_as_a_user_sees_it() -> None:
    done = subprocess.run(
        [QUEEN, "--help"], env=environment(COLUMNS="80"), capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == (help_of(), "")


def test_version() -> None:
    done = subprocess.run([QUEEN, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("queen ")


def test_what_is_slow_is_imported_when_it_is_used() -> None:
    slow = (
        "asyncpg",
        "uvloop",
        "rich",
        "pydantic",
        "msgspec",
        "asyncio",
        "queenstream.broker",
        "queenstream.client",
    )
    code = f"import sys, queenstream.cli; print([m for m in {slow!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


async def test_status(queen: Queen, broker: Broker) -> None:
    await queen("push", "orders", "1", "2")
    await queen("pop", "orders")
    await broker.background.forget()
    broker.metrics.upkeep["traces"].error = "RaiseError"
    shown = (await queen("status")).row
    assert shown["upkeep"]["failing"] == ["traces"]
    assert (shown["health"], shown["mode"], shown["queues"]) == ("healthy", "normal operation", 1)
    assert (shown["messages"]["pending"], shown["messages"]["completed"]) == (1, 1)
    assert [one["address"] for one in shown["brokers"]] == [broker.address]
    async with queen.terminal("status") as terminal:
        assert await terminal.ended() == 0
    assert "pending            1" in terminal.lines
    assert "brokers" in terminal.lines


async def test_nobody_there_is_said_at_once() -> None:
    nowhere = f"http://127.0.0.1:{free_port()}"
    began = time.monotonic()
    for command in (("status",), ("push", "q", "1"), ("tail", "q", "-f"), ("stream", "ls")):
        (await Queen(nowhere)(*command)).failed(3, nowhere, "queen up")
    assert time.monotonic() - began < 20


async def test_wrong_usage_is_2() -> None:
    for words in (
        ("nonsense",),
        ("queue", "show"),
        ("queue", "ls", "-o", "xml"),
        ("pop", "q", "--batch", "0"),
    ):
        done = await Queen()(*words)
        assert (done.code, done.out) == (2, "")
        assert "Traceback" not in done.err
    assert "Did you mean" in (await Queen()("statsu")).err


async def test_an_address_with_a_password_is_not_repeated() -> None:
    done = await Queen()("status", "--url", "http://me:secret@host")
    done.failed(2, "--token")
    assert "secret" not in done.err


async def completions(url: str, *words: str, **more: str) -> tuple[list[str], float]:
    """What the shell would offer for the last word, and how long it took."""
    line = " ".join(["queen", *words])
    more |= {"_QUEEN_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words))}
    began = time.monotonic()
    done = await Queen(url, **more)()
    assert done.err == ""
    return done.out.split(), time.monotonic() - began


async def test_completion(queen: Queen, broker: Broker) -> None:
    await queen("push", "orders", "1", "2")
    await queen("push", "other", "1")
    await queen("pop", "orders", "--group", "billing")
    await queen("stream", "define", "sales", "--source", "orders", "--count", "2")
    url = broker.address
    assert (await completions(url, "sta"))[0] == ["status"]
    assert (await completions(url, "tail", "or"))[0] == ["orders"]
    assert (await completions(url, "queue", "show", "o"))[0] == ["orders", "other"]
    assert (await completions(url, "group", "show", "b"))[0] == ["billing"]
    assert (await completions(url, "group", "seek", "billing", "--queue", "ot"))[0] == ["other"]
    assert (await completions(url, "stream", "explain", "s"))[0] == ["sales"]
    assert (await completions("http://127.0.0.1:1", "tail", "--url", url, "or"))[0] == ["orders"]
    assert (await completions(url, "queue", "create", "q", "--set", "le"))[0] == ["leaseTime="]


async def test_completion_of_contexts(tmp_path: Path) -> None:
    queen = Queen(XDG_CONFIG_HOME=str(tmp_path))
    await queen("config", "set-context", "prod", "--url", "a:1")
    await queen("config", "set-context", "dev", "--url", "a:1")
    found, _ = await completions("", "status", "--context", "p", XDG_CONFIG_HOME=str(tmp_path))
    assert found == ["prod"]


async def test_completion_never_hangs_and_never_complains() -> None:
    """A server that takes connections and says nothing; and nobody at all."""

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(silence, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    found, seconds = await completions(f"http://127.0.0.1:{port}", "tail", "o")
    assert found == []
    assert seconds < 10
    assert (await completions(f"http://127.0.0.1:{free_port()}", "tail", "o"))[0] == []
    assert (await completions("nonsense://", "tail", "o"))[0] == []
    server.close()


def test_installed_completion_works_in_bash(tmp_path: Path) -> None:
    """As a user does it: install, start a shell, press Tab (which calls the function)."""
    known = environment(HOME=str(tmp_path), PATH=f"{Path(QUEEN).parent}:{os.environ['PATH']}")

    def bash(script: str) -> str:
        done = subprocess.run(["bash", "-c", script], env=known, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout

    assert "completion installed" in bash("queen --install-completion; true")
    tab = "COMP_WORDS=(queen qu); COMP_CWORD=1; _queen_completion queen; echo ${COMPREPLY[@]}"
    assert bash(f"source ~/.bashrc; {tab}").strip() == "queue"
