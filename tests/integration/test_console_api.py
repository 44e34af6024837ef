"""What the console asks of queues, groups and dead letters, on a real broker."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.http import response_cache
from queenstream.broker.http.response_cache import Remembered
from queenstream.broker.http.routing import Request, Response
from tests.conftest import Clock

pytestmark = pytest.mark.timeout(60)

Json = dict[str, Any]


async def get(http: httpx.AsyncClient, path: str, /, **query: Any) -> Any:
    answer = await http.get(path, params=query)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def post(http: httpx.AsyncClient, path: str, /, **body: Any) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code in (200, 201), answer.text
    return answer.json()


async def push(http: httpx.AsyncClient, queue: str, partition: str, *payloads: Any) -> list[Json]:
    items = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
    stored: list[Json] = await post(http, "/api/v1/push", items=items)
    return stored


async def pop(http: httpx.AsyncClient, queue: str, group: str, **query: Any) -> list[Json]:
    answer = await http.get(f"/api/v1/pop/queue/{queue}", params={"consumerGroup": group, **query})
    messages: list[Json] = answer.json()["messages"] if answer.status_code == 200 else []
    return messages


# Partitions


async def test_partitions_by_prefix_and_page(http: httpx.AsyncClient) -> None:
    names = [f"user-{n:03d}" for n in range(25)] + ["Ünder", "zebra"]
    items = [{"queue": "orders", "partition": name, "payload": 1} for name in names]
    await post(http, "/api/v1/push", items=items)
    path = "/api/v1/resources/partitions"

    found: list[str] = []
    after = ""
    for _ in range(10):
        page = await get(http, path, queue="orders", prefix="user-", after=after, limit=10)
        assert page["pagination"]["total"] == 25
        found += [p["name"] for p in page["partitions"]]
        if "next" not in page:
            break
        after = page["next"]
    assert found == names[:25]
    assert [p["name"] for p in (await get(http, path, queue="orders", prefix="Ü"))["partitions"]] == ["Ünder"]
    assert (await get(http, path, queue="orders", prefix="nobody"))["partitions"] == []
    assert (await http.get(path, params={"prefix": "u"})).status_code == 400


async def test_partitions_that_wait_longest_first(http: httpx.AsyncClient, clock: Clock) -> None:
    for name in ("b", "a", "c"):
        await push(http, "orders", name, 1, 2)
        clock.turn(10)
    await pop(http, "orders", "g", batch=9, partitions=3, autoAck=True)
    for name in ("c", "a"):
        await push(http, "orders", name, 3)
        clock.turn(10)
    path = "/api/v1/resources/partitions"
    wanted = {"queue": "orders", "order": "waiting", "consumerGroup": "g"}
    page = await get(http, path, **wanted, groups="true")
    assert [p["name"] for p in page["partitions"]] == ["c", "a"]
    assert page["pagination"]["total"] == 2
    [group] = page["partitions"][0]["groups"]
    assert (group["consumerGroup"], group["lag"], round(group["lagSeconds"], -1)) == ("g", 1, 20)
    second = await get(http, path, **wanted, limit=1, offset=1)
    assert [p["name"] for p in second["partitions"]] == ["a"]
    assert "groups" not in second["partitions"][0]
    assert (await http.get(path, params={"queue": "orders", "order": "waiting"})).status_code == 400
    assert (await http.get(path, params=wanted | {"prefix": "a"})).status_code == 400


# Replay from here


async def test_a_group_is_moved_to_a_message(http: httpx.AsyncClient) -> None:
    stored = await push(http, "orders", "p", *range(6))
    await push(http, "orders", "other", 0)
    assert len(await pop(http, "orders", "g", batch=10, partitions=2, autoAck=True)) == 7
    third = stored[2]["message_id"]
    path = "/api/v1/consumer-groups/g/queues/orders/partitions/p/seek"
    preview = await post(http, path, messageId=third, dryRun=True)
    assert (preview["affected"], preview["targetMessageId"]) == (4, third)
    assert await pop(http, "orders", "g") == []
    done = await post(http, path, messageId=third)
    assert done["partitionsUpdated"] == 1
    # All six were stored at the same time: only an id tells them apart.
    assert [m["data"] for m in await pop(http, "orders", "g", batch=10)] == [2, 3, 4, 5]

    whole = "/api/v1/consumer-groups/g/queues/orders/seek"
    assert (await http.post(whole, json={"messageId": third})).status_code == 400
    assert (await http.post(path, json={"messageId": third, "toEnd": True})).status_code == 400
    assert (await http.post(path, json={"messageId": "1"})).status_code == 404
    elsewhere = path.replace("/partitions/p/", "/partitions/other/")
    assert (await http.post(elsewhere, json={"messageId": third})).status_code == 404


# Dead letters by error


async def fail(http: httpx.AsyncClient, queue: str, error: str | None, group: str = "g") -> None:
    [message] = await pop(http, queue, group)
    ack = {key: message[key] for key in ("transactionId", "partitionId", "leaseId")}
    await post(http, "/api/v1/ack", **ack, status="dlq", error=error, consumerGroup=group)


async def test_dead_letters_by_what_they_failed_with(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "orders", "p", *range(6))
    await push(http, "bills", "p", 0)
    errors = [
        "timeout after 30.5 s at 10.0.0.7:5432",
        "timeout after 9 s at 10.0.0.12:5432",
        "no user 5f0c2d1e-99aa-4b6c-8d27-0123456789ab in deadbeef01",
        "no user 11111111-2222-3333-4444-555555555555 in 0123456789abcdef",
        "timeout after 1 s at 10.0.0.1:80",
        None,
    ]
    for error in errors:
        await fail(http, "orders", error)
        clock.turn(1)
    await fail(http, "bills", "timeout after 2 s at 10.9.9.9:80")

    found = await get(http, "/api/v1/dlq/errors")
    assert (found["letters"], found["complete"]) == (7, True)
    shown = {(e["queue"], e["pattern"]): e for e in found["errors"]}
    assert {key: e["letters"] for key, e in shown.items()} == {
        ("orders", "timeout after # s at #"): 3,
        ("orders", "no user # in #"): 2,
        ("orders", "rejected by the consumer"): 1,
        ("bills", "timeout after # s at #"): 1,
    }
    assert found["errors"][0]["letters"] == 3
    late = shown["orders", "timeout after # s at #"]
    assert late["example"] == errors[4]
    assert late["consumerGroups"] == ["g"]
    assert late["firstFailedAt"] < late["lastFailedAt"]
    assert (await get(http, f"/api/v1/dlq/{late['exampleId']}"))["errorMessage"] == errors[4]
    assert len((await get(http, "/api/v1/dlq/errors", queue="bills"))["errors"]) == 1
    assert (await get(http, "/api/v1/dlq/errors", consumerGroup="nobody"))["errors"] == []

    pattern = "no user # in #"
    listed = await get(http, "/api/v1/dlq", queue="orders", errorPattern=pattern)
    assert listed["total"] == 2
    retried = await post(http, "/api/v1/dlq/retry", queue="orders", errorPattern=pattern)
    assert retried["retried"] == 2
    gone = await post(http, "/api/v1/dlq/delete", queue="orders", errorPattern="rejected by the consumer")
    assert gone["deleted"] == 1
    left = await get(http, "/api/v1/dlq", limit=100)
    assert left["total"] == 4
    assert {letter["errorMessage"].split()[0] for letter in left["messages"]} == {"timeout"}


# Answers that may be older


async def test_who_takes_an_older_answer_gets_it_while_it_was_dear(
    http: httpx.AsyncClient, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def total(**headers: str) -> int:
        answer = await http.get("/api/v1/resources/overview", headers=headers)
        found: int = answer.json()["messages"]["total"]
        assert ("age" in answer.headers) == (found == 1 and "cache-control" in headers and stored == 2)
        return found

    monkeypatch.setattr(response_cache, "SHARE", 1e6)  # as if it had taken long
    stored = 1
    await push(http, "orders", "p", 1)
    older = {"cache-control": "max-age=60"}
    assert await total(**older) == 1
    stored = 2
    await push(http, "orders", "p", 2)
    assert await total(**older) == 1
    assert await total() == 2
    assert await total(**{"cache-control": "max-age=0"}) == 2
    monkeypatch.setattr(response_cache, "SHARE", 0.0)
    for _ in range(2):  # what is cheap is made anew
        broker.remembered._answers.clear()
        assert await total(**older) == 2


async def test_the_same_question_under_way_is_asked_once() -> None:
    remembered, begun, go_on = Remembered(), 0, asyncio.Event()

    async def work() -> Response:
        nonlocal begun
        begun += 1
        await go_on.wait()
        await asyncio.sleep(0.01)
        return Response(200, b"{}")

    request = Request("GET", "/x", "", {b"cache-control": b"max-age=5"}, b"")
    asked = [asyncio.create_task(remembered.answer(request, work)) for _ in range(5)]
    await asyncio.sleep(0)
    go_on.set()
    answers = await asyncio.gather(*asked)
    assert begun == 1
    assert {answer.body for answer in answers if answer} == {b"{}"}


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_cache, "MOST_ANSWERS", 3)
    monkeypatch.setattr(response_cache, "MOST_BYTES", 100)
    remembered = Remembered()

    async def work() -> Response:
        return Response(200, b"x" * 40)

    for n in range(5):
        await remembered.answer(Request("GET", f"/{n}", "", {}, b""), work)
    assert [path for path, _ in remembered._answers] == ["/3", "/4"]
