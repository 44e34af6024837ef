"""Who did what: the audit log, who asks, and a broker's settings; on a real broker with tokens."""

from __future__ import annotations

from typing import Any

import asyncpg
import httpx
import pytest

from queenstream.broker.api import ROUTES
from queenstream.broker.app import Broker
from queenstream.broker.ops import audit
from tests.conftest import Clock, StartBroker
from tests.integration.test_roles import SECRET, token

pytestmark = pytest.mark.timeout(60)

TRAFFIC = {  # what changes something and is no act of administration
    "/api/v1/push",
    "/api/v1/pop",
    "/api/v1/pop/queue/{queue}",
    "/api/v1/pop/queue/{queue}/partition/{partition}",
    "/api/v1/ack",
    "/api/v1/ack/batch",
    "/api/v1/transaction",
    "/api/v1/lease/{lease}/extend",
    "/api/v1/traces",
    "/api/v1/stream/poll",
    "/api/v1/stream/ack",
    "/api/v1/stream/renew-lease",
    "/api/v1/pipelines/{pipeline}/report",
    "/api/v1/sinks/checkpoint",
    "/api/v1/stats/refresh",
}


def test_every_route_that_changes_something_is_audited_or_traffic() -> None:
    assert {r.path for r in ROUTES if r.changes_state and not r.audited} == TRAFFIC
    assert not [r.path for r in ROUTES if r.method == "GET" and r.audited]


async def acts(http: httpx.AsyncClient, **query: Any) -> list[dict[str, Any]]:
    answer = await http.get("/api/v1/audit", params=query)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["acts"]
    return found


async def test_acts_are_noted_with_who_and_from_where(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET)
    ada = {"authorization": "Bearer " + token("admin"), "x-forwarded-for": "203.0.113.7"}
    eve = {"authorization": "Bearer " + token("read-only", sub="eve")}
    async with httpx.AsyncClient(base_url=broker.address, headers=ada) as http:
        await http.post("/api/v1/push", json={"items": [{"queue": "orders", "payload": {"secret": 42}}]})
        options = {"queue": "orders", "options": {"retryLimit": 7}}
        assert (await http.post("/api/v1/configure", json=options)).status_code == 200
        seek = "/api/v1/consumer-groups/billing/queues/orders/seek"
        assert (await http.post(seek, json={"toEnd": True, "dryRun": True})).status_code == 200
        assert (await http.post(seek, json={"toEnd": True})).status_code == 200
        assert (await http.post(seek, json={})).status_code == 400
        refused = await http.delete("/api/v1/resources/queues/orders", headers=eve)
        assert refused.status_code == 403
        assert (await http.delete("/api/v1/resources/queues/orders")).status_code == 200

        found = await acts(http)
        assert [(a["action"], a["target"]) for a in found] == [
            ("delete_queue", "queue orders"),
            ("seek_queue", "group billing, queue orders"),
            ("configure", "queue orders"),
        ]
        assert {(a["subject"], a["role"], a["address"], a["forwardedFor"]) for a in found} == {
            ("ada", "admin", "127.0.0.1", "203.0.113.7")
        }
        assert found[1]["details"]["body"]["toEnd"] is True
        assert found[2]["details"]["body"]["options"]["retryLimit"] == 7
        assert found[0]["at"] > found[1]["at"] > found[2]["at"]

        assert len(await acts(http, action="configure")) == 1
        assert len(await acts(http, target="BILLING")) == 1
        assert await acts(http, subject="eve") == []
        page = (await http.get("/api/v1/audit", params={"limit": 2})).json()
        rest = (await http.get("/api/v1/audit", params={"limit": 2, "before": page["next"]})).json()
        assert [a["id"] for a in page["acts"] + rest["acts"]] == [a["id"] for a in found]
        assert rest["next"] is None

        whoami = {"subject": "ada", "role": "admin", "authentication": True, "insecure": False}
        me = (await http.get("/api/v1/system/me")).json()
        assert me == whoami | {"queues": None, "namespaces": None}
        eves = (await http.get("/api/v1/system/me", headers=eve)).json()
        assert (eves["subject"], eves["role"]) == ("eve", "read-only")

        shown = await http.get("/api/v1/system/settings", headers=eve)
        assert SECRET not in shown.text
        assert shown.json()["settings"]["auth_secret"]["value"] == "***"
        assert shown.json()["settings"]["pool"] == {"value": 8, "source": "default"}


async def test_payloads_are_in_no_act(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/push", json={"items": [{"queue": "q", "payload": 1, "transactionId": "t"}]})
    popped = (await http.get("/api/v1/pop/queue/q")).json()["messages"][0]
    where = f"/api/v1/messages/{popped['partitionId']}/t"
    assert (await http.post(f"{where}/dlq", json={"error": "bad"})).status_code == 200
    retried = await http.post(f"{where}/retry", json={"payload": {"card": "4111"}})
    assert retried.status_code == 200, retried.text
    answer = await http.get("/api/v1/audit")
    assert "4111" not in answer.text
    last = answer.json()["acts"][0]
    assert (last["action"], last["role"], last["subject"]) == ("retry_message", "admin", None)
    assert last["details"] == {"path": {"partitionId": popped["partitionId"], "transactionId": "t"}}


async def test_what_a_program_says_at_each_start_is_noted_once(http: httpx.AsyncClient) -> None:
    said = {"queue": "q", "options": {"retryLimit": 1}}
    for _ in range(3):
        await http.post("/api/v1/configure", json=said)
    assert len(await acts(http)) == 1
    await http.post("/api/v1/configure", json={"queue": "q", "options": {"retryLimit": 2}})
    await http.delete("/api/v1/resources/queues/q")
    await http.post("/api/v1/configure", json={"queue": "q", "options": {"retryLimit": 2}})
    assert [a["action"] for a in await acts(http)] == ["configure", "delete_queue", "configure", "configure"]
    for _ in range(2):  # whereas this was done twice
        await http.delete("/api/v1/queues/q/clear")
    assert [a["action"] for a in await acts(http, limit=2)] == ["clear_queue", "clear_queue"]


async def test_acts_past_their_time_or_number_go(
    http: httpx.AsyncClient, broker: Broker, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(4):
        await http.delete(f"/api/v1/resources/queues/q{n}")
    monkeypatch.setattr(audit, "MOST_ACTS", 3)
    await broker.background.forget()
    assert [a["target"] for a in await acts(http)] == ["queue q3", "queue q2", "queue q1"]
    clock.turn(broker.settings.audit_retention + 60)
    await http.delete("/api/v1/resources/queues/q9")
    await broker.background.forget()
    assert [a["target"] for a in await acts(http)] == ["queue q9"]


async def test_an_act_stands_though_it_cannot_be_noted(
    http: httpx.AsyncClient, broker: Broker, database_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await asyncpg.connect(database_url)
    await connection.execute("alter table queen.audit rename to elsewhere")
    await connection.close()
    assert (await http.post("/api/v1/configure", json={"queue": "q"})).status_code == 201
    assert broker.metrics.background_failures["audit"] == 1
    assert "configure is done, and could not be noted" in caplog.text
