"""Tokens that are limited to some queues: on every route, another queue is refused and their own is not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.auth.scope import ANYTHING, FILTERED, NAMESPACE
from queenstream.broker.http.routing import Role, Route
from tests.conftest import StartBroker
from tests.integration.test_roles import SECRET, token


def bearer(role: str = "admin", **claims: Any) -> dict[str, str]:
    return {"authorization": "Bearer " + token(role, **claims)}


@dataclass
class Place:
    """A queue with a message, a lease, a dead letter, and a stream that reads it."""

    queue: str
    partition: str = ""
    transaction: str = ""
    lease: str = ""
    window: str = ""
    window_lease: str = ""
    letter: str = ""
    path: dict[str, str] = field(default_factory=dict)

    @property
    def stream(self) -> str:
        return f"{self.queue}-windows"


async def furnish(http: httpx.AsyncClient, queue: str) -> Place:
    place = Place(queue)
    await http.post("/api/v1/configure", json={"queue": queue, "namespace": f"{queue}-space"})
    items = [{"queue": queue, "payload": n, "transactionId": f"t{n}"} for n in range(3)]
    pushed = (await http.post("/api/v1/push", json={"items": items})).json()
    place.partition, place.transaction = pushed[0]["partition_id"], "t0"
    # One message dies, in a group of its own; another group holds a lease.
    popped = (await http.get(f"/api/v1/pop/queue/{queue}?consumerGroup=letters&batch=1")).json()
    ack = {
        "transactionId": "t0", "partitionId": place.partition, "status": "dlq", "consumerGroup": "letters",
        "leaseId": popped["leaseId"],
    }  # fmt: skip
    assert (await http.post("/api/v1/ack", json=ack)).json()[0]["success"]
    place.letter = (await http.get("/api/v1/dlq", params={"queue": queue})).json()["messages"][0]["id"]
    place.lease = (await http.get(f"/api/v1/pop/queue/{queue}?consumerGroup=g&batch=1")).json()["leaseId"]
    defined = {
        "name": place.stream,
        "source_queue_names": [queue],
        "window_type": "count",
        "window_size_count": 1,
    }
    assert (await http.post("/api/v1/stream/define", json=defined)).status_code == 201
    poll = {"streamName": place.stream, "consumerGroup": "g", "timeout": 10_000}
    window = (await http.post("/api/v1/stream/poll", json=poll)).json()["window"]
    place.window, place.window_lease = window["id"], window["leaseId"]
    place.path = {
        "queue": queue, "partition": "Default", "group": "g", "partitionId": place.partition,
        "transactionId": "t1", "id": place.letter, "lease": place.lease, "stream": place.stream,
        "window": "w",
    }  # fmt: skip
    return place


def sent(route: Route, place: Place) -> tuple[str, Any, dict[str, str]]:
    """Path, body and query of a request to the route that names the place's queue and no other."""
    parts = [
        quote(place.path.get(part[1:-1], "1")) if part.startswith("{") else part
        for part in route.path.split("/")
    ]
    item = {"queue": place.queue, "payload": 1}
    acked = {"transactionId": "t1", "partitionId": place.partition, "consumerGroup": "g"}
    window = {"windowId": place.window, "leaseId": place.window_lease}
    streamed = {"streamName": place.stream, "consumerGroup": "g"}
    bodies: dict[str, Any] = {
        "/api/v1/configure": {"queue": place.queue, "namespace": f"{place.queue}-space"},
        "/api/v1/push": {"items": [item]},
        "/api/v1/ack": acked,
        "/api/v1/ack/batch": {"acknowledgments": [acked]},
        "/api/v1/transaction": {"operations": [{"type": "push", "items": [item]}, {"type": "ack", **acked}]},
        "/api/v1/dlq/retry": {"queue": place.queue},
        "/api/v1/dlq/delete": {"queue": place.queue},
        "/api/v1/traces": {"transactionId": "t1", "partitionId": place.partition, "data": 1},
        "/api/v1/stream/define": {
            "name": "new-" + place.queue, "source_queue_names": [place.queue], "window_type": "count",
            "window_size_count": 5,
        },
        "/api/v1/stream/poll": streamed | {"timeout": 0},
        "/api/v1/stream/ack": window,
        "/api/v1/stream/renew-lease": window,
        "/api/v1/stream/seek": streamed | {"timestamp": "2026-01-01T00:00:00Z"},
        "/api/v1/messages/{partitionId}/{transactionId}/retry": {},
        "/api/v1/messages/{partitionId}/{transactionId}/dlq": {},
    }  # fmt: skip
    sink = {"queue": place.queue, "pipeline": "p", "step": "s"}
    bodies["/api/v1/sinks/checkpoint"] = sink | {"checkpointId": "c", "place": "state", "run": "r"}
    if route.path.endswith("/seek") and "{group}" in route.path:
        bodies[route.path] = {"toEnd": True}
    query = (
        {"queue": place.queue} if route.scope and route.scope.text.startswith("queue in the query") else {}
    )
    if route.path == "/api/v1/sinks/checkpoint" and route.method == "GET":
        query = sink
    if route.path == "/api/v1/pop":
        query = {"namespace": f"{place.queue}-space"}
    return "/".join(parts), bodies.get(route.path), query


