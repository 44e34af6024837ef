"""Messages, dead letters and traces, over plain HTTP."""

from __future__ import annotations

import asyncio
from datetime import datetime, timedelta
from typing import Any

import httpx

from queenstream.broker.app import Broker
from tests.conftest import Clock, StartBroker
from tests.integration.test_resources import NONE, ack, get, pop, refused

KEYS = "new:" + "A" * 43 + "="


async def push(http: httpx.AsyncClient, queue: str, *transactions: str, partition: str = "Default") -> str:
    """Push one message for each transaction id; the partition's id."""
    items = [
        {"queue": queue, "partition": partition, "transactionId": t, "payload": {"is": t}}
        for t in transactions
    ]
    answer = await http.post("/api/v1/push", json={"items": items})
    assert answer.status_code == 201
    partition_id: str = answer.json()[0]["partition_id"]
    return partition_id


async def post(http: httpx.AsyncClient, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await http.post(path, json=body) if body is not None else await http.post(path)
    assert answer.status_code == status, answer.text
    return answer.json()


async def states(http: httpx.AsyncClient, **query: Any) -> dict[str, str]:
    """The transactions of the messages found, with their status, in the order of the answer."""
    found = await get(http, "/api/v1/messages", **query)
    return {m["transactionId"]: m["status"] for m in found["messages"]}


async def nothing_to_pop(http: httpx.AsyncClient, queue: str, group: str) -> bool:
    answer = await http.get(f"/api/v1/pop/queue/{queue}", params={"consumerGroup": group})
    return answer.status_code == 204


async def data_for(http: httpx.AsyncClient, queue: str, group: str) -> list[Any]:
    """What a group gets, acknowledged."""
    popped = await pop(http, queue, batch=100, consumerGroup=group)
    await ack(http, popped)
    return [m["data"] for m in popped["messages"]]


async def dead(http: httpx.AsyncClient, queue: str, *groups: str, error: str = "bad") -> None:
    """The next message of the queue dies for these groups."""
    for group in groups:
        await ack(http, await pop(http, queue, consumerGroup=group), "dlq", error=error)


async def test_list_messages(http: httpx.AsyncClient) -> None:
    await http.post("/api/v1/configure", json={"queue": "q", "namespace": "n", "task": "t"})
    partition = await push(http, "q", "a", "b", "c", "d", "e")
    assert set((await states(http)).values()) == {"pending"}  # no group yet
    await ack(http, await pop(http, "q", consumerGroup="g"))
    await dead(http, "q", "g")
    await pop(http, "q", consumerGroup="g")

    found = await get(http, "/api/v1/messages", queue="q")
    assert found["pagination"] == {"limit": 200, "offset": 0, "count": 5}
    c = found["messages"][2]
    datetime.fromisoformat(c.pop("createdAt"))
    datetime.fromisoformat(c.pop("leaseExpiresAt"))
    assert int(c.pop("id")) > 0
    assert c == {
        "transactionId": "c", "partitionId": partition, "queue": "q", "partition": "Default",
        "namespace": "n", "task": "t", "status": "processing", "traceId": None, "producerSub": None,
        "data": {"is": "c"}, "retryCount": 0,
    }  # fmt: skip
    assert await states(http) == {
        "e": "pending", "d": "pending", "c": "processing", "b": "dead", "a": "completed",
    }  # fmt: skip
    for status, expected in {
        "pending": ["e", "d"],
        "processing": ["c"],
        "completed": ["a"],
        "dead": ["b"],
        "dead_letter": ["b"],
        "failed": ["b"],
    }.items():
        assert list(await states(http, status=status)) == expected, status
    # Another group has everything before it: nothing is completed by all.
    await pop(http, "q", consumerGroup="late")
    assert await states(http, status="completed") == {}
    assert list(await states(http, status="processing")) == ["c", "a"]


async def test_filter_messages(http: httpx.AsyncClient, clock: Clock) -> None:
    await http.post("/api/v1/configure", json={"queue": "one", "namespace": "n", "task": "t"})
    await push(http, "one", "a1", partition="A")
    await push(http, "one", "b1", partition="B")
    clock.turn(100)
    middle = clock()
    clock.turn(100)
    await push(http, "one", "a2", "a3", partition="A")
    await push(http, "two", "x")
    everything = ["x", "a3", "a2", "b1", "a1"]
    assert list(await states(http)) == everything
    for query, expected in (
        ({"queue": "one"}, everything[1:]),
        ({"queue": "one", "partition": "A"}, ["a3", "a2", "a1"]),
        ({"namespace": "n"}, everything[1:]),
        ({"task": "t", "partition": "B"}, ["b1"]),
        ({"from": middle.isoformat()}, ["x", "a3", "a2"]),
        ({"to": middle.isoformat()}, ["b1", "a1"]),
        ({"from": middle.isoformat(), "to": middle.isoformat()}, []),
        ({"limit": 2}, ["x", "a3"]),
        ({"limit": 2, "offset": 2}, ["a2", "b1"]),
        ({"limit": 2, "offset": 4}, ["a1"]),
        ({"queue": "nothing"}, []),
        ({"queue": ""}, everything),
    ):
        assert list(await states(http, **query)) == expected, query
    for wrong in ({"status": "lost"}, {"from": "monday"}, {"offset": 10_001}):
        await refused(http, "/api/v1/messages", 400, **wrong)

    found = await get(http, "/api/v1/status/queues/one/messages", status="pending", limit=3)
    assert [m["transactionId"] for m in found["messages"]] == ["a3", "a2", "b1"]
    await refused(http, "/api/v1/status/queues/nothing/messages", 404)


async def test_show_message(http: httpx.AsyncClient, clock: Clock) -> None:
    partition = await push(http, "q", "a/b", "c")
    path = f"/api/v1/messages/{partition}/a%2Fb"
    assert (await get(http, path))["groups"] == []
    await dead(http, "q", "g", error="broken")
    await pop(http, "q", consumerGroup="h")
    await ack(http, await pop(http, "q", consumerGroup="i"))
    await ack(http, await pop(http, "q", consumerGroup="j"), "failed", error="once")
    found = await get(http, path)
    assert (found["transactionId"], found["status"], found["retryCount"]) == ("a/b", "processing", 1)
    assert found["data"] == found["payload"] == {"is": "a/b"}
    until = found["leaseExpiresAt"]
    assert until is not None
    columns = ("consumerGroup", "state", "tries", "error", "leasedUntil", "ahead")
    assert [tuple(group[name] for name in columns) for group in found["groups"]] == [
        ("g", "dead", 0, "broken", None, None),
        ("h", "processing", 0, None, until, 0),
        ("i", "completed", 0, None, None, None),
        ("j", "pending", 1, "once", None, 0),
    ]
    assert "leaseId" not in found
    for wrong in (f"{partition}/z", "999999/c", "x/c", "99999999999999999999/c"):
        await refused(http, f"/api/v1/messages/{wrong}", 404)


async def test_delete_message(http: httpx.AsyncClient) -> None:
    partition = await push(http, "q", "a", "b", "c")
    path = f"/api/v1/messages/{partition}"
    popped = await pop(http, "q", batch=2, consumerGroup="g")
    gone = await http.delete(f"{path}/a")  # while it is out
    assert gone.json() == {"success": True, "deleted": True, "partitionId": partition, "transactionId": "a"}
    assert (await http.delete(f"{path}/a")).status_code == 404
    await refused(http, f"{path}/a", 404)
    popped["messages"] = popped["messages"][1:]
    await ack(http, popped)  # what is left of the lease completes it
    assert await data_for(http, "q", "g") == [{"is": "c"}]


async def test_numbers_go_on_after_a_deletion(http: httpx.AsyncClient) -> None:
    """Lag and depth stay right when the last message is deleted, acknowledged or not, and when all are."""
    partition = await push(http, "q", "a", "b", "c")
    await data_for(http, "q", "g")
    await http.delete(f"/api/v1/messages/{partition}/c")
    await push(http, "q", "d", "e")
    assert (await get(http, "/api/v1/consumer-groups/g"))["totalLag"] == 2
    for transaction in "abde":
        await http.delete(f"/api/v1/messages/{partition}/{transaction}")
    assert (await get(http, "/api/v1/resources/overview"))["messages"] == NONE
    assert await nothing_to_pop(http, "q", "g")
    await push(http, "q", "f")
    assert (await get(http, "/api/v1/consumer-groups/g"))["totalLag"] == 1
    assert await data_for(http, "q", "g") == [{"is": "f"}]


async def test_retry_goes_to_the_failed_group_only(http: httpx.AsyncClient) -> None:
    partition = await push(http, "q", "a", "b")
    await dead(http, "q", "g")
    assert await data_for(http, "q", "g") == [{"is": "b"}]
    assert await data_for(http, "q", "other") == [{"is": "a"}, {"is": "b"}]
    letter = (await get(http, "/api/v1/dlq"))["messages"][0]["id"]

    found = await post(http, f"/api/v1/messages/{partition}/a/retry", {})
    (replayed,) = found["messages"]
    assert (found["success"], found["retried"]) == (True, 1)
    assert replayed["transactionId"] == f"a~retry-{letter}"
    assert replayed["consumerGroup"] == "g"
    assert (await get(http, "/api/v1/dlq"))["total"] == 0
    assert await nothing_to_pop(http, "q", "other")
    popped = await pop(http, "q", consumerGroup="g")
    (message,) = popped["messages"]
    assert (message["id"], message["data"]) == (replayed["messageId"], {"is": "a"})
    # It dies again, and its second retry does not pile up suffixes.
    await ack(http, popped, "dlq")
    again = await post(http, f"/api/v1/messages/{partition}/a~retry-{letter}/retry")
    assert again["messages"][0]["transactionId"].count("~retry-") == 1
    await post(http, f"/api/v1/messages/{partition}/b/retry", {}, 404)
    # A push follows in order, for both groups.
    await push(http, "q", "c")
    assert await data_for(http, "q", "g") == [{"is": "a"}, {"is": "c"}]
    assert await data_for(http, "q", "other") == [{"is": "c"}]


async def test_edit_and_retry(http: httpx.AsyncClient) -> None:
    long = "x" * 255
    partition = await push(http, "q", long)
    await dead(http, "q", "g", "h")
    path = f"/api/v1/messages/{partition}/{long}/retry"
    await post(http, path, {"consumerGroup": "nobody"}, 404)
    found = await post(http, path, {"consumerGroup": "g", "payload": {"fixed": True}})
    assert found["retried"] == 1
    assert len(found["messages"][0]["transactionId"]) == 255  # it must still fit an ack
    assert await data_for(http, "q", "g") == [{"fixed": True}]
    assert await nothing_to_pop(http, "q", "h")
    # The group of this dead letter is gone: the replay is for all.
    await http.delete("/api/v1/consumer-groups/h")
    await post(http, path, {"payload": None})
    assert await data_for(http, "q", "g") == [None]


async def test_retry_wakes_a_waiting_pop(http: httpx.AsyncClient, broker: Broker) -> None:
    partition = await push(http, "q", "a")
    await dead(http, "q", "g")
    waiting = asyncio.create_task(pop(http, "q", consumerGroup="g", wait="true", timeout=20_000))
    while not broker.popper.waiting:  # noqa: ASYNC110 - the popper tells nobody
        await asyncio.sleep(0.01)
    await post(http, f"/api/v1/messages/{partition}/a/retry")
    assert [m["data"] for m in (await asyncio.wait_for(waiting, 5))["messages"]] == [{"is": "a"}]


async def test_move_to_the_dead_letters(http: httpx.AsyncClient) -> None:
    partition = await push(http, "q", "a", "b", "c", "d")
    path = f"/api/v1/messages/{partition}"
    found = await post(http, f"{path}/a/dlq")
    assert found == {"success": True, "moved": 1, "consumerGroups": ["__QUEUE_MODE__"]}
    assert (await get(http, f"{path}/a"))["status"] == "dead"  # its dead letter still tells
    assert list(await states(http, status="dead")) == ["a"]

    await ack(http, await pop(http, "q", consumerGroup="done"))  # b
    await pop(http, "q", batch=2, consumerGroup="g")
    found = await post(http, f"{path}/b/dlq", {"error": "no good"})
    assert found["consumerGroups"] == ["g"]
    found = await post(http, f"{path}/c/dlq", {"consumerGroup": "g"})
    assert found["consumerGroups"] == ["g"]
    assert "c" in await states(http)  # for the others it stays
    await post(http, f"{path}/c/dlq", {"consumerGroup": "g"}, 409)
    await post(http, f"{path}/c/dlq", {"consumerGroup": "nobody"}, 404)
    await post(http, f"{path}/z/dlq", {}, 404)
    letters = (await get(http, "/api/v1/dlq", queue="q"))["messages"]
    assert [(m["transactionId"], m["errorMessage"]) for m in letters] == [
        ("c", "moved to the dead letters by hand"),
        ("b", "no good"),
        ("a", "moved to the dead letters by hand"),
    ]
    assert await data_for(http, "q", "done") == [{"is": "c"}, {"is": "d"}]
    await post(http, f"{path}/d/dlq", {"consumerGroup": "done"}, 409)
    # Moved before there was a group: a retry is for all.
    await post(http, f"{path}/a/retry")
    assert await data_for(http, "q", "done") == [{"is": "a"}]


async def test_list_dead_letters(http: httpx.AsyncClient, clock: Clock) -> None:
    assert await get(http, "/api/v1/dlq") == {
        "messages": [],
        "pagination": {"limit": 100, "offset": 0, "total": 0},
        "total": 0,
    }
    partition = await push(http, "q", "a", partition="p")
    await dead(http, "q", "g", "h", error="first")
    clock.turn(100)
    middle = (clock() - timedelta(seconds=50)).isoformat()
    await push(http, "r", "b")
    await dead(http, "r", "g", error="second")

    found = await get(http, "/api/v1/dlq", queue="q", consumerGroup="g")
    assert found["total"] == 1
    assert found["pagination"] == {"limit": 100, "offset": 0, "total": 1}
    (letter,) = found["messages"]
    for name in ("createdAt", "failedAt"):
        datetime.fromisoformat(letter.pop(name))
    identity = letter.pop("id")
    assert letter == {
        "transactionId": "a", "partitionId": partition, "queue": "q", "partition": "p",
        "consumerGroup": "g", "errorMessage": "first", "retryCount": 0, "data": {"is": "a"},
        "producerSub": None,
    }  # fmt: skip
    for query, groups, total in (
        ({}, ["g", "h", "g"], 3),
        ({"partition": "p"}, ["h", "g"], 2),
        ({"from": middle}, ["g"], 1),
        ({"to": middle}, ["h", "g"], 2),
        ({"limit": 1, "offset": 1}, ["h"], 3),
        ({"queue": "none"}, [], 0),
    ):
        found = await get(http, "/api/v1/dlq", **query)
        assert [m["consumerGroup"] for m in found["messages"]] == groups, query
        assert found["total"] == found["pagination"]["total"] == total, query

    one = await get(http, f"/api/v1/dlq/{identity}")
    assert (one["cause"], one["data"], one["traceId"]) == ("rejected", {"is": "a"}, None)
    assert (await http.delete(f"/api/v1/dlq/{identity}")).json() == {"success": True, "deleted": 1}
    for wrong in (identity, "0", "x"):
        await refused(http, f"/api/v1/dlq/{wrong}", 404)
        assert (await http.delete(f"/api/v1/dlq/{wrong}")).status_code == 404
        await post(http, f"/api/v1/dlq/{wrong}/retry", {}, 404)


async def test_retry_and_delete_dead_letters(http: httpx.AsyncClient) -> None:
    await push(http, "q", "a", "b", "c", "d")
    for error in ("Timeout 1", "timeout 2", "parse", "timeout 3"):
        await dead(http, "q", "g", error=error)
    letters = (await get(http, "/api/v1/dlq"))["messages"]
    found = await post(http, f"/api/v1/dlq/{letters[1]['id']}/retry", {"payload": [1]})
    assert (found["retried"], found["messages"][0]["consumerGroup"]) == (1, "g")
    assert await data_for(http, "q", "g") == [[1]]

    body = {"queue": "q", "consumerGroup": "g", "partition": "Default", "errorContains": "TIMEOUT"}
    assert await post(http, "/api/v1/dlq/retry", {**body, "limit": 2}) == {"success": True, "retried": 2}
    assert await data_for(http, "q", "g") == [{"is": "a"}, {"is": "b"}]
    assert await post(http, "/api/v1/dlq/delete", {**body, "consumerGroup": "h"}) == {
        "success": True,
        "deleted": 0,
    }
    assert await post(http, "/api/v1/dlq/delete", {"queue": "q"}) == {"success": True, "deleted": 1}
    assert await post(http, "/api/v1/dlq/retry", {"queue": "q"}) == {"success": True, "retried": 0}
    for path in ("/api/v1/dlq/retry", "/api/v1/dlq/delete"):
        await post(http, path, {"queue": "nothing"}, 404)
        await post(http, path, {}, 400)


async def test_encrypted_payloads(start_broker: StartBroker, clock: Clock) -> None:
    broker = await start_broker(clock=clock, encryption_keys=KEYS)
    blind = await start_broker(clock=clock)
    async with (
        httpx.AsyncClient(base_url=broker.address) as http,
        httpx.AsyncClient(base_url=blind.address) as other,
    ):
        body = {"queue": "q", "options": {"encryptionEnabled": True}}
        assert (await http.post("/api/v1/configure", json=body)).status_code == 201
        partition = await push(http, "q", "a")
        await dead(http, "q", "g")
        (message,) = (await get(http, "/api/v1/messages"))["messages"]
        assert message["data"] == {"is": "a"}
        assert "encrypted" not in message
        for path in ("/api/v1/messages", "/api/v1/dlq"):
            (message,) = (await get(other, path))["messages"]
            assert (message["data"], message["encrypted"]) == (None, True)
        retry = f"/api/v1/messages/{partition}/a/retry"
        await post(other, retry, {"payload": 1}, 503)
        await post(http, retry, {"payload": "secret"})
        (message,) = (await get(other, "/api/v1/messages", limit=1))["messages"]
        assert (message["data"], message["encrypted"]) == (None, True)
        assert await data_for(http, "q", "g") == ["secret"]


async def test_traces(http: httpx.AsyncClient, clock: Clock) -> None:
    partition = await push(http, "q", "a", "b")
    body: dict[str, Any] = {"transactionId": "a", "partitionId": partition, "data": {"step": 1}}
    first = await post(http, "/api/v1/traces", body, 201)
    assert first["success"] is True
    clock.turn(100)
    named = {
        **body, "consumerGroup": "g", "traceNames": ["x", "y", "x"], "eventType": "error", "data": [2],
    }  # fmt: skip
    second = await post(http, "/api/v1/traces", named, 201)
    await post(http, "/api/v1/traces", {**named, "transactionId": "b", "traceNames": ["x"]}, 201)

    traces = (await get(http, f"/api/v1/traces/{partition}/a"))["traces"]
    for trace in traces:
        datetime.fromisoformat(trace.pop("createdAt"))
    assert traces == [
        {
            "id": first["traceId"], "transactionId": "a", "partitionId": partition,
            "consumerGroup": None, "eventType": "info", "traceNames": [], "data": {"step": 1},
        },
        {
            "id": second["traceId"], "transactionId": "a", "partitionId": partition,
            "consumerGroup": "g", "eventType": "error", "traceNames": ["x", "y"], "data": [2],
        },
    ]  # fmt: skip
    found = await get(http, "/api/v1/traces/by-name/x")
    assert found["total"] == 2
    assert [t["transactionId"] for t in found["traces"]] == ["b", "a"]
    found = await get(http, "/api/v1/traces/by-name/x", limit=1, offset=1)
    assert (found["total"], [t["transactionId"] for t in found["traces"]]) == (2, ["a"])
    past = {"to": (clock() - timedelta(seconds=50)).isoformat()}
    assert await get(http, "/api/v1/traces/by-name/x", **past) == {"traces": [], "total": 0}

    found = await get(http, "/api/v1/traces/names")
    for name in found["names"]:
        datetime.fromisoformat(name.pop("lastSeen"))
    assert found == {
        "names": [
            {"name": "x", "traces": 2, "messages": 2},
            {"name": "y", "traces": 1, "messages": 1},
        ],
        "total": 2,
    }
    found = await get(http, "/api/v1/traces/names", search="Y", limit=1)
    assert (found["total"], found["names"][0]["name"]) == (1, "y")
    assert await get(http, f"/api/v1/traces/{partition}/z") == {"traces": []}

    await post(http, "/api/v1/traces", {**body, "transactionId": "z"}, 404)
    await post(http, "/api/v1/traces", {**body, "partitionId": "x"}, 404)
    await post(http, "/api/v1/traces", {**body, "data": "x" * 65_536}, 413)
    await post(http, "/api/v1/traces", {**body, "traceNames": ["x"] * 51}, 400)
    await post(http, "/api/v1/traces", {"transactionId": "a", "partitionId": partition}, 400)
    # A message that is only a dead letter can still be traced.
    await post(http, f"/api/v1/messages/{partition}/a/dlq")
    await post(http, "/api/v1/traces", {**body, "traceNames": None, "eventType": None}, 201)
