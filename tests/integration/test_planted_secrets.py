"""A secret in every setting that can hold one is in no log, error, metric, answer or process list."""

from __future__ import annotations

import base64
import contextlib
from contextlib import ExitStack
from pathlib import Path

import httpx
import jwt
import pytest

from queenstream.broker.api import PAGES, ROUTES
from queenstream.broker.http.routing import Role
from queenstream.config import SETTINGS
from queenstream.errors import ConfigError
from tests.integration.test_keys import arguments_of, made, queen
from tests.processes import other_postgres, up
from tests.unit.broker.test_jwks import ed_key

PLANTED = "planted-secret-of-a-setting-that-nobody-may-see"
KEY = base64.b64encode(PLANTED.encode()[:32]).decode()

# How a secret can stand in each setting that may hold one, in a value that does not fit.
UNFIT = {
    "pg": f"host=db password={PLANTED}",
    "encryption_keys": f"first:{PLANTED}",
    "auth_secret": PLANTED[:31],  # too short
    "auth_public_key": f"-----BEGIN PRIVATE KEY-----{PLANTED}-----END PRIVATE KEY-----",
    "auth_jwks_url": f"https://user:{PLANTED}@id.example.com/jwks.json",
}
# These take any text, and none of it is secret: names, and paths of files.
OPEN = {
    "allow_host", "auth_audience", "auth_issuer", "auth_role_claim", "auth_secret_file", "data", "host",
    "pg_file",
}  # fmt: skip


def test_every_setting_that_takes_a_secret_is_known_here() -> None:
    """A new setting that takes any text is secret or not: say which here, and mask it if it is."""
    assert {name for name, row in SETTINGS.items() if row.mask} == UNFIT.keys()
    takes_text = set()
    for name, row in SETTINGS.items():
        with contextlib.suppress(ConfigError):
            row.parse(PLANTED, "test")
            takes_text.add(name)
    assert takes_text - UNFIT.keys() == OPEN


@pytest.mark.parametrize("name", UNFIT)
def test_an_error_about_a_setting_does_not_show_it(name: str, tmp_path: Path) -> None:
    value = UNFIT[name]
    file = tmp_path / "queen.toml"
    file.write_text(f"{name} = '{value}'\n")
    secret = value if name == "auth_secret" else PLANTED
    for arguments, environment in (((), {SETTINGS[name].variable: value}), (("--config", str(file)), {})):
        for command in ("up", "--port", "0"), ("doctor",):
            if command[0] == "doctor" and name not in ("pg", "auth_jwks_url"):
                continue  # it does not use the others
            failed = queen(*command, *arguments, **environment)
            assert failed.returncode == 2, failed.stderr
            assert name in failed.stderr
            assert secret not in failed.stderr + failed.stdout


def test_a_secret_file_that_does_not_fit_is_not_shown(tmp_path: Path) -> None:
    file = tmp_path / "file"
    for option, text in (
        ("QUEEN_PG_FILE", f"host=db password={PLANTED}"),
        ("QUEEN_AUTH_SECRET_FILE", PLANTED[:31]),
    ):
        file.write_text(text)
        failed = queen("up", "--ephemeral", "--port", "0", **{option: str(file)})
        assert failed.returncode == 2
        assert text not in failed.stderr
        assert PLANTED not in failed.stderr


def test_a_running_broker_shows_no_secret(tmp_path: Path) -> None:
    password = "p@ss word"
    jwks = f"http://127.0.0.1:1/jwks.json?password={PLANTED}"  # where nothing answers
    secrets = {PLANTED, KEY, password, "p%40ss%20word", f"{PLANTED}-the-next", f"other-{PLANTED}"}
    file = tmp_path / "secrets"
    file.write_text(f"{PLANTED}-the-next\n{PLANTED}\n")
    seen: dict[str, str] = {}
    with ExitStack() as database:
        url = database.enter_context(other_postgres())
        token = made("token", "create", "--sub", "ann", "--role", "admin", QUEEN_AUTH_SECRET_FILE=str(file))
        secrets.add(token)
        environment = {
            "QUEEN_AUTH_SECRET_FILE": str(file), "QUEEN_ENCRYPTION_KEYS": f"first:{KEY}",
            "QUEEN_AUTH_SECRET": f"other-{PLANTED}", "QUEEN_AUTH_JWKS_URL": jwks,
            "QUEEN_LOG_LEVEL": "debug", "QUEEN_MAX_WAIT": "100ms", "QUEEN_LOG_FORMAT": "json",
        }  # fmt: skip
        with up("--pg", url, "--port", "0", "--workers", "2", **environment) as running:
            address = running.ready(60)
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=address, timeout=30, headers=headers) as http:
                options = {"queue": "sealed", "options": {"encryptionEnabled": True}}
                assert http.post("/api/v1/configure", json=options).status_code == 201
                items = [{"queue": "sealed", "payload": "a-payload"}]
                assert http.post("/api/v1/push", json={"items": items}).status_code == 201
                for route in (*ROUTES, *PAGES):
                    path = "/".join("1" if part.startswith("{") else part for part in route.path.split("/"))
                    for body in (None, {}, {"queue": "q", "name": "q"}):
                        answer = http.request(route.method, path, json=body)
                        seen[f"{route.method} {path} {body}"] = f"{answer.headers}{answer.text}"
                    if route.role is not Role.PUBLIC:
                        wrong = http.request(
                            route.method, path, headers={"authorization": f"Bearer x{token}"}
                        )
                        assert wrong.status_code == 401
                        seen[f"{route.method} {path} wrong token"] = wrong.text
                unknown = jwt.encode({"exp": 4_000_000_000}, ed_key("a"), "EdDSA", {"kid": "a"})
                failed = http.get("/api/v1/status", headers={"authorization": f"Bearer {unknown}"})
                assert failed.status_code == 503
                seen["keys that cannot be fetched"] = failed.text
                secrets.add(unknown)
                seen["metrics"] = http.get("/metrics/prometheus").text
                seen["doctor"] = "".join(
                    (done := queen("doctor", "--pg", url, "--url", address, "--token", token)).stdout
                    + done.stderr
                )
                seen["status"] = "".join(
                    (done := queen("status", "--url", address, "--token", f"{token}x")).stdout + done.stderr
                )
                seen["processes"] = arguments_of(running.process.pid)
                # A database that has gone: what fails now says where it was.
                database.close()
                for path in "/health", "/api/v1/resources/queues", "/api/v1/pop/queue/sealed":
                    answer = http.get(path)
                    assert answer.status_code == 503
                    seen[f"{path} without a database"] = answer.text
            running.stop()
            seen["output"], seen["log"] = running.stdout, running.stderr
    assert '"logger"' in seen["log"]
    assert "cannot fetch the token keys" in seen["log"]
    assert "queen_requests_total" in seen["metrics"]
    assert "summary" in seen["doctor"]
    found = [
        f"{where} shows {secret}" for where, text in seen.items() for secret in secrets if secret in text
    ]
    assert found == []
    assert "a-payload" not in seen["log"] + seen["metrics"] + seen["processes"]
