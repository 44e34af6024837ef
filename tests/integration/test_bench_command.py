"""``queen bench`` as a user runs it, against a real broker: in a pipe, on a terminal, in trouble."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import os
import re
import signal
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from queenstream.broker.app import Broker
from queenstream.cli.bench.end_to_end import EndToEnd, Latency
from queenstream.cli.support.target import parse_target
from tests.conftest import StartBroker
from tests.integration.cli.running import forks
from tests.integration.test_roles import SECRET, token
from tests.processes import QUEEN, clean_environment, free_port


class Done:
    """A run that has ended."""

    def __init__(self, code: int | None, out: bytes, err: bytes) -> None:
        self.code, self.out, self.err = code, out.decode(), err.decode()

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def summary(self) -> dict[str, Any]:
        assert self.lines, self.err
        assert self.lines[-1]["type"] == "summary"
        return self.lines[-1]


async def started(*args: str, **environment: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        QUEEN, "bench", *args,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=clean_environment(**environment),
    )  # fmt: skip


async def bench(*args: str, **environment: str) -> Done:
    known = clean_environment(**environment)
    return Done(*await asyncio.wait_for(forks().run(("bench", *args), known, b""), 60))


async def queues(http: httpx.AsyncClient) -> dict[str, Any]:
    listed = (await http.get("/api/v1/resources/queues")).json()["queues"]
    return {queue["name"]: queue for queue in listed}


async def groups(http: httpx.AsyncClient) -> set[str]:
    return {group["name"] for group in (await http.get("/api/v1/consumer-groups")).json()}


async def drained(http: httpx.AsyncClient, queue: str, group: str = "counting") -> int:
    """How many messages the broker gives to a group."""
    count = 0
    params: dict[str, Any] = {"batch": 10_000, "partitions": 1000, "autoAck": True, "consumerGroup": group}
    while (answer := await http.get(f"/api/v1/pop/queue/{queue}", params=params)).status_code == 200:
        count += len(answer.json()["messages"])
    return count


async def test_produce_counts_what_the_broker_has(broker: Broker, http: httpx.AsyncClient) -> None:
    done = await bench(
        "produce", "-u", broker.address, "--seconds", "1.3", "--keep", "--queue", "a b%d",
        "--connections", "4", "--batch", "7", "--partitions", "5",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    progress, summary = done.lines[0], done.summary
    assert progress["type"] == "progress"
    assert 0 < progress["messages"] <= summary["messages"]
    assert (summary["errors"], summary["interrupted"], summary["queue"]) == (0, False, "a b%d")
    assert 0 < summary["p50_ms"] <= summary["p90_ms"] <= summary["p99_ms"] <= summary["p999_ms"]
    assert summary["p999_ms"] <= summary["max_ms"] < 1300
    assert summary["rate"] == pytest.approx(summary["messages"] / 1.3, rel=0.1)
    assert summary["mb_per_second"] == pytest.approx(summary["rate"] * 200 / 1e6, rel=0.01)
    assert await drained(http, "a%20b%25d") == summary["messages"]


async def test_a_fresh_queue_is_gone_at_the_end_and_a_rate_is_held(
    broker: Broker, http: httpx.AsyncClient
) -> None:
    done = await bench(
        "produce", "--seconds", "1", "--rate", "500", "--batch", "10", QUEEN_URL=broker.address
    )
    assert (done.code, done.err) == (0, "")
    assert 400 <= done.summary["messages"] <= 520
    assert done.summary["queue"].startswith("bench-")
    assert done.summary["queue"] not in await queues(http)


async def test_kept_if_asked(broker: Broker, http: httpx.AsyncClient) -> None:
    done = await bench("produce", "-u", broker.address, "--seconds", "0.3", "--keep", "--batch", "10")
    assert done.code == 0
    assert await drained(http, done.summary["queue"]) == done.summary["messages"] > 0


@pytest.mark.parametrize("flags", [(), ("--auto-ack",)])
async def test_consume_drains_what_it_filled(
    broker: Broker, http: httpx.AsyncClient, flags: tuple[str, ...]
) -> None:
    done = await bench(
        "consume", "-u", broker.address, "--messages", "3025", "--batch", "50", "--keep", *flags
    )
    assert (done.code, done.err) == (0, "")
    summary = done.summary
    assert (summary["filled"], summary["messages"], summary["errors"]) == (3025, 3025, 0)
    assert summary["mb_per_second"] == pytest.approx(summary["rate"] * 200 / 1e6, rel=0.01)
    assert await drained(http, summary["queue"]) == 3025, "another group sees them all"
    assert await drained(http, summary["queue"], summary["group"]) == 0, "ours has acknowledged them all"


async def test_consume_of_a_given_queue_takes_nothing_from_others(
    broker: Broker, http: httpx.AsyncClient
) -> None:
    items = [
        {"queue": "mine", "partition": str(n % 3), "payload": [n], "transactionId": f'say "{n}"'}
        for n in range(40)
    ]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201
    done = await bench("consume", "-u", broker.address, "--queue", "mine", "--seconds", "0.5")
    assert (done.code, done.err) == (0, "")
    assert done.summary["messages"] == 40
    assert done.summary["group"] not in await groups(http)
    assert (await http.get("/api/v1/pop/queue/mine")).status_code == 200
    missing = await bench("consume", "-u", broker.address, "--queue", "other", "--seconds", "0.5")
    assert missing.code == 1
    assert "there is no queue other" in missing.err


async def test_end_to_end_all_arrive(broker: Broker, http: httpx.AsyncClient) -> None:
    done = await bench("e2e", "-u", broker.address, "--seconds", "1", "--rate", "200")
    assert (done.code, done.err) == (0, "")
    summary = done.summary
    assert 150 <= summary["sent"] <= 200
    assert (summary["messages"], summary["lost"], summary["errors"]) == (summary["sent"], 0, 0)
    assert 0 < summary["p50_ms"] <= summary["max_ms"] < 2000
    assert summary["queue"] not in await queues(http)


async def test_end_to_end_in_a_given_queue_leaves_the_rest_alone(
    broker: Broker, http: httpx.AsyncClient
) -> None:
    items = [{"queue": "mine", "partition": "p1", "payload": n} for n in range(5)]
    assert (await http.post("/api/v1/push", json={"items": items})).status_code == 201
    done = await bench("e2e", "-u", broker.address, "--queue", "mine", "--seconds", "0.5", "--rate", "100")
    assert (done.code, done.err) == (0, "")
    assert done.summary["messages"] == done.summary["sent"] > 0
    assert await drained(http, "mine") == 5 + done.summary["sent"]
    assert not {name for name in await groups(http) if name.startswith("bench-")}


async def test_an_interrupt_ends_early_with_a_summary(broker: Broker, http: httpx.AsyncClient) -> None:
    process = await started(
        "produce", "-u", broker.address, "--seconds", "60", "--rate", "200", "--batch", "1"
    )
    assert process.stdout is not None
    first = await asyncio.wait_for(process.stdout.readline(), 30)
    process.send_signal(signal.SIGINT)
    out, err = await asyncio.wait_for(process.communicate(), 20)
    done = Done(process.returncode, first + out, err)
    assert (done.code, done.err) == (0, "")
    assert done.summary["interrupted"]
    assert done.summary["messages"] > 0
    assert done.summary["seconds"] < 30
    assert done.summary["queue"] not in await queues(http)


async def test_a_reader_that_goes_away_leaves_no_queue(broker: Broker, http: httpx.AsyncClient) -> None:
    line = f"{QUEEN} bench produce -u {broker.address} --seconds 30 --rate 100 --batch 1 | head -1"
    process = await asyncio.create_subprocess_shell(
        line, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=clean_environment()
    )
    out, err = await asyncio.wait_for(process.communicate(), 20)
    assert json.loads(out)["type"] == "progress"
    assert b"Traceback" not in err
    assert await queues(http) == {}


async def test_on_a_terminal(broker: Broker) -> None:
    main, side = os.openpty()
    process = await asyncio.create_subprocess_exec(
        QUEEN, "bench", "e2e", "-u", broker.address, "--seconds", "1", "--rate", "100",
        stdout=side, stderr=side, env=clean_environment(TERM="xterm", COLUMNS="100"),
    )  # fmt: skip
    os.close(side)

    def read() -> str:
        text = b""
        with contextlib.suppress(OSError):  # the other side is closed
            while piece := os.read(main, 65536):
                text += piece
        return text.decode()

    text = await asyncio.wait_for(asyncio.to_thread(read), 30)
    os.close(main)
    assert await process.wait() == 0
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    assert plain.count("messages/s now") >= 2, "it is drawn again and again"
    for row in ("latency p50", "p99.9", "max", "MB/s", "errors", "lost", "of a core"):
        assert row in plain
    assert not plain.lstrip().startswith("{")


async def test_a_table_in_a_pipe(broker: Broker) -> None:
    done = await bench("produce", "-u", broker.address, "--seconds", "0.3", "-o", "table", "--batch", "10")
    assert done.code == 0
    assert "messages/s\n" in re.sub(r" +\n", "\n", done.out)
    assert "\x1b" not in done.out


async def test_nobody_there() -> None:
    address = f"http://127.0.0.1:{free_port()}"
    for command in ("produce", "consume", "e2e"):
        done = await bench(command, "-u", address)
        assert (done.code, done.out) == (3, "")
        assert done.err.startswith(
            f"queen: no broker at {address}: the connection was refused; start one with"
        )
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ("--batch", "0"),
        ("-u", "ftp://x"),
        ("-o", "xml"),
        ("--batch", "10000", "--payload", "1000000"),
        ("--seconds", "x"),
    ],
)
async def test_wrong_usage(flags: tuple[str, ...]) -> None:
    done = await bench("produce", *flags)
    assert (done.code, done.out) == (2, "")


async def test_tokens(start_broker: StartBroker) -> None:
    broker = await start_broker(auth_secret=SECRET)
    headers = {"authorization": f"Bearer {token('admin')}"}
    flags = ("produce", "-u", broker.address, "--seconds", "0.3", "--batch", "10")
    wrong = token("admin", secret="x" * 40)
    async with httpx.AsyncClient(base_url=broker.address, headers=headers) as http:
        for more in ((), ("--queue", "mine")):
            refused = await bench(*flags, *more, "--token", wrong)
            assert refused.code == 1
            assert "answered 401" in refused.err
            assert "QUEEN_TOKEN" in refused.err
            assert refused.err.count("\n") == 1
            assert wrong not in refused.out + refused.err
        assert await queues(http) == {}
        good = await bench(*flags, QUEEN_TOKEN=token("admin"))
        assert (good.code, good.err) == (0, "")
        assert await queues(http) == {}
        # It may push, but not delete: said, not hidden.
        half = await bench(*flags, QUEEN_TOKEN=token("read-write"))
        assert half.code == 1
        assert half.summary["errors"] == 0
        assert f"queue {half.summary['queue']} could not be deleted" in half.err
        # It may look, but not push: the run ends at the first answer.
        looking = await bench(*flags, "--seconds", "30", "--queue", "mine", QUEEN_TOKEN=token("read-only"))
        assert looking.code == 1
        assert "answered 403" in looking.err
        assert looking.summary["seconds"] < 10


async def test_refused_pushes_are_errors(broker: Broker, http: httpx.AsyncClient) -> None:
    configured = await http.post("/api/v1/configure", json={"queue": "full", "options": {"maxSize": 5}})
    assert configured.status_code < 300
    done = await bench("produce", "-u", broker.address, "--queue", "full", "--seconds", "0.5")
    assert done.code == 1
    assert done.summary["errors"] > 0
    assert "answered 429" in done.summary["error"]
    assert "answered 429" in done.err


async def test_a_broker_that_loses_messages_is_found_out() -> None:
    """A server that says yes to every push and has nothing to give; its answers are odd, and in pieces."""

    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = re.search(rb"Content-Length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                if head.startswith(b"POST"):
                    for piece in (b"HTTP/1.1 201 Created\r\nCONTENT-", b"LENGTH: 2\r\n\r\n[", b"]"):
                        writer.write(piece)
                        await asyncio.sleep(0.005)
                else:
                    await asyncio.sleep(0.1)
                    writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(lie, "127.0.0.1", 0)
    target = parse_target(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    run = EndToEnd(target, Latency(rate=100, consumers=2, producers=4), 0.3)
    run.tally.grace = 0.3
    await run.connect()
    await run.run()
    assert run.flight.sent > 10
    assert run.flight.missing == run.tally.errors == run.flight.sent
    assert "did not arrive" in run.tally.error
    assert run.tally.count == 0
    server.close()
    await asyncio.sleep(0.15)


def certificate(folder: Path) -> tuple[Path, Path]:
    """One that is good for 127.0.0.1, signed by itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
        )
        .sign(key, hashes.SHA256())
    )
    chain, secret = folder / "chain.pem", folder / "key.pem"
    chain.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    secret.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return chain, secret


@contextlib.asynccontextmanager
async def behind_tls(port: int, chain: Path, key: Path) -> AsyncIterator[str]:
    """What a proxy does: TLS outside, plain inside. Gives the address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(chain, key)

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        with contextlib.suppress(OSError):
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pump(reader, inner_writer), pump(inner_reader, writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await asyncio.sleep(0.1)


async def test_https(broker: Broker, http: httpx.AsyncClient, tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    async with behind_tls(broker.port, chain, key) as address:
        flags = (
            "produce",
            "-u",
            address,
            "--seconds",
            "0.5",
            "--connections",
            "3",
            "--batch",
            "10",
            "--keep",
        )
        done = await bench(*flags, SSL_CERT_FILE=str(chain))
        assert (done.code, done.err) == (0, "")
        assert await drained(http, done.summary["queue"]) == done.summary["messages"] > 0
        unknown = await bench(*flags)
        assert unknown.code == 3
        assert "certificate" in unknown.err.lower()
