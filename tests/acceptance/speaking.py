"""The contract in plain HTTP, as short as a test wants it; every call checks its status."""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import asyncpg
import httpx

Json = dict[str, Any]
Kind = type | tuple[type, ...] | Callable[[Any], bool]
Fields = dict[str, Kind]

OPTIONAL = (str, type(None))
DEFAULTS: Json = {
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 1000,
    "ttl": 0,
    "maxSize": 0,
    "priority": 0,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionEnabled": False,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "maxWaitTimeSeconds": 0,
    "encryptionEnabled": False,
    "deadLetterQueue": False,
    "dlqAfterMaxRetries": False,
}


def moment(value: object) -> bool:
    """ISO 8601 in UTC."""
    return isinstance(value, str) and datetime.fromisoformat(value).utcoffset() == timedelta()


def check(found: Json, fields: Mapping[str, Kind], ours: Iterable[str] = ()) -> None:
    """These fields, of these types, and no others but ``ours``."""
    assert set(found) - set(ours) == set(fields)
    for name, kind in fields.items():
        value = found[name]
        if isinstance(kind, type | tuple):
            kinds = kind if isinstance(kind, tuple) else (kind,)
            assert type(value) in kinds, f"{name} is {value!r}"
        else:
            assert kind(value), f"{name} is {value!r}"


async def configure(
    http: httpx.AsyncClient, queue: str, namespace: str | None = None, task: str | None = None, **options: Any
) -> Json:
    body = {"queue": queue, "namespace": namespace, "task": task, "options": options}
    answer = await http.post("/api/v1/configure", json=body)
    assert answer.status_code in (200, 201), answer.text
    configured: Json = answer.json()
    return configured


async def push(
    http: httpx.AsyncClient,
    queue: str,
    *payloads: Any,
    partition: str = "Default",
    ids: Sequence[str] | None = None,
) -> list[Json]:
    """Store payloads, in order; ``ids`` are their transaction ids."""
    items: list[Json] = [{"queue": queue, "partition": partition, "payload": payload} for payload in payloads]
    for item, id in zip(items, ids or (), strict=ids is not None):
        item["transactionId"] = id
    answer = await http.post("/api/v1/push", json={"items": items})
    assert answer.status_code == 201, answer.text
    results: list[Json] = answer.json()
    return results


def _query(query: Mapping[str, Any]) -> dict[str, str]:
    return {k: str(v).lower() if isinstance(v, bool) else str(v) for k, v in query.items()}


def quote(name: str) -> str:
    """A name as one segment of a path; dots as well, or clients take "." and ".." for folders."""
    return urllib.parse.quote(name, safe="").replace(".", "%2E")


async def pop(
    http: httpx.AsyncClient, queue: str | None = None, *, partition: str | None = None, **query: Any
) -> Json | None:
    """What a pop answers; None when there is nothing."""
    path = "/api/v1/pop"
    if queue is not None:
        path += f"/queue/{quote(queue)}"
    if partition is not None:
        path += f"/partition/{quote(partition)}"
    answer = await http.get(path, params=_query(query))
    if answer.status_code == 204:
        assert answer.content == b""
        return None
    assert answer.status_code == 200, answer.text
    popped: Json = answer.json()
    assert popped["messages"]
    return popped


async def take(
    http: httpx.AsyncClient, queue: str | None = None, *, partition: str | None = None, **query: Any
) -> list[Json]:
    """The messages of a pop; an empty list when there are none."""
    popped = await pop(http, queue, partition=partition, **query)
    return [] if popped is None else popped["messages"]


def data(messages: Iterable[Json]) -> list[Any]:
    return [message["data"] for message in messages]


def ack_of(message: Json, status: str = "completed", **more: Any) -> Json:
    """The acknowledgement of a popped message."""
    return {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "consumerGroup": message["consumerGroup"],
        "status": status,
        **more,
    }


async def ack(http: httpx.AsyncClient, message: Json, status: str = "completed", **more: Any) -> Json:
    """Acknowledge one message; the one result."""
    answer = await http.post("/api/v1/ack", json=ack_of(message, status, **more))
    assert answer.status_code == 200, answer.text
    (result,) = answer.json()
    assert isinstance(result, dict)
    return result


async def ack_batch(http: httpx.AsyncClient, *acks: Json) -> list[Json]:
    answer = await http.post("/api/v1/ack/batch", json={"acknowledgments": acks})
    assert answer.status_code == 200, answer.text
    results: list[Json] = answer.json()
    assert [result["index"] for result in results] == list(range(len(acks)))
    return results


async def done(http: httpx.AsyncClient, *messages: Json) -> None:
    """Complete messages; all must be accepted."""
    results = await ack_batch(http, *(ack_of(message) for message in messages))
    assert all(result["success"] for result in results), results


async def transaction(http: httpx.AsyncClient, *operations: Json, **more: Any) -> Json:
    answer = await http.post("/api/v1/transaction", json={"operations": operations, **more})
    assert answer.status_code == 200, answer.text
    result: Json = answer.json()
    return result


async def extend(http: httpx.AsyncClient, lease: str, seconds: int = 60) -> Json:
    answer = await http.post(f"/api/v1/lease/{lease}/extend", json={"seconds": seconds})
    assert answer.status_code == 200, answer.text
    (result,) = answer.json()
    assert isinstance(result, dict)
    return result


async def dead(http: httpx.AsyncClient, queue: str, **query: Any) -> list[Json]:
    """The dead letters of a queue."""
    answer = await http.get("/api/v1/dlq", params=_query({"queue": queue, **query}))
    assert answer.status_code == 200, answer.text
    letters: list[Json] = answer.json()["messages"]
    return letters


def refused(answer: httpx.Response, status: int = 400) -> str:
    """The request was refused with that status and a reason."""
    assert answer.status_code == status, f"{answer.status_code}: {answer.text[:500]}"
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    assert isinstance(body["error"], str)
    assert body["error"].strip()
    return str(body["error"])


async def stored(database_url: str, queue: str) -> list[bytes]:
    """The payloads in the store, as they lie there."""
    connection = await asyncpg.connect(database_url)
    try:
        rows = await connection.fetch(
            "select m.payload from queen.messages m join queen.partitions p on p.id = m.partition_id "
            "join queen.queues q on q.id = p.queue_id where q.name = $1 order by m.id",
            queue,
        )
    finally:
        await connection.close()
    return [row["payload"] for row in rows]


async def until(true: Callable[[], bool], seconds: float = 5) -> None:
    """Wait for a sign; fail when it does not come."""
    async with asyncio.timeout(seconds):
        while not true():  # noqa: ASYNC110 - what is waited for has no event to wait on
            await asyncio.sleep(0.005)
