"""Who may use a broker without a key: this machine and configured hosts, and no page of another site."""

from __future__ import annotations

import asyncio
import gc
import re
import time
from contextlib import AsyncExitStack
from dataclasses import replace

import httpx
import jwt
import pytest

from queenstream.broker.app import Broker
from queenstream.broker.http.routing import Request
from queenstream.errors import ConfigError
from tests.conftest import StartBroker
from tests.integration.rawhttp import MIB, Client
from tests.integration.test_roles import SECRET, token
from tests.processes import up
from tests.unit.broker.test_jwks import KeyServer, ed_jwk, ed_key

FOREIGN = (
    {"host": "evil.example"},
    {"host": "evil.example:6632"},
    {"host": "localhost.evil.example"},
    {"host": "localhost@evil.example"},
    {"host": "127.0.0.1.evil.example"},
    {"host": "10.0.0.1"},
    {"host": "0.0.0.0:6632"},
    {"host": "localhost, evil.example"},
    {"host": "[::1"},
    {"host": ""},
    {"origin": "https://evil.example"},
    {"origin": "null"},
    {"origin": "http://localhost:3000"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
)


async def test_no_route_serves_another_site(start_broker: StartBroker) -> None:
    broker = await start_broker(max_wait="100ms")
    wrong = []
    async with httpx.AsyncClient(base_url=broker.address, timeout=30) as http:
        for route in broker.router.routes:
            path = "/".join("1" if part.startswith("{") else part for part in route.path.split("/"))
            for headers in FOREIGN[0], FOREIGN[10], FOREIGN[13]:
                answer = await http.request(route.method, path, headers=headers)
                if answer.status_code != 403 or set(answer.json()) != {"error"}:
                    wrong.append(f"{route.method} {path} {headers}: {answer.status_code}")
    assert not wrong, "\n".join(wrong)


async def test_a_page_of_another_site_changes_and_consumes_nothing(
    http: httpx.AsyncClient, broker: Broker
) -> None:
    item = b'{"items":[{"queue":"orders","payload":1}]}'
    plain = {"content-type": "text/plain"}
    for headers in FOREIGN:
        answer = await http.post("/api/v1/push", content=item, headers=plain | headers)
        assert answer.status_code == 403, headers
    assert (await http.post("/api/v1/push", content=item, headers=plain)).status_code == 201
    for headers in FOREIGN:
        answer = await http.get("/api/v1/pop/queue/orders?autoAck=true", headers=headers)
        assert answer.status_code == 403, headers
    own = {"origin": f"http://127.0.0.1:{broker.port}", "sec-fetch-site": "same-origin"}
    popped = await http.get("/api/v1/pop/queue/orders?autoAck=true", headers=own)
    assert [message["data"] for message in popped.json()["messages"]] == [1]


async def test_the_names_of_this_machine_are_served(http: httpx.AsyncClient, broker: Broker) -> None:
    for host in (
        "localhost", "LOCALHOST:1", "localhost.", "localhost.:6632", "127.0.0.1", "127.8.9.1:80",
        "[::1]:6632", "[::ffff:127.0.0.1]",
    ):  # fmt: skip
        answer = await http.get("/health", headers={"host": host})
        assert answer.status_code == 200, (host, answer.text)
    own = {"host": "localhost:5173", "origin": "http://LOCALHOST:5173"}  # the console's development server
    assert (await http.get("/api/v1/status", headers=own)).status_code == 200
    typed = {
        "sec-fetch-site": "none",
        "sec-fetch-mode": "navigate",
    }  # an address that was typed or a bookmark
    assert (await http.get("/", headers=typed)).status_code == 200


async def test_configured_hosts_are_served(start_broker: StartBroker) -> None:
    broker = await start_broker(allow_host=["queen.example.com", "Broker", "fd00::7"])
    async with httpx.AsyncClient(base_url=broker.address) as http:
        for host in ("queen.example.com", "QUEEN.example.com.:443", "broker:6632", "[fd00::7]:6632"):
            assert (await http.get("/health", headers={"host": host})).status_code == 200, host
        behind = {"host": "queen.example.com", "origin": "https://queen.example.com"}
        assert (await http.get("/health", headers=behind)).status_code == 200
        refused = await http.get("/health", headers={"host": "www.example.com"})
        assert refused.status_code == 403
        assert "--allow-host www.example.com" in refused.json()["error"]


async def test_what_the_request_line_names_counts(broker: Broker) -> None:
    async def ask(request: bytes) -> int:
        async with Client.connected(broker.port) as client:
            return (await client.ask(request)).status

    assert await ask(b"GET http://localhost/health HTTP/1.1\r\nHost: localhost\r\n\r\n") == 200
    assert await ask(b"GET http://evil.example/health HTTP/1.1\r\nHost: evil.example\r\n\r\n") == 403
    assert await ask(b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n") == 400
    assert await ask(b"GET http://localhost/health HTTP/1.1\r\nHost: evil.example\r\n\r\n") == 400
    assert await ask(b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n") == 403
    assert await ask(b"GET /health HTTP/1.0\r\n\r\n") == 403


async def test_with_a_key_tokens_decide_and_not_hosts(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret="x" * 32)
    async with httpx.AsyncClient(base_url=broker.address) as http:
        for headers in FOREIGN[0], FOREIGN[10], FOREIGN[13]:
            assert (await http.get("/health", headers=headers)).status_code == 200
            assert (await http.get("/api/v1/status", headers=headers)).status_code == 401


async def test_a_refused_body_is_not_awaited(broker: Broker) -> None:
    async with Client.connected(broker.port) as client:
        head = b"POST /api/v1/push HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 9000000\r\n"
        assert (await client.ask(head + b"\r\n")).status == 403
        assert await client.ended()
    async with Client.connected(broker.port) as client:
        head = b"POST /api/v1/push HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 5\r\n"
        assert (await client.ask(head + b"Expect: 100-continue\r\n\r\n")).status == 403
    async with Client.connected(broker.port) as client:  # a small body is skipped: the connection stays
        head = b"POST /api/v1/push HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 5\r\n\r\n12345"
        assert (await client.ask(head)).status == 403
        assert (await client.ask(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")).status == 200


# Other machines


@pytest.mark.parametrize(("host", "local"), [("0.0.0.0", "127.0.0.1"), ("::", "[::1]")])
async def test_other_machines_are_served_with_a_key_or_with_insecure(
    start_broker: StartBroker, host: str, local: str
) -> None:
    with pytest.raises(ConfigError, match=r"queen keys new.*--insecure"):
        await start_broker(host=host)
    secured = await start_broker(host=host, auth_secret="x" * 32)
    insecure = await start_broker(host=host, insecure=True)
    async with httpx.AsyncClient() as http:
        assert (await http.get(f"http://{local}:{insecure.port}/api/v1/system/me")).json()["insecure"] is True
        assert (await http.get(f"http://{local}:{secured.port}/api/v1/system/me")).status_code == 401
        # Rebinding needs a name: an address is served, a name is not.
        url = f"http://{local}:{insecure.port}/health"
        assert (await http.get(url, headers={"host": "192.168.1.5:6632"})).status_code == 200
        assert (await http.get(url, headers={"host": "evil.example"})).status_code == 403


def test_queen_up_refuses_and_warns() -> None:
    with up("--host", "0.0.0.0", "--port", "0", "--ephemeral") as refused:
        assert refused.process.wait(30) == 2
        refused.stop()
        assert "queen keys new" in refused.stderr
    arguments = ("--host", "0.0.0.0", "--port", "0", "--ephemeral", "--insecure")
    with up(*arguments, "--allow-host", "broker", "--allow-host", "other") as running:
        port = running.ready().rpartition(":")[2]
        for host in ("broker", "other"):
            answer = httpx.get(f"http://127.0.0.1:{port}/health", headers={"host": host})
            assert answer.status_code == 200
        running.stop()
        assert "without a token" in running.stderr


# Tokens come before bodies


def push_head(length: int, *headers: str) -> bytes:
    lines = ["POST /api/v1/push HTTP/1.1", "Host: localhost", f"Content-Length: {length}", *headers]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def test_bodies_without_a_token_are_not_kept(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET, max_body_bytes="1MiB")
    broker.http.limits = replace(broker.http.limits, buffered_bytes=2 * MIB)
    paths = ["/api/v1/push", "/api/v1/push", "/health", "/nothing", "/console/app.js", "/api/v1/ack"]
    async with AsyncExitStack() as stack:
        requests = [("POST", path) for path in paths] + [("GET", "/health")] * 2
        for n, (method, path) in enumerate(requests):
            client = await stack.enter_async_context(Client.connected(broker.port))
            length = "Transfer-Encoding: chunked" if n == 1 else f"Content-Length: {MIB}"
            head = f"{method} {path} HTTP/1.1\r\nHost: x\r\n{length}\r\n\r\n".encode()
            await client.send(head + (b"80000\r\n" if n == 1 else b"") + b"x" * (MIB // 2))
        allowed = await stack.enter_async_context(Client.connected(broker.port))
        body = b'{"items":[{"queue":"q","payload":"' + b"x" * (MIB - 100) + b'"}]}'
        answer = await allowed.ask(
            push_head(len(body), f"Authorization: Bearer {token('read-write')}") + body
        )
        assert answer.status == 201, answer.body
        assert broker.http.body_bytes_held == 0


async def test_who_may_not_push_hears_so_before_the_body(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET)
    cases = {
        401: ("Accept: */*", "Authorization: x", f"Authorization: Bearer {token('admin', seconds=-99)}"),
        403: (f"Authorization: Bearer {token('read-only')}",),
    }  # fmt: skip
    for status, headers in cases.items():
        for header in headers:
            for more in ((), ("Expect: 100-continue",)):
                async with Client.connected(broker.port) as client:
                    assert (await client.ask(push_head(MIB, header, *more))).status == status
                    assert await client.ended()
    async with Client.connected(broker.port) as client:
        allowed = (f"Authorization: Bearer {token('read-write')}", "Expect: 100-continue")
        body = b'{"items":[{"queue":"q","payload":1}]}'
        assert (await client.ask(push_head(len(body), *allowed))).status == 100
        assert (await client.ask(body)).status == 201
        refused = await client.ask(push_head(5) + b"12345")  # small: the connection goes on
        assert refused.status == 401
        assert (await client.ask(b"GET /health HTTP/1.1\r\n\r\n")).status == 200
    metrics = broker.metrics.prometheus(broker.live()).decode()
    assert re.search(r'queen_requests_total\{[^}]*status="401"\} 7', metrics), metrics


async def test_a_body_waits_until_the_key_of_its_token_is_fetched(start_broker: StartBroker) -> None:
    now = int(time.time())
    good = jwt.encode(
        {"role": "admin", "exp": now + 60}, ed_key("a"), algorithm="EdDSA", headers={"kid": "a"}
    )
    bad = jwt.encode({"role": "admin", "exp": now + 60}, ed_key("b"), algorithm="EdDSA", headers={"kid": "a"})
    body = b'{"items":[{"queue":"q","payload":"' + b"x" * (2 * MIB) + b'"}]}'
    for more in ((), ("Expect: 100-continue",)):
        for signed, status in ((good, 201), (bad, 401)):
            server = KeyServer()
            try:
                server.publish(ed_jwk("a"))
                server.hold.clear()
                broker = await start_broker(auth_jwks_url=server.url)
                async with Client.connected(broker.port) as client:
                    sending = asyncio.create_task(
                        client.send(push_head(len(body), f"Authorization: Bearer {signed}", *more) + body)
                        if not more
                        else client.send(push_head(len(body), f"Authorization: Bearer {signed}", *more))
                    )
                    await asyncio.to_thread(server.asked.wait, 10)
                    assert broker.http.anonymous_bytes_held < 64 * 1024
                    server.hold.set()
                    answer = await client.answer()
                    if more and status == 201:
                        assert answer.status == 100
                        answer = await client.ask(body)
                    assert answer.status == status
                    await asyncio.wait([sending], timeout=10)
                assert (broker.http.body_bytes_held, broker.http.anonymous_bytes_held) == (0, 0)
            finally:
                server.stop()


async def test_a_request_leaves_nothing_to_the_garbage_collector(http: httpx.AsyncClient) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(50):
            assert (await http.get("/health/live")).status_code == 200
            assert (await http.get("/health/live", headers={"Host": "evil.example"})).status_code == 403
        left = sum(type(each) is Request for each in gc.get_objects())
    finally:
        gc.enable()
    assert left < 10
