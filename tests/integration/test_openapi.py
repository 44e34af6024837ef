"""The document is valid and whole, and a live broker keeps to it under fire (schemathesis)."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from schemathesis.specs.openapi.definitions import OPENAPI_31

from queenstream.broker.api import ROUTES
from queenstream.broker.app import Broker
from queenstream.broker.http.openapi import document, role_name
from tests.conftest import StartBroker

LONG = os.environ.get("QUEENSTREAM_LONG") == "1"
CHECKS = (
    "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance,"
    "response_headers_conformance"
)

MADE = document(ROUTES, "1.2.3")
OPERATIONS = [
    pytest.param(path, method, operation, id=f"{method} {path}")
    for path, methods in MADE["paths"].items()
    for method, operation in methods.items()
]


def references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for child in node.values():
            yield from references(child)
    elif isinstance(node, list):
        for child in node:
            yield from references(child)


# The document


def test_it_is_openapi() -> None:
    jsonschema_rs.validate(OPENAPI_31, MADE)
    for schema in MADE["components"]["schemas"].values():
        jsonschema_rs.meta.validate({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema})


def test_every_route_is_in_it_and_nothing_else() -> None:
    listed = {(p, m.upper()): o for p, methods in MADE["paths"].items() for m, o in methods.items()}
    assert {key: o["x-role"] for key, o in listed.items()} == {
        (route.path, route.method): role_name(route.role) for route in ROUTES
    }
    identities = [o["operationId"] for o in listed.values()]
    assert len(set(identities)) == len(identities)


def test_references_lead_somewhere_and_nothing_lies_about() -> None:
    known = {f"#/components/schemas/{name}" for name in MADE["components"]["schemas"]}
    assert set(references(MADE)) == known


@pytest.mark.parametrize(("path", "method", "operation"), OPERATIONS)
def test_operations_are_whole(path: str, method: str, operation: dict[str, Any]) -> None:
    in_path = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"]
    assert in_path == re.findall(r"\{(\w+)\}", path)
    assert re.match(r"[A-Z].*\.$", operation["summary"]), "the handler's docstring is the summary"
    assert any(status.startswith("2") for status in operation["responses"])
    assert {"500", "503"} <= set(operation["responses"])
    public = operation["x-role"] == "public"
    assert operation["security"] == ([] if public else [{"bearer": []}])
    assert public or {"401", "403"} <= set(operation["responses"])
    if "requestBody" in operation:
        assert {"400", "413"} <= set(operation["responses"])
    for status, response in operation["responses"].items():
        if status >= "400" and not path.startswith("/health"):
            schema = response["content"]["application/json"]["schema"]
            assert schema == {"$ref": "#/components/schemas/ErrorBody"}


def test_what_a_query_takes() -> None:
    parameters = {p["name"]: p for p in MADE["paths"]["/api/v1/pop/queue/{queue}"]["get"]["parameters"]}
    assert parameters["queue"]["in"] == "path"
    assert parameters["batch"] == {
        "name": "batch", "in": "query", "required": False,
        "schema": {"type": "integer", "minimum": 1, "default": 1},
    }  # fmt: skip
    assert parameters["wait"]["schema"] == {"type": "boolean", "default": False}
    assert parameters["subscriptionMode"]["schema"] == {"type": "string"}
    assert "default" not in parameters["consumerGroup"]["schema"]
    assert parameters["consumerGroup"]["schema"]["type"] == "string"


def test_payloads_are_any_json_and_204_has_none() -> None:
    schemas = MADE["components"]["schemas"]
    assert schemas["PushItem"]["properties"]["payload"] == {}
    assert schemas["Message"]["properties"]["data"] == {}
    assert "content" not in MADE["paths"]["/api/v1/pop"]["get"]["responses"]["204"]
    extend = MADE["paths"]["/api/v1/lease/{lease}/extend"]["post"]
    assert extend["requestBody"]["required"] is False
    assert set(MADE["paths"]["/metrics"]["get"]["responses"]["200"]["content"]) == {
        "application/json", "text/plain",
    }  # fmt: skip


async def test_it_is_served(http: httpx.AsyncClient, broker: Broker) -> None:
    answer = await http.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == document(ROUTES, broker.version)


# The broker against its document


async def seed(address: str) -> dict[str, str]:
    """A queue with messages, a group and dead letters; gives the parameters that lead there."""
    async with httpx.AsyncClient(base_url=address) as http:
        await http.post("/api/v1/configure", json={"queue": "seeded", "namespace": "n", "task": "t"})
        items = [
            {"queue": "seeded", "partition": f"p{n % 3}", "payload": {"n": n}, "transactionId": f"t{n}"}
            for n in range(60)
        ]
        await http.post("/api/v1/push", json={"items": items})
        query = {"consumerGroup": "g", "batch": "5"}
        popped = (await http.get("/api/v1/pop/queue/seeded/partition/p0", params=query)).json()
        message = popped["messages"][0]
        about = {key: message[key] for key in ("transactionId", "partitionId", "leaseId", "consumerGroup")}
        for status in ("dlq", "completed"):
            await http.post("/api/v1/ack", json=about | {"status": status, "error": "seeded"})
        letters = (await http.get("/api/v1/dlq")).json() if _has("/api/v1/dlq") else {"messages": []}
        await http.post("/api/v1/traces", json=about | {"data": {}, "traceNames": ["seeded"]})
        return {
            "queue": "seeded",
            "group": "g",
            "partition": "p1",
            "partitionId": message["partitionId"],
            "transactionId": "t3",
            "namespace": "n",
            "task": "t",
            "name": "seeded",
            "lease": message["leaseId"],
            "id": letters["messages"][0]["id"] if letters["messages"] else "1",
        }


def _has(path: str) -> bool:
    return any(route.path == path for route in ROUTES)


async def schemathesis(address: str, config: Path, phases: str, examples: int, seconds: float) -> None:
    """Run it as a program: in this process it would need a loop and a warning filter of its own."""
    process = await asyncio.create_subprocess_exec(
        str(Path(sys.executable).parent / "schemathesis"), f"--config-file={config}", "run",
        f"{address}/openapi.json", f"--checks={CHECKS}", f"--max-examples={examples}",
        f"--phases={phases}", "--continue-on-failure", "--no-color", "--warnings=off",
        "--request-timeout=20", "--suppress-health-check=all",
        cwd=config.parent, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    try:
        output, _ = await asyncio.wait_for(process.communicate(), seconds)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise
    text = output.decode()
    assert process.returncode == 0, text[-20_000:]
    # It leaves out the route that it reads the document from.
    assert f"Tested: {len(ROUTES) - 1}\n" in text, text[:2_000]


@pytest.mark.slow
@pytest.mark.timeout(1800 if LONG else 120)
@pytest.mark.parametrize("seeded", [False, True], ids=["nothing there", "seeded"])
async def test_the_broker_keeps_to_it(
    seeded: bool, start_broker: StartBroker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever is sent: no 5xx, and every answer as documented."""
    broker = await start_broker(max_wait="50ms")  # long polls end, so nothing is left out
    config = tmp_path / "schemathesis.toml"
    found = await seed(broker.address) if seeded else {}
    lines = [f'"path.{name}" = "{value}"' for name, value in found.items()]
    config.write_text("\n".join(["[parameters]", *lines, ""]) if lines else "")
    # What is wrong in a request is found before anything is looked for: once is enough for the short form.
    phases = "coverage,fuzzing" if seeded or LONG else "fuzzing"
    await schemathesis(broker.address, config, phases, *((200, 1700) if LONG else (2, 90)))
    assert [r.getMessage() for r in caplog.records if r.levelname == "ERROR"] == []


async def test_a_number_beyond_any_float(http: httpx.AsyncClient) -> None:
    """Schemathesis stops at 64 bits; this one made the division by 1000 fail."""
    query = {"wait": "true", "timeout": "1" + "0" * 400}
    assert (await http.get("/api/v1/pop/queue/q", params=query)).status_code == 400
