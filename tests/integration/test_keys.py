"""Keys and tokens by command, keys that change while a broker runs, and secrets out of sight."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.auth import key_files
from queenstream.errors import ConfigError
from tests.conftest import StartBroker
from tests.processes import QUEEN, clean_environment, other_postgres, up


def queen(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [QUEEN, *arguments], capture_output=True, text=True, check=False, env=clean_environment(**environment)
    )


def made(*arguments: str, **environment: str) -> str:
    done = queen(*arguments, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


async def me(broker: Broker, token: str) -> dict[str, Any]:
    async with httpx.AsyncClient(base_url=broker.address) as http:
        answer = await http.get("/api/v1/system/me", headers={"authorization": f"Bearer {token}"})
        found: dict[str, Any] = answer.json()
        return found | {"status": answer.status_code}


async def test_a_secret_and_a_token_by_command(start_broker: StartBroker) -> None:
    secret = made("keys", "new")
    assert len(secret) >= 43
    assert secret != made("keys", "new")
    token = made(
        "token", "create", "--sub", "ann", "--role", "read-write", "--ttl", "5m", "--queue", "orders",
        "--queue", "eu.*", "--namespace", "shop", QUEEN_AUTH_SECRET=secret, QUEEN_AUTH_AUDIENCE="queen",
        QUEEN_AUTH_ROLE_CLAIM="rights",
    )  # fmt: skip
    broker = await start_broker(auth_secret=secret, auth_audience="queen", auth_role_claim="rights")
    assert await me(broker, token) == {
        "subject": "ann", "role": "read-write", "authentication": True, "insecure": False,
        "queues": ["orders", "eu.*"], "namespaces": ["shop"], "status": 200,
    }  # fmt: skip
    for arguments, environment, said in (
        (("--ttl", "never"), {"QUEEN_AUTH_SECRET": secret}, "--ttl never"),
        (("--ttl", "0s"), {"QUEEN_AUTH_SECRET": secret}, "--ttl 0s"),
        ((), {}, "queen keys new"),
        ((), {"QUEEN_AUTH_SECRET": "short"}, "shorter than 32 bytes"),
        (("--key", "gone.pem"), {}, "cannot read gone.pem"),
    ):
        failed = queen("token", "create", "--sub", "ann", *arguments, **environment)
        assert failed.returncode == 2
        assert said in failed.stderr


async def test_a_key_pair_by_command(start_broker: StartBroker, tmp_path: Path) -> None:
    private = tmp_path / "key.pem"
    made("keys", "new", "--type", "ed25519", "--file", str(private))
    assert private.stat().st_mode & 0o777 == 0o600
    again = queen("keys", "new", "--type", "ed25519", "--file", str(private))
    assert again.returncode == 2
    assert "not written over" in again.stderr
    broker = await start_broker(auth_public_key=f"{private}.pub")
    token = made("token", "create", "--sub", "ops", "--role", "admin", "--key", str(private))
    assert (await me(broker, token))["role"] == "admin"
    with pytest.raises(ConfigError, match="is a private key"):
        await start_broker(auth_public_key=str(private))


async def test_keys_are_rotated_while_the_broker_runs(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "LOOK_SECONDS", 0.0)
    first, second = "first" * 10, "second" * 10
    file = tmp_path / "secrets"
    file.write_text(first)
    broker = await start_broker(auth_secret_file=file)

    def token() -> str:
        return made("token", "create", "--sub", "ann", QUEEN_AUTH_SECRET_FILE=str(file))

    async def statuses(*tokens: str) -> list[int]:
        return [(await me(broker, each))["status"] for each in tokens]

    old = token()
    assert await statuses(old) == [200]
    file.write_text(f"{second}\n{first}\n")
    new = token()
    assert await statuses(old, new) == [200, 200]
    file.write_text("too short")  # a mistake locks nobody out
    assert await statuses(old, new) == [200, 200]
    file.unlink()
    assert await statuses(old, new) == [200, 200]
    file.write_text(second)
    assert await statuses(old, new) == [401, 200]  # also what was known of the old one


async def test_public_keys_are_rotated_too(
    start_broker: StartBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(key_files, "LOOK_SECONDS", 0.0)
    tokens, publics = [], []
    for name in "one", "two":
        made("keys", "new", "--type", "ed25519", "--file", str(tmp_path / name))
        publics.append((tmp_path / f"{name}.pub").read_text())
        tokens.append(made("token", "create", "--sub", name, "--key", str(tmp_path / name)))
    file = tmp_path / "public.pem"
    file.write_text(publics[0])
    broker = await start_broker(auth_public_key=str(file))
    assert [(await me(broker, each))["status"] for each in tokens] == [200, 401]
    file.write_text(publics[1] + publics[0])
    assert [(await me(broker, each))["status"] for each in tokens] == [200, 200]


async def test_keys_from_elsewhere_come_by_https(start_broker: StartBroker) -> None:
    with pytest.raises(ConfigError, match="use https"):
        await start_broker(auth_jwks_url="http://id.example.com/jwks.json")
    await start_broker(auth_jwks_url="https://id.example.com/jwks.json")
    await start_broker(auth_jwks_url="http://localhost:1/jwks.json")


# Passwords


def arguments_of(process: int) -> str:
    """The arguments of a process and of those that it started, as everybody on the machine sees them."""
    shown = subprocess.run(
        ["ps", "-ww", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout
    rows = [line.split(maxsplit=2) for line in shown.splitlines()[1:]]
    family = {str(process)}
    for pid, parent, _ in rows:
        if parent in family:
            family.add(pid)
    return "\n".join(arguments for pid, _, arguments in rows if pid in family)


def test_the_password_of_postgresql_is_in_no_process_list(tmp_path: Path) -> None:
    with other_postgres() as url:
        password = "p%40ss%20word"
        assert password in url
        bare = url.replace(f":{password}@", "@")
        address, passwords = tmp_path / "address", tmp_path / "passwords"
        address.write_text(url)
        port = bare.rpartition(":")[2].partition("/")[0]
        passwords.write_text(f"127.0.0.1:{port}:*:owner:p@ss word\n")
        passwords.chmod(0o600)
        ways: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
            (("--pg", url, "--workers", "2"), {}),
            ((f"--pg={url}",), {}),
            (("--pg-file", str(address)), {}),
            (("--pg", bare), {"PGPASSFILE": str(passwords)}),
            ((), {"QUEEN_PG": url}),
        )
        for arguments, environment in ways:
            with up(*arguments, "--port", "0", **environment) as running:
                answer = httpx.get(f"{running.ready(60)}/api/v1/system/settings")
                assert password not in answer.text
                shown = arguments_of(running.process.pid)
                assert "queen" in shown
                assert password not in shown, shown
                assert running.stop() == 0
                assert password not in running.stderr


def test_a_token_is_in_no_process_list() -> None:
    secret = "a-token-that-nobody-may-see"
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}"
        process = subprocess.Popen(
            [QUEEN, "status", "--url", address, "--token", secret],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_environment(),
        )  # fmt: skip
        listening.settimeout(30)
        heard = ""
        while secret not in heard:  # the broker gets it: the command is at work
            asked, _ = listening.accept()
            with asked:
                heard += asked.recv(65536).decode()
                shown = arguments_of(process.pid)
        assert "--token ***" in shown
        assert secret not in shown
        process.kill()
        process.communicate()


def test_what_a_secret_file_says_is_checked(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for arguments, said in (
        (("--pg-file", str(tmp_path / "gone")), "cannot be read"),
        (("--pg-file", str(empty)), "does not fit"),
        (("--pg-file", str(empty), "--pg", "postgresql://db/queen"), "give one of them"),
    ):
        failed = queen("up", *arguments)
        assert (failed.returncode, said in failed.stderr) == (2, True), failed.stderr
    failed = queen("up", "--ephemeral", "--port", "0", QUEEN_AUTH_SECRET_FILE=str(empty))
    assert failed.returncode == 2
    assert "is empty" in failed.stderr
