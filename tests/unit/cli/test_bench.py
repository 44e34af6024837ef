"""The pure parts of ``queen bench``: percentiles, addresses, requests, answers in pieces."""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from queenstream.cli.bench.connections import Connection, Tally, answer_size
from queenstream.cli.bench.display import Meter, summarize
from queenstream.cli.bench.end_to_end import Flight
from queenstream.cli.bench.histogram import Histogram, bucket_of, middle_of
from queenstream.cli.bench.load import Pace, Popped, Push, ack_request, push_template, text_payload
from queenstream.cli.support.target import parse_target, refusal
from queenstream.errors import ConfigError

TARGET = parse_target("http://broker:6632")


@given(st.integers(0, 2**42 - 1))
def test_a_bucket_stands_for_its_values_to_three_digits(value: int) -> None:
    assert abs(middle_of(bucket_of(value)) - value) <= value * 0.0005


def test_buckets_rise_without_gaps() -> None:
    edges = sorted({2**bit + step for bit in range(42) for step in (-1, 0, 1)} | set(range(5000)))
    buckets = [bucket_of(value) for value in edges]
    assert buckets == sorted(buckets)
    assert {bucket_of(value) for value in range(8192)} == set(range(bucket_of(8191) + 1))


@given(st.lists(st.floats(1e-6, 100), min_size=1, max_size=300), st.floats(0, 1))
def test_quantiles_are_those_of_the_sorted_values(values: list[float], share: float) -> None:
    times = Histogram()
    for value in values:
        times.add(value)
    exact = sorted(values)[min(max(math.ceil(share * len(values)), 1), len(values)) - 1]
    assert times.quantiles(share)[0] == pytest.approx(exact, rel=0.001, abs=1e-9)
    assert times.highest == pytest.approx(max(values), abs=2e-9)


def test_many_values_take_no_more_memory_than_few() -> None:
    times = Histogram()
    before = len(times._counts)
    drawn = random.Random(1)
    for _ in range(100_000):
        times.add(drawn.lognormvariate(-6, 1.5))
    assert len(times._counts) == before
    assert times.count == 100_000
    assert times.quantiles(0.5)[0] == pytest.approx(math.exp(-6), rel=0.02)


def test_values_out_of_range_and_none() -> None:
    times = Histogram()
    assert times.quantiles(0.5, 0.99) == [0.0, 0.0]
    assert times.highest == 0.0
    times.add(-1)
    times.add(1e9)
    low, high = times.quantiles(0.1, 1)
    assert low == 0.0
    assert high == pytest.approx(2**42 / 1e9, rel=0.001)


@pytest.mark.parametrize(
    ("url", "host", "port", "tls", "prefix"),
    [
        ("http://127.0.0.1:6632", "127.0.0.1", 6632, False, ""),
        ("localhost:7000", "localhost", 7000, False, ""),
        ("https://queen.example.com/broker/", "queen.example.com", 443, True, "/broker"),
        ("http://[::1]:6632", "::1", 6632, False, ""),
    ],
)
def test_addresses(url: str, host: str, port: int, tls: bool, prefix: str) -> None:
    target = parse_target(url)
    assert (target.host, target.port, target.tls, target.prefix) == (host, port, tls, prefix)
    assert parse_target(target.url) == target


@pytest.mark.parametrize("url", ["ftp://x", "http://", "http://x:port", "http://x/?a=1", "http://x/a b"])
def test_bad_addresses(url: str) -> None:
    with pytest.raises(ConfigError, match="--url"):
        parse_target(url)


def test_secrets_are_not_repeated() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_target("http://ada:secret@x")
    assert "secret" not in str(caught.value)
    with pytest.raises(ConfigError) as caught:
        parse_target("http://x", "sec\r\nret")
    assert "sec\r\nret" not in str(caught.value)
    target = parse_target("http://x", "tok-en")
    assert "tok-en" not in repr(target)
    assert target.hide("the token tok-en is bad") == "the token *** is bad"
    assert b"\r\nAuthorization: Bearer tok-en\r\n" in target.request("GET", "/")


def parts_of(request: bytes) -> tuple[bytes, Any]:
    head, body = request.split(b"\r\n\r\n", 1)
    assert f"Content-Length: {len(body)}\r\n".encode() in head + b"\r\n"
    return head, msgspec.json.decode(body)


@pytest.mark.parametrize("queue", ["bench", 'it"s 100 %b', "größe"])
def test_a_push_is_what_it_says(queue: str) -> None:
    role = Push(1, 3, partitions=2, queue=queue, payload=50)
    ids = (b"a" * 36, b"b" * 36, b"c" * 36)
    head, body = parts_of(push_template(TARGET, role, 1, 3) % ids)
    assert head.startswith(b"POST /api/v1/push HTTP/1.1\r\nHost: broker:6632\r\n")
    assert [item["transactionId"] for item in body["items"]] == [name.decode() for name in ids]
    assert [item["partition"] for item in body["items"]] == ["p1", "p0", "p1"]
    assert {item["queue"] for item in body["items"]} == {queue}
    assert body["items"][0]["payload"] == {"d": "x" * 42}
    assert len(text_payload(50)) == 50


