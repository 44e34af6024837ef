"""HEAD: it does nothing on any route that changes state."""

from __future__ import annotations

import httpx

from queenstream.broker.api import PAGES, ROUTES
from queenstream.broker.app import Broker
from queenstream.broker.http.routing import Role


def _path(path: str) -> str:
    return "/".join("1" if part.startswith("{") else part for part in path.split("/"))


async def test_head_is_refused_wherever_a_request_changes_state(http: httpx.AsyncClient) -> None:
    methods: dict[str, set[str]] = {}
    reads: set[str] = set()
    for route in ROUTES:
        methods.setdefault(route.path, set()).add(route.method)
        if route.method == "GET" and not route.changes_state:
            reads.add(route.path)
    wrong: list[str] = []
    for path, known in methods.items():
        async with http.stream("HEAD", _path(path)) as answer:
            allowed = set(answer.headers.get("allow", "").split(", ")) - {""}
        refused = answer.status_code == 405 and allowed == known
        if refused == (path in reads):
            wrong.append(f"HEAD {path}: {answer.status_code}, Allow: {allowed}")
    assert not wrong, "\n".join(wrong)


async def test_allow_names_head_where_it_is_possible(http: httpx.AsyncClient) -> None:
    answer = await http.request("PATCH", "/health")
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_every_route_says_whether_it_changes_state() -> None:
    """Every method but GET changes state; a GET does if it needs the role that writes."""
    for route in (*ROUTES, *PAGES):
        expected = route.role is Role.READ_WRITE if route.method == "GET" else True
        assert route.changes_state == expected, f"{route.method} {route.path}"


async def test_a_pop_by_head_takes_nothing(http: httpx.AsyncClient, broker: Broker) -> None:
    items = [{"queue": "q", "payload": 1}]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201
    for path in ("/api/v1/pop/queue/q", "/api/v1/pop/queue/q/partition/Default"):
        answer = await http.head(path, params={"autoAck": "true"})
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")
    popped = await http.get("/api/v1/pop/queue/q")
    assert [message["data"] for message in popped.json()["messages"]] == [1]