def what_it_ends(route: Route) -> int:
    """0: nothing that a test of another route needs; 2: a stream; 3: a queue, and what reads it."""
    if route.method == "DELETE" and route.path.startswith("/api/v1/resources/"):
        return 2 if "{stream}" in route.path else 3
    return int(route.method == "DELETE" or "dlq" in route.path or route.path.endswith(("/seek", "/ack")))


@pytest.mark.parametrize("claims", [{"queues": ["mine*"]}, {"namespaces": ["mine-*"]}], ids=str)
async def test_every_route_with_a_limited_token(start_broker: StartBroker, claims: dict[str, Any]) -> None:
    broker = await start_broker(auth_secret=SECRET, max_wait="10s")
    wrong = []
    async with httpx.AsyncClient(base_url=broker.address, timeout=30, headers=bearer()) as http:
        mine, theirs = await furnish(http, "mine"), await furnish(http, "theirs")
        limited = bearer(**claims)
        for route in sorted(broker.router.routes, key=what_it_ends):
            if route.role is Role.PUBLIC:
                continue
            anything = route.scope in (ANYTHING, FILTERED)
            for place in theirs, mine:
                path, body, query = sent(route, place)
                answer = await http.request(route.method, path, json=body, params=query, headers=limited)
                expected = route.scope is None or (place is theirs and not anything)
                if route.scope is NAMESPACE and "namespaces" not in claims:
                    expected = True  # what a namespace holds may change
                if (answer.status_code == 403) != expected:
                    wrong.append(
                        f"{route.method} {path} {place.queue}: {answer.status_code} {answer.text[:150]}"
                    )
                if anything and theirs.queue in answer.text and route.path != "/openapi.json":
                    wrong.append(f"{route.method} {path} shows what is not the token's: {answer.text[:300]}")
    assert not wrong, "\n".join(wrong)


async def test_lists_show_what_the_token_reaches(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET, max_wait="10s")
    async with httpx.AsyncClient(base_url=broker.address, timeout=30, headers=bearer()) as http:
        await furnish(http, "mine")
        await furnish(http, "theirs")
        limited = bearer("read-only", queues=["min?"])
        for path in "resources/queues", "status/queues", "resources/streams", "consumer-groups":
            # An answer made for somebody else is not given to this caller, nor the other way round.
            for headers, both in ((bearer(), True), (limited, False), (bearer(), True)):
                young = headers | {"cache-control": "max-age=60"}
                text = (await http.get(f"/api/v1/{path}", headers=young)).text
                assert "mine" in text, path
                assert ("theirs" in text) is both, path
        page = (await http.get("/api/v1/resources/queues", headers=limited)).json()
        assert page["pagination"]["total"] == 1
        me = (await http.get("/api/v1/system/me", headers=limited)).json()
        assert (me["queues"], me["namespaces"]) == (["min?"], [])


async def pushed(http: httpx.AsyncClient, headers: dict[str, str], *queues: str) -> int:
    items = [{"queue": queue, "payload": 1} for queue in queues]
    return (await http.post("/api/v1/push", json={"items": items}, headers=headers)).status_code


async def depth(broker: Broker, queue: str) -> int:
    rows = await broker.database.admin("queue_by_name", queue)
    if not rows:
        return -1
    count = await broker.database.admin("list_queues", None, None, None, 1, 0, None, [queue])
    return int(count[0]["total"])