def test_an_ack_repeats_the_ids_as_they_came() -> None:
    popped = {
        "partitionId": "7",
        "leaseId": None,
        "messages": [{"transactionId": 'a"b'}, {"transactionId": "ä"}],
    }
    decoded = msgspec.json.decode(msgspec.json.encode(popped), type=Popped)
    _, body = parts_of(ack_request(TARGET, decoded, 'my "group"'))
    rest = {"partitionId": "7", "leaseId": None, "status": "completed"}
    assert body == {
        "consumerGroup": 'my "group"',
        "acknowledgments": [{"transactionId": 'a"b', **rest}, {"transactionId": "ä", **rest}],
    }


ANSWERS = [
    b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nX: content-length: 99\r\nCONTENT-Length:5  \r\nServer: x\r\n\r\nhello",
    b"HTTP/1.1 204 No Content\r\nServer: x\r\n\r\n",
]


class Listener(Connection):
    """Keeps what it is told."""

    def __init__(self) -> None:
        super().__init__(Tally(10))
        self.heard: list[bytes] = []

    def answered(self, data: bytes) -> None:
        self.heard.append(data)


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("piece", [1, 2, 7, 1000])
async def test_answers_come_whole_and_in_pieces(answer: bytes, piece: int) -> None:
    listener = Listener()
    for _ in range(2):
        for at in range(0, len(answer), piece):
            listener.data_received(answer[at : at + piece])
    assert listener.heard == [answer, answer]
    assert not listener.tally.errors


@pytest.mark.parametrize("answer", [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"x" * 70_000])
async def test_an_answer_without_an_end_is_an_error(answer: bytes) -> None:
    listener = Listener()
    listener.data_received(answer)
    assert (listener.tally.errors, listener.finished) == (1, True)


def test_the_size_is_not_known_before_the_head_is_whole() -> None:
    assert answer_size(ANSWERS[0][:-6]) == 0
    assert answer_size(ANSWERS[0][:-5]) == len(ANSWERS[0])


def test_a_pace_holds_the_rate_and_makes_up_for_nothing() -> None:
    pace = Pace(1000)
    assert [round(pace.take(100, 50.0), 6) for _ in range(3)] == [0, 0.1, 0.2]
    assert pace.take(100, 60.0) == 0
    assert round(pace.take(100, 60.05), 6) == 0.05


def test_a_message_is_lost_when_it_was_answered_and_never_came() -> None:
    flight = Flight()
    early, late, never, refused = (flight.depart() for _ in range(4))
    assert flight.arrive(early)  # before the push was answered
    for number in (early, late, never):
        flight.answered(number)
    assert flight.missing == 2
    assert flight.arrive(late)
    assert not flight.arrive(late)
    assert (flight.sent, flight.missing, flight.repeated) == (4, 1, 1)
    assert flight.arrive(refused), "nobody knows whether it was stored"


async def test_waits_end_when_told() -> None:
    tally = Tally(3600)
    tally.open = 1
    asyncio.get_running_loop().call_later(0.02, tally.stop)
    await asyncio.wait_for(tally.until_end(), 5)
    assert tally.stopped
    asyncio.get_running_loop().call_later(0.02, tally.stop)
    asyncio.get_running_loop().call_later(0.04, tally.hurry)
    await asyncio.wait_for(tally.until_idle(), 5)
    assert tally.grace == 0
    tally.restart(3600)
    await asyncio.wait_for(tally.until_end(), 5)


async def test_a_summary_and_a_busy_generator() -> None:
    tally = Tally(2)
    tally.add(100, 0.010)
    tally.add(100, 0.030)
    tally.fail("first")
    tally.fail("second")

    def made(share: float) -> Any:
        return summarize(
            tally, command="produce", url="u", queue="q", payload_bytes=40_000, whole=True, cpu_share=share
        )

    summary = made(0.5)
    assert (summary.messages, summary.rate, summary.mb_per_second) == (200, 100.0, 0.02)
    assert summary.p50_ms == pytest.approx(10, rel=0.001)
    assert summary.max_ms == pytest.approx(30, rel=0.001)
    assert (summary.errors, summary.error, summary.warnings) == (2, "first", [])
    assert "the load generator is the bottleneck" in made(0.95).warnings[0]
    assert Meter("produce", tally).read().messages == 200


def test_what_a_refusal_says() -> None:
    assert refusal(401, b'{"error":"no token"}') == (
        "answered 401: no token; give a token with --token or QUEEN_TOKEN"
    )
    assert refusal(502, b"<html>\nBad gateway") == "answered 502: <html> Bad gateway"
    assert refusal(500, b"[1]") == "answered 500: [1]"
