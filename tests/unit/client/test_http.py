"""Requests as bytes, and answers from bytes, however they are cut."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from queenstream import errors
from queenstream.client._base import http
from queenstream.client._base.addresses import parse
from queenstream.client._base.http import (
    Answer,
    Parser,
    decoded,
    error_of,
    moment,
    path_of,
    query_of,
    request_bytes,
)
from queenstream.errors import BadAnswer

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n[1,2,3]"
CHUNKED = b"HTTP/1.1 201 Created\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n[1,\r\n4\r\n2,3]\r\n0\r\n\r\n"
NOTHING = b"HTTP/1.1 204 No Content\r\n\r\n"


# Requests


def test_a_request_with_a_body() -> None:
    sent = request_bytes(parse("http://a:1/x"), "POST", "/api/v1/push", b"{}", "token")
    head, body = sent.split(b"\r\n\r\n")
    first, *headers = head.split(b"\r\n")
    assert first == b"POST /x/api/v1/push HTTP/1.1"
    assert set(headers) == {
        b"Host: a:1",
        b"Accept: application/json",
        b"Authorization: Bearer token",
        b"Content-Type: application/json",
        b"Content-Length: 2",
    }
    assert body == b"{}"


def test_a_request_without_one() -> None:
    sent = request_bytes(parse("a:1"), "GET", "/health")
    assert sent == b"GET /health HTTP/1.1\r\nHost: a:1\r\nAccept: application/json\r\n\r\n"


def test_an_empty_body_is_a_body() -> None:
    assert b"Content-Length: 0\r\n\r\n" in request_bytes(parse("a:1"), "POST", "/x", b"")


def test_names_cannot_leave_their_place_in_a_path() -> None:
    assert path_of("queues", "a/b c?d#e%", "ü") == "/queues/a%2Fb%20c%3Fd%23e%25/%C3%BC"


def test_queries() -> None:
    when = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone(timedelta(hours=1)))
    query = query_of({"wait": True, "all": False, "n": 3, "group": None, "name": "a&b=c", "from": when})
    assert query.startswith("?wait=true&all=false&n=3&name=a%26b%3Dc&from=2026-01-02T")
    assert query_of({"x": None}) == ""


def test_a_moment_has_a_zone() -> None:
    assert moment("now") == "now"
    when = datetime(2026, 1, 2, tzinfo=UTC)
    assert datetime.fromisoformat(moment(when)) == when
    assert datetime.fromisoformat(moment(datetime(2026, 1, 2))).tzinfo is not None  # noqa: DTZ001


# Answers


@pytest.mark.parametrize("data", [PLAIN, CHUNKED, NOTHING], ids=["plain", "chunked", "nothing"])
def test_byte_by_byte_is_as_good_as_at_once(data: bytes) -> None:
    whole = Parser().feed(data)
    assert len(whole) == 1
    parser = Parser()
    found = [parser.feed(data[at : at + 1]) for at in range(len(data))]
    assert found[:-1] == [[]] * (len(data) - 1)
    assert found[-1] == whole


def test_what_is_in_an_answer() -> None:
    assert Parser().feed(PLAIN) == [Answer(200, b"[1,2,3]", True)]
    assert Parser().feed(CHUNKED) == [Answer(201, b"[1,2,3]", True)]
    assert Parser().feed(NOTHING) == [Answer(204, b"", True)]


def test_one_answer_after_the_other_on_one_connection() -> None:
    parser = Parser()
    for data in (PLAIN, NOTHING, CHUNKED, PLAIN):
        assert parser.feed(data) == Parser().feed(data)


def test_several_answers_at_once() -> None:
    parser = Parser()
    found = parser.feed(PLAIN + NOTHING + CHUNKED[:-3])
    assert found == [Answer(200, b"[1,2,3]", True), Answer(204, b"", True)]
    assert parser.feed(CHUNKED[-3:]) == [Answer(201, b"[1,2,3]", True)]


def test_the_server_says_whether_the_connection_stays() -> None:
    ending = PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
    (answer,) = Parser().feed(ending)
    assert not answer.keep
    (old,) = Parser().feed(PLAIN.replace(b"HTTP/1.1", b"HTTP/1.0"))
    assert not old.keep


def test_retry_after_belongs_to_its_own_answer() -> None:
    parser = Parser()
    busy = b"HTTP/1.1 503 Busy\r\nRetry-After: 2\r\nContent-Length: 0\r\n\r\n"
    assert parser.feed(busy) == [Answer(503, b"", True, 2.0)]
    assert parser.feed(PLAIN) == [Answer(200, b"[1,2,3]", True, None)]
    dated = busy.replace(b"2\r\n", b"Wed, 21 Oct 2026 07:28:00 GMT\r\n", 1)
    assert Parser().feed(dated) == [Answer(503, b"", True, None)]


@pytest.mark.parametrize("data", [b"SSH-2.0-OpenSSH\r\n", b"\x15\x03\x01\x00\x02", b"HTTP/9 what\r\n\r\n"])
def test_what_is_not_http(data: bytes) -> None:
    with pytest.raises(BadAnswer, match="is not HTTP"):
        Parser().feed(data)


def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MOST_BYTES", 6)
    with pytest.raises(BadAnswer, match="larger than 6 bytes; ask for less"):
        Parser().feed(PLAIN)


def test_decoding() -> None:
    assert decoded(b"[1,2]", list[int]) == [1, 2]
    with pytest.raises(BadAnswer, match="is the address right"):
        decoded(b"<html>", list[int])
    with pytest.raises(BadAnswer):
        decoded(b'["a"]', list[int])


# Errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.InvalidRequest),
        (401, errors.Unauthorized),
        (403, errors.Forbidden),
        (404, errors.NotFound),
        (405, errors.MethodNotAllowed),
        (408, errors.RequestTimeout),
        (409, errors.Conflict),
        (413, errors.TooLarge),
        (429, errors.QueueFull),
        (431, errors.HeadersTooLarge),
        (500, errors.ServerFailed),
        (503, errors.Unavailable),
    ],
)
def test_a_status_is_a_class(status: int, kind: type[errors.RequestError]) -> None:
    found = error_of(Answer(status, b'{"error":"what and why"}', True))
    assert type(found) is kind
    assert found.status == status
    assert "what and why" in str(found)


def test_a_status_that_we_do_not_know_keeps_its_number() -> None:
    strange = error_of(Answer(418, b'{"error":"a pot"}', True))
    assert (type(strange), str(strange)) == (errors.InvalidRequest, "answered 418: a pot")
    proxy = error_of(Answer(502, b"<h1>Bad\n gateway</h1>", True))
    assert (type(proxy), str(proxy)) == (errors.ServerFailed, "answered 502: <h1>Bad gateway</h1>")


@pytest.mark.parametrize("body", [b"", b"[]", b'{"message":"x"}', b"plain text", b"\xff\xfe"])
def test_a_body_that_is_no_error_is_no_obstacle(body: bytes) -> None:
    found = error_of(Answer(404, body, True))
    assert type(found) is errors.NotFound
    assert str(found)


def test_who_has_no_right_is_told_what_to_do() -> None:
    assert "give the client a token" in str(error_of(Answer(401, b'{"error":"no token"}', True)))
    assert "higher role" in str(error_of(Answer(403, b'{"error":"read-only"}', True)))
