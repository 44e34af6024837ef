"""Requests and answers as bytes: writing the one, reading the other."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from urllib.parse import quote, urlencode

import httptools
import msgspec

from queenstream import errors
from queenstream.client._base.addresses import Address
from queenstream.client._base.codec import make_decoder
from queenstream.errors import BadAnswer, RequestError

READ_BYTES = 1 << 18  # at once
MOST_BYTES = 1 << 30  # of an answer; a broker's own limits are far below


def path_of(*parts: str) -> str:
    """A path of these parts, each encoded.

    >>> path_of("api", "v1", "queues", "a/b")
    '/api/v1/queues/a%2Fb'
    """
    return "".join("/" + quote(part, safe="") for part in parts)


def query_of(values: Mapping[str, object]) -> str:
    """What follows the path; None is left out.

    >>> query_of({"batch": 10, "wait": True, "group": None})
    '?batch=10&wait=true'
    """
    written = {key: _written(value) for key, value in values.items() if value is not None}
    return "?" + urlencode(written) if written else ""


def _written(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, datetime):
        return moment(value)
    return str(value)


# Where a seek goes: a time, the first message, or past all that is stored.
Place = datetime | str | Literal["beginning", "end", "now"]
BEGINNING = "1970-01-01T00:00:00Z"


def moment(when: datetime | str) -> str:
    """A time as the broker reads it; one without a zone is the machine's own."""
    return when if isinstance(when, str) else when.astimezone().isoformat()


def request_bytes(
    address: Address, method: str, path: str, body: bytes | None = None, token: str | None = None
) -> bytes:
    """A request, ready to send."""
    head = f"{method} {address.prefix}{path} HTTP/1.1\r\nHost: {address.authority}\r\n"
    head += "Accept: application/json\r\n"
    if token is not None:
        head += f"Authorization: Bearer {token}\r\n"
    if body is None:
        return (head + "\r\n").encode("latin-1")
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


@dataclass(slots=True)
class Ahead:
    """A POST that goes out in front of another request, on one connection: one wait instead of two.

    ``answered`` is called with its answer, if one comes.
    """

    path: str
    body: bytes
    answered: Callable[[Answer], None]
    done: bool = False

    def take(self, answer: Answer) -> None:
        """This is its answer; a repeat of the request behind it need not send it again."""
        self.done = True
        self.answered(answer)


@dataclass(slots=True)
class Answer:
    """What a broker answered; ``keep``: the connection may be used again."""

    status: int
    body: bytes
    keep: bool
    retry_after: float | None = None


class Parser:
    """Puts answers together from what arrives. One for each connection."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._whole: list[Answer] = []
        self.on_message_begin()

    def feed(self, data: bytes | memoryview) -> list[Answer]:
        """The answers that are whole now: mostly one, or none yet."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise BadAnswer(f"the answer is not HTTP ({error}); is this the address of a broker?") from None
        if self._size > MOST_BYTES:
            raise BadAnswer(f"the answer is larger than {MOST_BYTES} bytes; ask for less at a time")
        whole, self._whole = self._whole, []
        return whole

    # httptools calls these

    def on_message_begin(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._retry_after: float | None = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and value.isdigit():
            self._retry_after = float(value)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._size += len(body)

    def on_message_complete(self) -> None:
        parts, self._parts = self._parts, []
        body = parts[0] if len(parts) == 1 else b"".join(parts)
        status, keep = self._parser.get_status_code(), self._parser.should_keep_alive()
        self._whole.append(Answer(status, body, keep, self._retry_after))


def _classes() -> dict[int, type[RequestError]]:
    found = (value for value in vars(errors).values() if isinstance(value, type))
    return {c.status: c for c in found if issubclass(c, RequestError) and c is not RequestError}


_CLASS_OF = _classes()


def error_of(answer: Answer) -> RequestError:
    """The error that an answer stands for.

    >>> error_of(Answer(404, b'{"error":"no queue q"}', True))
    NotFound('no queue q')
    """
    try:
        said = str(msgspec.json.decode(answer.body)["error"])
    except (ValueError, LookupError, TypeError):
        said = answer.body[:200].decode("utf-8", "replace")
    said = " ".join(said.split()) or f"the broker answered {answer.status}"
    if answer.status == 401:
        said += "; give the client a token"
    elif answer.status == 403 and ";" not in said:  # our own broker's errors hold their remedy
        said += "; use a token with a higher role"
    kind = _CLASS_OF.get(answer.status)
    if kind is None:
        kind = errors.ServerFailed if answer.status >= 500 else errors.InvalidRequest
        said = f"answered {answer.status}: {said}"
    if kind is errors.MethodNotAllowed:
        return errors.MethodNotAllowed(said, ())
    return kind(said)


_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def decoded(body: bytes, kind: Any) -> Any:
    """The body as that type."""
    decoder = _DECODERS.get(kind)
    if decoder is None:
        decoder = _DECODERS[kind] = make_decoder(kind)
    try:
        return decoder.decode(body)
    except msgspec.MsgspecError as error:
        raise BadAnswer(f"the answer is not what a broker says ({error}); is the address right?") from None
