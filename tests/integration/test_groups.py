"""Consumer groups: where they stand, seek, subscription and deletion, over plain HTTP."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import httpx
from queen import Queen

from queenstream.broker.app import Broker
from tests.conftest import Clock
from tests.integration.test_resources import ack, get, pop, refused

GROUPS = "/api/v1/consumer-groups"


async def push(http: httpx.AsyncClient, queue: str, *payloads: Any, partition: str = "Default") -> None:
    items = [{"queue": queue, "partition": partition, "payload": p} for p in payloads]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201


async def take(http: httpx.AsyncClient, queue: str, group: str, **query: Any) -> list[Any]:
    """Everything a group can get, acknowledged, in the order of its payloads."""
    taken: list[Any] = []
    while True:
        answer = await http.get(
            f"/api/v1/pop/queue/{queue}", params={"consumerGroup": group, "batch": 100, **query}
        )
        if answer.status_code == 204:
            return sorted(taken)
        await ack(http, answer.json())
        taken.extend(m["data"] for m in answer.json()["messages"])


async def post(http: httpx.AsyncClient, path: str, body: Any, status: int = 200) -> Any:
    answer = await http.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


async def test_list_groups(http: httpx.AsyncClient, clock: Clock) -> None:
    assert await get(http, GROUPS) == []
    await push(http, "q", 1, 2, 3)
    await push(http, "q", 4, partition="p")
    await push(http, "r", 5)
    assert await take(http, "r", "g") == [5]
    await ack(http, await pop(http, "q/partition/Default", batch=2, consumerGroup="g"))
    await pop(http, "q/partition/Default", consumerGroup="g")
    await take(http, "q", "h", subscriptionMode="new")

    g, h = await get(http, GROUPS)
    assert 0 <= g.pop("maxTimeLag") < 60
    assert 0 <= g["queues"][0].pop("lagSeconds") < 60
    for queue in g["queues"]:
        assert queue.pop("lastConsumedAt") is not None
    assert g == {
        "name": "g",
        "topics": ["q", "r"],
        "members": 1,
        "totalLag": 2,
        "state": "Stable",
        "queues": [
            {
                "name": "g", "queue": "q", "partitions": 2, "lag": 2, "members": 1, "active": True,
                "subscriptionMode": "all", "subscriptionTimestamp": None,
            },
            {
                "name": "g", "queue": "r", "partitions": 1, "lag": 0, "lagSeconds": 0.0, "members": 0,
                "active": True, "subscriptionMode": "all", "subscriptionTimestamp": None,
            },
        ],
    }  # fmt: skip
    assert (h["name"], h["totalLag"], h["queues"][0]["subscriptionMode"]) == ("h", 0, "new")
    clock.turn(100)
    assert [group["state"] for group in await get(http, GROUPS)] == ["Lagging", "Stable"]
    clock.turn(3550)
    assert (await get(http, f"{GROUPS}/g"))["state"] == "Dead"


async def test_lagging(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1, 2)
    clock.turn(100)
    await push(http, "q", 3, partition="p")
    await pop(http, "q/partition/Default", consumerGroup="g")
    (late,) = await get(http, f"{GROUPS}/lagging")
    assert 100 <= late.pop("lagSeconds") < 160
    assert late == {
        "consumerGroup": "g", "queue": "q", "partition": "Default", "lag": 2, "lastConsumedAt": None,
    }  # fmt: skip
    assert len(await get(http, f"{GROUPS}/lagging", minLagSeconds=0)) == 2
    assert await get(http, f"{GROUPS}/lagging", minLagSeconds=1000) == []
    await refused(http, f"{GROUPS}/lagging", 400, minLagSeconds=-1)


async def test_show_group(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2)
    await push(http, "q", 3, partition="p")
    await ack(http, await pop(http, "q/partition/p", consumerGroup="g"))
    await pop(http, "q/partition/Default", consumerGroup="g")
    found = await get(http, f"{GROUPS}/g")
    assert (found["name"], found["topics"], found["totalLag"], found["members"]) == ("g", ["q"], 2, 1)
    late, done = found["queues"]["q"]["partitionDetails"]
    assert (late["partition"], late["lag"], done["partition"], done["lag"]) == ("Default", 2, "p", 0)
    assert late["leasedUntil"] is not None
    assert (done["leasedUntil"], done["lagSeconds"]) == (None, 0)
    assert done["lastConsumedAt"] is not None
    assert "leaseId" not in str(found)
    await refused(http, f"{GROUPS}/nobody", 404)


async def test_seek(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1)
    await push(http, "q", 2, partition="p")
    clock.turn(100)
    middle = clock().isoformat().replace("+00:00", "Z")
    clock.turn(100)
    await push(http, "q", 3, 4)
    await push(http, "q", 5, partition="p")
    assert await take(http, "q", "g") == [1, 2, 3, 4, 5]
    path = f"{GROUPS}/g/queues/q/seek"

    dry = await post(http, path, {"timestamp": middle, "dryRun": True})
    assert dry.pop("targetTimestamp") == middle
    assert dry == {
        "success": True, "consumerGroup": "g", "queue": "q", "partitionsUpdated": 0, "dryRun": True,
        "affected": 3,
    }  # fmt: skip
    assert await take(http, "q", "g") == []  # nothing has moved
    back = await post(http, path, {"timestamp": middle})
    assert back == {
        "success": True, "consumerGroup": "g", "queue": "q", "partitionsUpdated": 2,
        "targetTimestamp": middle,
    }  # fmt: skip
    assert await take(http, "q", "g") == [3, 4, 5]
    await post(http, path, {"timestamp": "2020-01-01T00:00:00"})
    assert (await get(http, f"{GROUPS}/g"))["totalLag"] == 5
    assert (await post(http, path, {"toEnd": True, "dryRun": True}))["affected"] == 5
    held = await pop(http, "q", consumerGroup="g")
    end = await post(http, path, {"toEnd": True})
    assert end == {
        "success": True, "consumerGroup": "g", "queue": "q", "partitionsUpdated": 2, "toEnd": True,
    }  # fmt: skip
    assert await take(http, "q", "g") == []
    message = held["messages"][0]
    late = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    (answer,) = await post(
        http, "/api/v1/ack", {**late, "leaseId": held["leaseId"], "status": "failed", "consumerGroup": "g"}
    )
    assert answer["success"] is False  # the seek made the lease void

    for body in ({}, {"toEnd": True, "timestamp": middle}, {"toEnd": False}, {"timestamp": "soon"}):
        await post(http, path, body, 400)
    await post(http, f"{GROUPS}/g/queues/nothing/seek", {"toEnd": True}, 404)


async def test_seek_one_partition(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1)
    await push(http, "q", 2, partition="p")
    assert await take(http, "q", "g") == [1, 2]
    path = f"{GROUPS}/g/queues/q/partitions"
    start = {"timestamp": "2020-01-01T00:00:00Z"}
    assert (await post(http, f"{path}/p/seek", {**start, "dryRun": True}))["affected"] == 1
    assert (await post(http, f"{path}/p/seek", start))["partitionsUpdated"] == 1
    assert await take(http, "q", "g") == [2]
    await post(http, f"{path}/x/seek", start, 404)


async def test_a_seek_says_where_a_new_group_starts(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2)
    path = f"{GROUPS}/g/queues/q/seek"
    assert (await post(http, path, {"toEnd": True, "dryRun": True}))["affected"] == 2
    assert await get(http, GROUPS) == []  # the dry run made no group
    assert (await post(http, path, {"toEnd": True}))["partitionsUpdated"] == 1
    await push(http, "q", 3)
    assert await take(http, "q", "g") == [3]


async def test_delete_group(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1)
    await push(http, "r", 2)
    clock.turn(100)
    since = clock().isoformat()
    await take(http, "q", "g", subscriptionFrom=since)
    await take(http, "r", "g")
    await push(http, "q", 3)
    assert await take(http, "q", "g") == [3]

    # Progress goes, the subscription stays: what is older is still not for this group.
    gone = await http.delete(f"{GROUPS}/g/queues/q", params={"deleteMetadata": "false"})
    assert gone.json() == {"success": True, "consumerGroup": "g", "queues": ["q"], "deletedPartitions": 1}
    shown = (await get(http, f"{GROUPS}/g"))["queues"]["q"]
    assert (shown["active"], shown["partitions"]) == (False, 0)
    assert await take(http, "q", "g") == [3]
    # With the metadata it starts over as new.
    gone = await http.delete(f"{GROUPS}/g", params={"deleteMetadata": "true"})
    assert gone.json() == {
        "success": True, "consumerGroup": "g", "queues": ["q", "r"], "deletedPartitions": 2,
    }  # fmt: skip
    assert await get(http, GROUPS) == []
    assert await take(http, "q", "g") == [1, 3]
    for path in (f"{GROUPS}/nobody", f"{GROUPS}/g/queues/r", f"{GROUPS}/g/queues/nothing"):
        assert (await http.delete(path)).status_code == 404


async def test_subscription(http: httpx.AsyncClient, clock: Clock) -> None:
    await push(http, "q", 1)
    clock.turn(100)
    since = clock().isoformat().replace("+00:00", "Z")
    await push(http, "q", 2)
    await take(http, "q", "g", subscriptionMode="new")
    path = f"{GROUPS}/g/subscription"
    found = await post(http, path, {"subscriptionTimestamp": since})
    assert found == {"success": True, "consumerGroup": "g", "newTimestamp": since, "rowsUpdated": 1}
    (group,) = (await get(http, GROUPS))[0]["queues"]
    assert group["subscriptionTimestamp"] == since
    # Its next start obeys, though the group was made after these messages.
    await http.delete(f"{GROUPS}/g", params={"deleteMetadata": "false"})
    assert await take(http, "q", "g") == [2]
    await post(http, f"{GROUPS}/nobody/subscription", {"subscriptionTimestamp": since}, 404)
    await post(http, path, {"subscriptionTimestamp": "once"}, 400)
    await post(http, path, {}, 400)


async def test_with_the_existing_client(http: httpx.AsyncClient, broker: Broker, clock: Clock) -> None:
    """The calls of the queen package's Admin that these routes answer."""
    await push(http, "q", 1, 2)
    await ack(http, await pop(http, "q", consumerGroup="g"), "dlq")
    letter = (await get(http, "/api/v1/dlq"))["messages"][0]
    place = (letter["partitionId"], letter["transactionId"])
    async with Queen(broker.address) as queen:
        admin: Any = queen.admin  # its hints say dict where the broker sends an array
        assert (await admin.get_overview())["queues"] == 1
        assert (await admin.list_queues(limit=5))["queues"][0]["name"] == "q"
        assert (await admin.get_queue("q"))["name"] == "q"
        assert (await admin.get_partitions(queue="q"))["pagination"]["total"] == 1
        assert (await admin.get_status())["queues"] == 1
        assert len((await admin.list_messages(queue="q"))["messages"]) == 2
        assert (await admin.get_message(*place))["status"] == "dead"
        assert (await queen.queue("q").dlq("g").limit(10).get())["total"] == 1
        assert (await admin.retry_message(*place))["retried"] == 1
        assert (await admin.list_consumer_groups())[0]["name"] == "g"
        assert await admin.get_lagging_consumers(1000) == []
        seek = await admin.seek_consumer_group("g", "q", {"toEnd": True})
        assert seek["partitionsUpdated"] == 1
        moved = await queen.update_consumer_group_timestamp("g", (clock() - timedelta(hours=1)).isoformat())
        assert moved["rowsUpdated"] == 1
        assert (await admin.delete_consumer_group_for_queue("g", "q", False))["queues"] == ["q"]
        assert (await queen.delete_consumer_group("g"))["success"] is True
        assert (await admin.delete_message(*place))["deleted"] is True