async def test_one_queue_outside_refuses_all(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET)
    async with httpx.AsyncClient(base_url=broker.address, timeout=30) as http:
        limited = bearer("read-write", queues=["mine"])
        assert await pushed(http, limited, "mine", "theirs") == 403
        assert (await depth(broker, "mine"), await depth(broker, "theirs")) == (-1, -1)
        assert await pushed(http, limited, "mine") == 201
        operations = [{"type": "push", "items": [{"queue": q, "payload": 1}]} for q in ("mine", "theirs")]
        answer = await http.post("/api/v1/transaction", json={"operations": operations}, headers=limited)
        assert answer.status_code == 403
        assert await depth(broker, "mine") == 1
        # A stream is reached through its sources: all of them.
        await pushed(http, bearer(), "theirs")
        both = {
            "name": "both", "source_queue_names": ["mine", "theirs"], "window_type": "count",
            "window_size_count": 1,
        }  # fmt: skip
        assert (await http.post("/api/v1/stream/define", json=both, headers=limited)).status_code == 403
        assert (await http.post("/api/v1/stream/define", json=both, headers=bearer())).status_code == 201
        poll = {"streamName": "both", "consumerGroup": "g", "timeout": 0}
        assert (await http.post("/api/v1/stream/poll", json=poll, headers=limited)).status_code == 403
        # Nor by a window of it in a transaction.
        poll["timeout"] = 10_000
        window = (await http.post("/api/v1/stream/poll", json=poll, headers=bearer())).json()["window"]
        done = {"type": "ackWindow", "windowId": window["id"], "leaseId": window["leaseId"]}
        answer = await http.post("/api/v1/transaction", json={"operations": [done]}, headers=limited)
        assert answer.status_code == 403
        only = both | {"source_queue_names": ["mine"], "reset": True}
        assert (await http.post("/api/v1/stream/define", json=only, headers=limited)).status_code == 403


async def test_a_namespace_admits_new_queues_and_no_others(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET)
    async with httpx.AsyncClient(base_url=broker.address, timeout=30) as http:
        limited = bearer("read-write", namespaces=["eu"])

        async def configure(queue: str, namespace: str | None, headers: dict[str, str] = limited) -> int:
            body = {"queue": queue, "namespace": namespace}
            return (await http.post("/api/v1/configure", json=body, headers=headers)).status_code

        assert await configure("carts", "eu") == 201
        assert await pushed(http, limited, "carts") == 201
        assert await configure("carts", "us") == 403
        assert await configure("loose", None) == 403
        await configure("theirs", "us", bearer())
        assert await configure("theirs", "eu") == 403  # nor is a queue taken over by naming the namespace
        assert await pushed(http, limited, "theirs") == 403
        named = bearer("read-write", queues=["theirs"])
        assert await configure("theirs", "eu", named) == 403  # consumers of eu trust who may fill it
        assert await configure("theirs", "us", named) == 200


@pytest.mark.parametrize(
    "claims", [{"queues": "mine"}, {"queues": [1]}, {"namespaces": {}}, {"queues": None}]
)
async def test_limits_that_cannot_be_read_admit_nobody(
    start_broker: StartBroker, claims: dict[str, Any]
) -> None:
    broker = await start_broker(auth_secret=SECRET)
    async with httpx.AsyncClient(base_url=broker.address) as http:
        answer = await http.get("/api/v1/system/me", headers=bearer(**claims))
        assert answer.status_code == 401
        assert "is not a list of" in answer.json()["error"]


async def test_patterns_are_no_more_than_that(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET)
    async with httpx.AsyncClient(base_url=broker.address) as http:
        cases: list[tuple[list[str], str, int]] = [
            (["eu.*"], "eu.carts", 201),
            (["eu.*"], "euxcarts", 403),
            (["a?c"], "abc", 201),
            (["a?c"], "ac", 403),
            (["[ab]"], "a", 403),
            (["[ab]"], "[ab]", 201),
            ([], "a", 403),
            (["*"], "anything", 201),
            (["a|b"], "b", 403),
            (["Mine"], "mine", 403),
            (["***a***b"], "xaxb", 201),
        ]
        for patterns, name, status in cases:
            assert await pushed(http, bearer(queues=patterns), name) == status, (patterns, name)
