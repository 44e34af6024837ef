"""Whatever arrives: a JSON error or a faithful answer; never a 500, nothing half stored, the broker lives."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.acceptance.speaking import (
    Json,
    ack,
    data,
    done,
    pop,
    push,
    quote,
    refused,
    stored,
    take,
)
from tests.conftest import StartBroker

MIB = 1024 * 1024
POSTS = (
    "/api/v1/configure",
    "/api/v1/push",
    "/api/v1/ack",
    "/api/v1/ack/batch",
    "/api/v1/transaction",
    "/api/v1/traces",
)
ITEM: Json = {"queue": "q", "payload": 1}
ACK: Json = {"transactionId": "t", "partitionId": "1", "status": "completed"}
NAMES = [
    "a",
    " ",
    ".",
    "..",
    "😀" * 255,
    "שלום עולם",
    "‮rtl‬",
    "e\u0301\u0323 combining, é composed",
    "'; drop table queen.messages; --",
    'Robert"); drop schema queen cascade;--',
    "a/b//c",
    "100%",
    "%00 %2F %zz",
    "?a=b&c=d#e",
    "new\nline\r\n\ttab",
    "\x01\x1b\x7f\x85\u2028",
    "back\\slash $1 {} %s",
    "null",
    "\ufeffbom \uffff",
]


@pytest.fixture(autouse=True)
async def alive(http: httpx.AsyncClient) -> AsyncIterator[None]:
    """After each of these tests a good request works as ever."""
    yield
    await push(http, "a good queue", {"fine": True})
    (message,) = await take(http, "a good queue")
    assert message["data"] == {"fine": True}
    await done(http, message)


def each(*values: Any) -> tuple[Any, ...]:
    """Values of many types."""
    return values


async def post(http: httpx.AsyncClient, path: str, body: Any) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await http.post(path, content=content, headers={"content-type": "application/json"})


async def all_refused(http: httpx.AsyncClient, path: str, bodies: list[Any], status: int = 400) -> None:
    for body in bodies:
        answer = await post(http, path, body)
        shown = str(body)[:200]
        assert answer.status_code == status, f"{path} {shown}: {answer.status_code} {answer.text[:300]}"
        refused(answer, status)


# bodies


async def test_what_is_no_json(http: httpx.AsyncClient) -> None:
    bodies = [
        b"", b" ", b"\x00", b"hello", b"{", b'{"items', b'{"items":[', b"[]", b"null", b"1", b'"text"',
        b"{}{}", b"{'items': []}", b'{"items": [],}', b"\xff\xfe", b'\xef\xbb\xbf{"items":[]}', b"<xml/>",
        b"items=1", b'{"queue": "\xc3\x28"}', b'{"queue": "\xed\xa0\x80", "items": []}', b'{"a": 01}',
        b'{"queue": NaN}', b'{"items": Infinity}', b'{"acknowledgments": -Infinity}', b"/**/{}", b"true",
        b"[" * 100_000, b'{"a":' * 100_000, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ]  # fmt: skip
    for path in POSTS:
        await all_refused(http, path, bodies)


async def test_a_body_cut_anywhere(http: httpx.AsyncClient, database_url: str) -> None:
    whole = json.dumps(
        {"items": [{**ITEM, "payload": {"a": [1, "é😀", None]}, "transactionId": "t"}]}
    ).encode()
    for end in range(len(whole)):
        refused(await post(http, "/api/v1/push", whole[:end]))
    assert await stored(database_url, "q") == []


async def test_wrong_types_in_a_push(http: httpx.AsyncClient, database_url: str) -> None:
    bad_items: list[Any] = [None, 1, "x", [], {}, {"queue": "q"}, {"payload": 1}]
    for field, values in {
        "queue": each(None, 1, True, [], {}, "", "x" * 256, "x" * 10_000, "a\0b"),
        "partition": each(None, 1, True, [], {}, "", "x" * 256, "a\0b"),
        "transactionId": each(1, True, [], {}, "", "x" * 256, "x" * 10_000, "a\0b"),
        "traceId": each(1, True, [], {}, "", "x" * 256, "a\0b"),
    }.items():
        bad_items += [{**ITEM, field: value} for value in values]
    # One bad item, wherever it stands, and none of the batch is stored.
    bodies: list[Any] = [{"items": value} for value in each(None, 1, "x", {}, [[]])]
    bodies += [{"items": [ITEM, bad, ITEM]} for bad in bad_items]
    bodies += [{"items": [bad]} for bad in bad_items]
    await all_refused(http, "/api/v1/push", bodies)
    operations = [[{"type": "push", "items": [ITEM, bad]}] for bad in bad_items]
    await all_refused(http, "/api/v1/transaction", [{"operations": o} for o in operations])
    assert await stored(database_url, "q") == []


async def test_wrong_types_in_a_configure(http: httpx.AsyncClient) -> None:
    numbers = (
        "leaseTime", "retryLimit", "retryDelay", "ttl", "maxSize", "priority", "delayedProcessing",
        "windowBuffer", "retentionSeconds", "completedRetentionSeconds", "maxWaitTimeSeconds",
    )  # fmt: skip
    flags = ("retentionEnabled", "encryptionEnabled", "deadLetterQueue", "dlqAfterMaxRetries")
    bodies: list[Any] = [{"queue": q} for q in each(None, 1, [], {}, "", "x" * 256, "\0")]
    bodies += [{"queue": "q", "namespace": n} for n in each(1, [], {}, "x" * 256, "\0")]
    bodies += [{"queue": "q", "task": n} for n in each(1, [], {}, "x" * 256, "\0")]
    bodies += [{"queue": "q", "options": o} for o in each(1, "x", [], True)]
    no_numbers = each(None, "1", 1.5, True, [], {}, 10**19, -(10**7))
    for name, value in itertools.product(numbers, no_numbers):
        bodies.append({"queue": "q", "options": {name: value}})
    for name, value in itertools.product(flags, each(None, "true", 1, 0, [], {})):
        bodies.append({"queue": "q", "options": {name: value}})
    bodies.append({"queue": "q", "options": {"leaseTime": 0}})
    await all_refused(http, "/api/v1/configure", bodies)
    answer = await http.delete("/api/v1/resources/queues/q")
    assert answer.json()["existed"] is False  # nothing was made on the way


async def test_the_largest_options_work(http: httpx.AsyncClient) -> None:
    most = 2_000_000_000
    options = {
        "leaseTime": 2_000_000, "retryLimit": most, "retryDelay": most, "ttl": most, "maxSize": 2**62,
        "priority": 1_000_000, "retentionEnabled": True, "retentionSeconds": most,
        "completedRetentionSeconds": most, "maxWaitTimeSeconds": most,
    }  # fmt: skip
    assert (await post(http, "/api/v1/configure", {"queue": "q", "options": options})).status_code == 201
    await push(http, "q", 1)
    (message,) = await take(http, "q")
    await ack(http, message, "failed")
    for option in ("delayedProcessing", "windowBuffer"):
        body = {"queue": option, "options": {option: most}}
        assert (await post(http, "/api/v1/configure", body)).status_code == 201
        await push(http, option, 1)
        assert await take(http, option) == []


async def test_wrong_types_in_an_ack(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1, 2)
    (message,) = await take(http, "q")
    bad: list[Any] = [{}, {"transactionId": "t"}, {"partitionId": "1"}]
    for field, values in {
        "transactionId": each(None, 1, [], "", "x" * 256, "\0"),
        "partitionId": each(None, 1, [], "", "x" * 256, "\0"),
        "status": each(None, 1, "", "done", "COMPLETED", True),
        "error": each(1, [], {}, "x" * 100_000),
        "consumerGroup": each(1, [], "x" * 256, "\0"),
        "leaseId": each(1, [], "x" * 256, "\0"),
    }.items():
        bad += [{**ACK, field: value} for value in values]
    await all_refused(http, "/api/v1/ack", bad)
    good = {"transactionId": message["transactionId"], "partitionId": message["partitionId"]}
    await all_refused(http, "/api/v1/ack/batch", [{"acknowledgments": [good, b]} for b in [None, 1, *bad]])
    await all_refused(http, "/api/v1/ack/batch", [{"acknowledgments": a} for a in each(None, 1, "x", {})])
    operations: list[Any] = [
        None,
        1,
        {},
        {"type": "pop"},
        {"type": None},
        *({"type": "ack", **b} for b in bad),
    ]
    await all_refused(
        http, "/api/v1/transaction", [{"operations": [{"type": "ack", **good}, o]} for o in operations]
    )
    await all_refused(http, "/api/v1/transaction", [{"operations": o} for o in each(None, 1, "x", {})])
    for leases in each(1, "x", [1], [None], {}):
        body = {"operations": [{"type": "ack", **good}], "requiredLeases": leases}
        refused(await post(http, "/api/v1/transaction", body))
    for seconds in each(None, "60", 0, -1, 1.5, 10**20, True, []):
        refused(await post(http, f"/api/v1/lease/{message['leaseId']}/extend", {"seconds": seconds}))
    assert await take(http, "q") == []  # none of it has moved the lease
    assert (await ack(http, message))["success"] is True


async def test_odd_ids_are_simply_not_there(http: httpx.AsyncClient) -> None:
    for partition in (
        "0",
        "-1",
        "9" * 18,
        "9" * 30,
        "1e3",
        "१",
        "' or 1=1",
        "00000000-0000-0000-0000-000000000000",
    ):
        answer = await post(http, "/api/v1/ack", {**ACK, "partitionId": partition})
        assert answer.status_code == 200
        assert answer.json()[0]["success"] is False
        trace = {"transactionId": "t", "partitionId": partition, "data": {}}
        assert (await post(http, "/api/v1/traces", trace)).status_code in (201, 400, 404)
    for lease in ("x", "1", "{", "' or 1=1", "é", "0" * 32):
        answer = await post(http, f"/api/v1/lease/{quote(lease)}/extend", {})
        assert answer.status_code == 200
        assert answer.json()[0]["success"] is False


async def test_fields_we_do_not_know_are_no_error(http: httpx.AsyncClient) -> None:
    """Newer clients may say more than we understand."""
    body = {"items": [{**ITEM, "later": {"a": 1}}], "later": [1]}
    assert (await post(http, "/api/v1/push", body)).status_code == 201
    assert (await http.get("/api/v1/pop/queue/q?later=1&autopilot=true")).status_code == 200


async def test_of_a_key_given_twice_one_is_taken(http: httpx.AsyncClient) -> None:
    body = b'{"items":[{"queue":"one","queue":"two","payload":1}],"items":[{"queue":"q","payload":3}]}'
    answer = await post(http, "/api/v1/push", body)
    assert answer.status_code == 201
    (result,) = answer.json()
    assert result["queueName"] in ("one", "two", "q")


# sizes


async def test_too_many_items(http: httpx.AsyncClient, database_url: str) -> None:
    await all_refused(http, "/api/v1/push", [{"items": [ITEM] * 10_001}], 413)
    await all_refused(http, "/api/v1/ack/batch", [{"acknowledgments": [ACK] * 10_001}], 413)
    mixed = [{"type": "push", "items": [ITEM] * 10_000}, {"type": "ack", **ACK}]
    await all_refused(http, "/api/v1/transaction", [{"operations": mixed}], 413)
    assert await stored(database_url, "q") == []
    assert (await post(http, "/api/v1/push", {"items": [ITEM] * 10_000})).status_code == 201
    assert len(await stored(database_url, "q")) == 10_000
    assert len(await take(http, "q", batch=10_000)) == 10_000


@pytest.mark.parametrize("head", [b"content-length: 52428800", b"transfer-encoding: chunked"])
async def test_a_body_over_the_limit_costs_no_memory(start_broker: StartBroker, head: bytes) -> None:
    broker = await start_broker(max_body_bytes="1MiB")
    before = psutil.Process().memory_info().rss
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    piece = b"x" * MIB
    if head.endswith(b"chunked"):
        piece = b"%x\r\n%b\r\n" % (MIB, piece)

    async def send() -> None:
        writer.write(b"POST /api/v1/push HTTP/1.1\r\nhost: localhost\r\n" + head + b"\r\n\r\n")
        for _ in range(50):
            writer.write(piece)
            await writer.drain()

    sending = asyncio.create_task(send())
    answer = await asyncio.wait_for(reader.readuntil(b"}"), 20)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    await asyncio.gather(sending, return_exceptions=True)
    writer.transport.abort()
    assert psutil.Process().memory_info().rss - before < 24 * MIB
    async with httpx.AsyncClient(base_url=broker.address) as http:
        big = "x" * (MIB - 1000)
        await push(http, "q", big)
        assert data(await take(http, "q")) == [big]


# names


async def test_any_text_is_a_name(http: httpx.AsyncClient) -> None:
    for name in NAMES:
        await use_as_every_name(http, name)


async def use_as_every_name(http: httpx.AsyncClient, name: str) -> None:
    configured = await post(http, "/api/v1/configure", {"queue": name, "namespace": name, "task": name})
    assert configured.status_code == 201
    item = {"queue": name, "partition": name, "payload": name, "transactionId": name, "traceId": name}
    (pushed,) = (await post(http, "/api/v1/push", {"items": [item]})).json()
    assert (pushed["transaction_id"], pushed["trace_id"], pushed["queueName"]) == (name, name, name)
    for target in (
        pop(http, name, consumerGroup=name),
        pop(http, name, partition=name),
        pop(http, namespace=name, task=name, consumerGroup="g"),
    ):
        popped = await target
        assert popped is not None
        (message,) = popped["messages"]
        for field in ("queue", "partition", "transactionId", "traceId", "data"):
            assert message[field] == name
        result = await ack(http, message, "dlq", error=name)
        assert (result["success"], result["queueName"], result["partitionName"]) == (True, name, name)
    letters = await http.get("/api/v1/dlq", params={"queue": name, "consumerGroup": name, "partition": name})
    assert [letter["errorMessage"] for letter in letters.json()["messages"]] == [name]
    deleted = await http.delete(f"/api/v1/resources/queues/{quote(name)}")
    assert deleted.json() == {"deleted": True, "queue": name, "existed": True}


async def test_names_that_are_none(http: httpx.AsyncClient) -> None:
    long = "x" * 10_000
    surrogates = [b'"\\ud800"', b'"\\udc00x"', b'"\\ud800\\ud800"', b'"\\ud83dx"', b'"\\u0000"', b'"\x00"']
    for field in ("queue", "partition", "transactionId", "traceId"):
        fields = {"queue": b'"q"', "payload": b"1"}
        for bad in surrogates:
            pairs = {**fields, field: bad}.items()
            item = b",".join(b'"%b":%b' % (k.encode(), v) for k, v in pairs)
            refused(await post(http, "/api/v1/push", b'{"items":[{%b}]}' % item))
    for segment in ("", "%00", "a%00b", "%ff", "%c3%28", "%ed%a0%80", long, "x" * 256):
        for path in (f"/api/v1/pop/queue/{segment}", f"/api/v1/pop/queue/q/partition/{segment}"):
            answer = await http.get(path)
            refused(answer, 404 if answer.status_code == 404 and not segment else 400)
        if segment:
            refused(await http.delete(f"/api/v1/resources/queues/{segment}"))
    for query in ("namespace=%00", "namespace=%ff", f"namespace={long}", f"namespace=n&consumerGroup={long}"):
        refused(await http.get(f"/api/v1/pop?{query}"))


# queries


async def test_bad_queries(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1)
    for query in (
        "batch=abc", "batch=-1", "batch=0", "batch=1e9", "batch=1.5", "batch=", "batch=NaN", "batch=10001",
        "batch=" + "9" * 400, "batch=0x10", "batch=1;drop", "batch=%20", "partitions=0", "partitions=x",
        "partitions=10001", "partitions=-5", "timeout=NaN", "timeout=-1", "timeout=abc", "timeout=Infinity",
        "timeout=1e400", "wait=maybe", "wait=2", "autoAck=x", "subscriptionMode=%00",
        "subscriptionFrom=yesterday", "subscriptionFrom=2026-13-01",
        "subscriptionFrom=2026-01-01T25:00:00Z", "subscriptionFrom=0000-00-00", "subscriptionFrom=1e9",
        "subscriptionFrom=-1", "subscriptionFrom=" + "2" * 300, "subscriptionFrom=99999-01-01T00:00:00Z",
        "consumerGroup=%00", "consumerGroup=%ff", "consumerGroup=" + "x" * 256,
        "&".join(f"a{n}=1" for n in range(200)),
    ):  # fmt: skip
        answer = await http.get(f"/api/v1/pop/queue/q?{query}")
        assert answer.status_code == 400, f"{query[:80]}: {answer.status_code} {answer.text[:300]}"
        refused(answer)
    assert data(await take(http, "q", consumerGroup="g")) == [1]
    assert data(await take(http, "q")) == [1]  # nobody has taken it


@pytest.mark.parametrize("digits", [20, 400])
async def test_a_timeout_beyond_all_numbers(http: httpx.AsyncClient, digits: int) -> None:
    await push(http, "q", 1)
    answer = await http.get(f"/api/v1/pop/queue/q?wait=true&timeout={'9' * digits}")
    assert answer.status_code in (200, 400), answer.text


async def test_timestamps_at_the_edges_of_time(http: httpx.AsyncClient) -> None:
    await push(http, "q", 1)
    for n, (since, found) in enumerate(
        [("0001-01-01T00:00:00Z", [1]), ("9999-12-31T23:59:59.999999Z", []), ("2001-01-01", [1])]
    ):
        assert data(await take(http, "q", consumerGroup=str(n), subscriptionFrom=since)) == found
    for since in ("0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-12:00"):
        answer = await http.get("/api/v1/pop/queue/q", params={"subscriptionFrom": since})
        assert answer.status_code in (200, 204, 400), answer.text


async def test_bad_queries_of_the_dead_letters(http: httpx.AsyncClient) -> None:
    for query in ("limit=abc", "limit=-1", "offset=-1", "offset=x", "from=yesterday", "to=x", "queue=%00"):
        refused(await http.get(f"/api/v1/dlq?{query}"))


# routes


async def test_unknown_routes_and_methods(http: httpx.AsyncClient) -> None:
    for path in (
        "/api",
        "/api/v1",
        "/api/v1/",
        "/api/v1/nothing",
        "/api/v1/push/",
        "/api/v2/push",
        "/%00",
    ):
        refused(await http.get(path), 404)
    for method, path, allowed in (
        ("GET", "/api/v1/push", "POST"),
        ("PUT", "/api/v1/configure", "POST"),
        ("PUT", "/api/v1/pop/queue/q", "GET"),
        ("HEAD", "/api/v1/pop/queue/q", "POST"),
        ("PATCH", "/api/v1/ack", "POST"),
        ("DELETE", "/api/v1/pop", "GET"),
        ("OPTIONS", "/api/v1/transaction", "POST"),
    ):
        answer = await http.request(method, path)
        assert answer.status_code == 405
        if method != "HEAD":
            refused(answer, 405)
        assert allowed in answer.headers["allow"].split(", ")


# payloads


def payload_of(answer: httpx.Response) -> bytes:
    """The one payload of a pop, byte for byte."""
    assert answer.status_code == 200, answer.text
    return answer.content.partition(b'"data":')[2].rpartition(b',"createdAt"')[0]


PAYLOADS = [
    b"null", b"true", b"false", b"0", b"-0", b"-0.0", b'""', b"[]", b"{}", b"[null]", b'{"":""}',
    b"1e400", b"-1E-400", b"1" + b"0" * 400, b"0.1" + b"0" * 300 + b"1", b"123456789012345678901234567890",
    b'"\\u0000"', b'{"\\u0000": "a\\u0000b"}', b'"\\/\\b\\f\\n\\r\\t\\"\\\\"', '"é😀\u2028\x7f"'.encode(),
    b'"\\ud83d\\ude00"', b'{"a":1,"a":2}', b'{ "spaces" : [ 1 , 2 ] }', b"[" * 200 + b"]" * 200,
    b'"' + b"x" * MIB + b'"', '"‮rtl e\u0301"'.encode(), b'"\',\\"createdAt\\":null"',
]  # fmt: skip


async def test_every_payload_comes_out_as_it_went_in(http: httpx.AsyncClient) -> None:
    for n, payload in enumerate(PAYLOADS):
        answer = await post(
            http, "/api/v1/push", b'{"items":[{"queue":"q%d","payload": %b }]}' % (n, payload)
        )
        assert answer.status_code == 201, payload[:80]
        assert payload_of(await http.get(f"/api/v1/pop/queue/q{n}")) == payload


async def test_what_is_no_payload(http: httpx.AsyncClient, database_url: str) -> None:
    for bad in (
        b"", b"NaN", b"Infinity", b"-Infinity", b"[NaN]", b'{"a":Infinity}', b"undefined", b"01", b"1.",
        b"+1", b"0x10", b"'a'", b'"a', b'"\x00"', b'"\n"', b'"\\x"', b'"\\u12"', b"[1,]", b'{"a":1,}',
        b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000 + b"1" + b"}" * 100_000, b'"\xff"', b'"\xc3"',
        b'"\xed\xa0\x80"', b'"\xf4\x90\x80\x80"', b"1 2", b"tru", b'"\\ud800"', b'"\\udc00"', b'["\\ud800x"]',
        b'{"\\ud800": 1}', b".5", b"{a:1}",
    ):  # fmt: skip
        body = b'{"items":[{"queue":"q","payload":1},{"queue":"q","payload":%b}]}' % bad
        answer = await post(http, "/api/v1/push", body)
        assert answer.status_code == 400, f"{bad[:40]!r}: {answer.status_code}"
        refused(answer)
    assert await stored(database_url, "q") == []


# random


TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
    max_leaves=20,
)
NAME = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=255)
_numbers = itertools.count()
random_input = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@random_input
@given(payloads=st.lists(st.tuples(JSON, st.booleans()), min_size=1, max_size=20))
async def test_random_payloads_come_out_as_they_went_in(
    http: httpx.AsyncClient, payloads: list[tuple[Any, bool]]
) -> None:
    queue = f"random {next(_numbers)}"
    texts = [json.dumps(payload, ensure_ascii=ascii_only) for payload, ascii_only in payloads]
    items = ",".join(f'{{"queue":"{queue}","payload":{text}}}' for text in texts)
    assert (await post(http, "/api/v1/push", f'{{"items":[{items}]}}'.encode())).status_code == 201
    answer = await http.get(f"/api/v1/pop/queue/{queue}?batch=100&autoAck=true")
    assert data(answer.json()["messages"]) == [payload for payload, _ in payloads]
    at = 0
    for text in texts:
        at = answer.content.index(b'"data":' + text.encode() + b',"createdAt"', at) + 1


@random_input
@given(queue=NAME, partition=NAME, transaction=NAME, group=NAME)
async def test_random_names(
    http: httpx.AsyncClient, queue: str, partition: str, transaction: str, group: str
) -> None:
    await push(http, queue, 1, partition=partition, ids=[transaction])
    (message,) = await take(http, queue, partition=partition, consumerGroup=group)
    assert (message["queue"], message["partition"]) == (queue, partition)
    assert (message["transactionId"], message["consumerGroup"]) == (transaction, group)
    await done(http, message)
    assert (await http.delete(f"/api/v1/resources/queues/{quote(queue)}")).json()["existed"] is True


@random_input
@given(body=st.dictionaries(st.sampled_from(["items", "queue", "options", "acknowledgments"]), JSON) | JSON)
async def test_random_bodies_are_refused_or_answered(http: httpx.AsyncClient, body: Any) -> None:
    for path in POSTS:
        answer = await post(http, path, body)
        assert answer.status_code in (200, 201, 400), f"{path}: {answer.status_code} {answer.text[:200]}"
