"""Who may call what: every route with every kind of token, and the table in docs/roles.md.

After a role was changed on purpose: ``python -m tests.integration.test_roles`` writes the table anew.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx
import jwt

from queenstream.broker.api import ROUTES
from queenstream.broker.http.openapi import role_name
from queenstream.broker.http.routing import Role, Route
from tests.conftest import StartBroker

SECRET = "a secret for the tests, long enough for HS256"
TABLE = Path(__file__).parents[2] / "docs" / "roles.md"


def token(role: str | None, *, seconds: float = 86_400, secret: str = SECRET, **claims: Any) -> str:
    made = {"sub": "ada", "exp": int(time.time() + seconds), **claims}
    return jwt.encode(made if role is None else made | {"role": role}, secret, algorithm="HS256")


# Who asks, and the role this amounts to; None: nobody we know.
CALLERS: dict[str, tuple[str | None, Role | None]] = {
    "no token": (None, None),
    "garbage": ("Bearer garbage", None),
    "another scheme": ("Basic YWRhOmFkYQ==", None),
    "expired": ("Bearer " + token("admin", seconds=-60), None),
    "another secret": ("Bearer " + token("admin", secret="x" * 40), None),
    "unsigned": ("Bearer " + jwt.encode({"role": "admin", "exp": 2**40}, "", algorithm="none"), None),
    "no role": ("Bearer " + token(None), Role.PUBLIC),
    "unknown role": ("Bearer " + token("root"), Role.PUBLIC),
    "read-only": ("Bearer " + token("read-only"), Role.READ_ONLY),
    "read-write": ("Bearer " + token("read-write"), Role.READ_WRITE),
    "admin": ("Bearer " + token("admin"), Role.ADMIN),
}


def expected(route: Route, role: Role | None) -> str:
    if route.role is Role.PUBLIC or (role is not None and role >= route.role):
        return "allowed"
    return "401" if role is None else "403"


def _path(route: Route) -> str:
    return "/".join("1" if part.startswith("{") else part for part in route.path.split("/"))


async def test_every_route_with_every_token(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET, max_wait="100ms")
    wrong: list[str] = []
    async with httpx.AsyncClient(base_url=broker.address, timeout=30) as http:
        for route in broker.router.routes:
            for method in [route.method] if route.changes_state else [route.method, "HEAD"]:
                for caller, (header, role) in CALLERS.items():
                    headers = {"authorization": header} if header else {}
                    answer = await http.request(method, _path(route), headers=headers)
                    status = answer.status_code
                    got = str(status) if status in (401, 403) else "allowed"
                    if got != expected(route, role):
                        wrong.append(f"{method} {route.path}, {caller}: {status} {answer.text[:80]}")
                    if got != "allowed" and method != "HEAD":
                        assert set(answer.json()) == {"error"}
    assert not wrong, "\n".join(wrong)


async def test_without_a_key_everybody_may_do_everything(start_broker: StartBroker) -> None:
    broker = await start_broker(max_wait="100ms")
    async with httpx.AsyncClient(base_url=broker.address, timeout=30) as http:
        for route in ROUTES:
            answer = await http.request(route.method, _path(route))
            assert answer.status_code not in (401, 403, 405, 500), (route.path, answer.text)


def _limits(route: Route) -> str:
    if route.role is Role.PUBLIC:
        return "public"
    return "refused" if route.scope is None else route.scope.text


def table(routes: Iterable[Route]) -> str:
    rows = sorted((route.path, route.method, role_name(route.role), _limits(route)) for route in routes)
    lines = [
        "# Who may call what",
        "",
        "With a key configured, a token needs the role named here or a higher one: `read-only`,",
        "`read-write`, `admin`. `public` needs no token, and neither do the files of the page at `/`.",
        "A token that is limited to some queues must reach all those in the last column; `refused` is for",
        "tokens without limits only ([security](security.md#limited-tokens)).",
        "Written by `python -m tests.integration.test_roles`; a test compares it with the routes.",
        "",
        "| method | path | role | limited tokens |",
        "|---|---|---|---|",
        *(f"| {method} | `{path}` | {role} | {limits} |" for path, method, role, limits in rows),
    ]
    return "\n".join(lines) + "\n"


def test_the_table_in_the_docs_is_true() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(ROUTES), (
        "a role or route has changed; if on purpose: python -m tests.integration.test_roles"
    )


def test_what_is_public() -> None:
    """Nothing becomes public by a slip of the declaration."""
    assert {route.path for route in ROUTES if route.role is Role.PUBLIC} <= {
        "/health", "/health/live", "/health/ready", "/openapi.json",
    }  # fmt: skip
    assert not [r.path for r in ROUTES if r.method == "DELETE" and r.role < Role.READ_WRITE]


# producerSub


async def _push_and_pop(http: httpx.AsyncClient, headers: dict[str, str]) -> list[dict[str, Any]]:
    items = [{"queue": "q", "payload": {"producerSub": "mallory"}, "producerSub": "mallory"}]
    body = {"items": items, "producerSub": "mallory"}
    assert (await http.post("/api/v1/push", json=body, headers=headers)).status_code == 201
    operations = [{"type": "push", "items": items}]
    stored = await http.post("/api/v1/transaction", json={"operations": operations}, headers=headers)
    assert stored.json()["success"] is True
    popped = await http.get("/api/v1/pop/queue/q", params={"batch": 10}, headers=headers)
    messages: list[dict[str, Any]] = popped.json()["messages"]
    assert len(messages) == 2
    return messages


async def test_the_sub_is_stored_and_cannot_be_set(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET)
    async with httpx.AsyncClient(base_url=broker.address) as http:
        headers = {"authorization": "Bearer " + token("read-write"), "producer-sub": "mallory"}
        messages = await _push_and_pop(http, headers)
    assert [m["producerSub"] for m in messages] == ["ada", "ada"]


async def test_without_a_token_there_is_no_sub(start_broker: StartBroker) -> None:
    broker = await start_broker()
    async with httpx.AsyncClient(base_url=broker.address) as http:
        # Nobody checks this token, so nobody believes it.
        messages = await _push_and_pop(http, {"authorization": "Bearer " + token("read-write")})
    assert [m["producerSub"] for m in messages] == [None, None]


if __name__ == "__main__":
    TABLE.parent.mkdir(exist_ok=True)
    TABLE.write_text(table(ROUTES), encoding="utf-8")
