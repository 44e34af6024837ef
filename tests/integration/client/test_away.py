"""Consumers whose broker is not there: they wait, they say so, and they end when they are told to."""

from __future__ import annotations

import asyncio
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from queenstream import AsyncMessage, AsyncQueen, Queen
from queenstream.broker.app import Broker
from queenstream.errors import BrokerUnreachable
from tests.conftest import StartBroker
from tests.integration.client.conftest import StartServer
from tests.integration.client.servers import Served, answer
from tests.integration.client.test_failover import PUSHED, nobody
from tests.integration.streams.streaming import eventually
from tests.processes import free_port


async def first_of_loop(queen: AsyncQueen) -> Any:
    async for message in queen.queue("q").group("loop").limit(1).messages():
        found = message.data
    return found


async def test_a_consumer_that_is_there_before_its_broker(start_broker: StartBroker) -> None:
    port = free_port()
    seen: list[int] = []
    async with AsyncQueen(f"http://127.0.0.1:{port}", timeout="200ms") as queen:
        asked = queen.queue("q").limit(1).each()
        consuming = asyncio.create_task(asked.consume(lambda message: seen.append(message.data)))
        looping = asyncio.create_task(first_of_loop(queen))
        await asyncio.sleep(0.5)  # longer than the timeout of a call
        broker = await start_broker(port=port)
        async with AsyncQueen(broker.address) as other:
            await other.queue("q").push(7)
        assert (await consuming).handled == 1
        assert await looping == 7
    assert seen == [7]


async def test_a_consumer_without_a_broker_can_be_stopped() -> None:
    def in_a_thread() -> float:
        stop = threading.Event()
        threading.Timer(0.3, stop.set).start()
        began = time.monotonic()
        with Queen(nobody()) as queen:
            assert queen.queue("q").concurrency(2).consume(lambda ms: None, stop=stop).handled == 0
        return time.monotonic() - began

    stop = asyncio.Event()
    async with AsyncQueen(nobody()) as queen:
        tasks = [
            asyncio.create_task(queen.queue("q").concurrency(2).consume(lambda ms: None, stop=stop)),
            asyncio.create_task(queen.consumer("s", "g").process(lambda window: None, stop=stop)),
        ]
        await asyncio.sleep(0.3)
        began = time.monotonic()
        stop.set()
        assert [result.handled for result in await asyncio.gather(*tasks)] == [0, 0]
        assert time.monotonic() - began < 5  # a call would take 30
    assert await asyncio.to_thread(in_a_thread) < 5


async def test_a_lease_that_nobody_could_renew_is_lost(start_broker: StartBroker) -> None:
    broker = await start_broker()
    stop = asyncio.Event()
    lost: list[bool] = []

    async def handle(message: AsyncMessage[Any]) -> None:
        await broker.stop()
        async with asyncio.timeout(10):
            while not message.lost:  # noqa: ASYNC110 - a flag is what a handler has
                await asyncio.sleep(0.02)
        lost.append(True)
        stop.set()

    async with AsyncQueen(broker.address, timeout="200ms") as queen:
        await queen.queue("q").config(lease_time=1).create()
        await queen.queue("q").push(1)
        result = await queen.queue("q").group("g").each().consume(handle, stop=stop)
    assert lost == [True]
    assert (result.handled, result.lost) == (1, 1)


async def test_on_another_event_loop(broker: Broker) -> None:
    """The same on uvloop: a push, a consumer that waits, a stop."""

    async def work() -> tuple[list[Any], float]:
        stop = asyncio.Event()
        seen: list[Any] = []
        async with AsyncQueen(broker.address) as queen:
            consuming = asyncio.create_task(
                queen.queue("q").concurrency(2).each().consume(lambda m: seen.append(m.data), stop=stop)
            )
            await queen.queue("q").push([1, 2, 3])

            async def all_done() -> bool:
                return (await queen.admin.queue("q")).messages.pending == 0 and len(seen) == 3

            await eventually(all_done)
            began = time.monotonic()
            stop.set()
            await consuming
            return seen, time.monotonic() - began

    def in_a_thread() -> tuple[list[Any], float]:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(asyncio.wait_for(work(), 20))

    seen, seconds = await asyncio.to_thread(in_a_thread)
    assert seen == [1, 2, 3]
    assert seconds < 5


# TLS


def certificate(folder: Path) -> Path:
    """A key, and a certificate for this machine that it signs itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    path = folder / "both.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, *private)
        + made.public_bytes(serialization.Encoding.PEM)
    )
    return path


async def test_tls(serve: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pem = certificate(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pem)
    server = Served(lambda first, body: "silence" if "/pop/" in first else answer(201, PUSHED))
    await server.start(tls=context)
    address = server.address.replace("http://127.0.0.1", "https://localhost") + "/behind/a/proxy"
    stop = threading.Event()

    def in_a_thread() -> float:
        with Queen(address) as queen:
            for _ in range(3):
                assert queen.queue("q").push(1).status == "queued"
            threading.Timer(0.2, stop.set).start()
            began = time.monotonic()
            queen.queue("q").consume(lambda ms: None, stop=stop)
            return time.monotonic() - began

    try:
        async with AsyncQueen(address, timeout="300ms") as stranger:
            with pytest.raises(BrokerUnreachable, match="certificate verify failed"):
                await stranger.queue("q").push(1)
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
        before = server.connections
        async with AsyncQueen(address) as queen:
            for _ in range(3):
                assert (await queen.queue("q").push(1)).status == "queued"
        assert await asyncio.to_thread(in_a_thread) < 5
        assert server.connections == before + 2  # kept and used again
        assert server.requests[0] == "POST /behind/a/proxy/api/v1/push HTTP/1.1"
    finally:
        await server.stop()
