# Generated from _async/retry.py by `python tools/async_to_sync.py`; do not edit.
"""Requests to whichever broker answers: connections are kept, failures are tried elsewhere or again."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Protocol, TypeVar, overload

from queenstream.client._base import addresses, payloads
from queenstream.client._base.brokers import Broker, Brokers
from queenstream.client._base.http import Ahead, Answer, decoded, error_of, query_of, request_bytes
from queenstream.client._sync import transport
from queenstream.errors import BrokerUnreachable, ClientClosed

T = TypeVar("T")
ATTEMPT_SECONDS = 15.0  # one broker has so long to answer before another is asked


class Stopped(Exception):
    """A stop was asked for while a request waited."""


class Leaves(Protocol):
    """A loop over messages or windows that is under way."""

    def leave(self) -> None: ...


class Calls:
    """The way to the brokers, shared by everything that a client hands out."""

    def __init__(self, urls: str | Iterable[str], token: str | None, timeout: float) -> None:
        self._brokers: Brokers[transport.Connection] = Brokers(addresses.parse_all(urls))
        self._token = addresses.check_token(token)
        self.timeout = timeout
        self.closed = False
        self.loops: set[Leaves] = set()  # to end before the connections are closed

    @property
    def used(self) -> bool:
        """Whether a connection is open."""
        return any(broker.idle for broker in self._brokers.all)

    @overload
    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        type: type[T],
        timeout: float | None = None,
        repeat: bool = True,
    ) -> T: ...
    @overload
    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        type: None = None,
        timeout: float | None = None,
        repeat: bool = True,
    ) -> Any: ...
    def call(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: object = None,
        type: type[T] | None = None,
        timeout: float | None = None,
        repeat: bool = True,
    ) -> Any:
        """A request and its answer, decoded; what the broker refuses is raised.

        ``repeat``: whether doing it twice does no harm, so that it may be sent again when no answer came.
        """
        sent = None if body is None else payloads.encode(body)
        target = path + query_of(query) if query else path
        answer = self.send(method, target, sent, timeout=timeout, repeat=repeat)
        if answer.status == 204:
            return None
        return decoded(answer.body, Any if type is None else type)

    def send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout: float | None = None,
        wait: float = 0.0,
        repeat: bool = True,
        stop: transport.Stop | None = None,
        ahead: Ahead | None = None,
    ) -> Answer:
        """The same with bytes. ``wait``: how long the broker itself may wait before it answers."""
        ends = time.monotonic() + (self.timeout if timeout is None else timeout) + wait
        failures: dict[str, str] = {}
        while True:
            if self.closed:
                raise ClientClosed("the client was closed; make a new one")
            broker = self._brokers.choose(time.monotonic())
            answer, safe = self._attempt(broker, method, path, body, ends, wait, stop, failures, ahead)
            if answer is not None and (answer.status != 503 or not repeat):
                if answer.status >= 400:
                    raise error_of(answer)
                return answer
            pause = self._brokers.wait(time.monotonic())
            if answer is not None and len(self._brokers.all) == 1:
                pause = max(pause, min(answer.retry_after or 0.0, 1.0))
            if not (repeat or safe) or time.monotonic() + pause >= ends:
                if answer is not None:
                    raise error_of(answer)
                raise _unreachable(failures)
            if stop is not None:
                if stop.wait(pause):
                    raise Stopped
            elif pause > 0:
                transport.sleep(pause)

    def _attempt(
        self,
        broker: Broker[transport.Connection],
        method: str,
        path: str,
        body: bytes | None,
        ends: float,
        wait: float,
        stop: transport.Stop | None,
        failures: dict[str, str],
        ahead: Ahead | None,
    ) -> tuple[Answer | None, bool]:
        """Ask one broker. No answer: whether it is sure that it never saw the request."""
        connection = self._brokers.connection(broker)
        sent = connection is not None
        settled = False
        try:
            left = max(0.01, ends - time.monotonic())
            if connection is None:
                connection = transport.Connection.connect(broker.address, left)
                sent = True
            request = request_bytes(broker.address, method, path, body, self._token)
            if ahead is not None:
                if ahead.done:
                    ahead = None
                else:
                    request = (
                        request_bytes(broker.address, "POST", ahead.path, ahead.body, self._token) + request
                    )
            if stop is not None:
                stop.began(connection)
            try:
                answer = connection.exchange(request, min(left, wait + ATTEMPT_SECONDS), ahead)
            finally:  # before others may have the connection: a stop must not hang up on them
                if stop is not None:
                    stop.ended(connection)
            settled = True
            if answer.status == 503:
                self._brokers.failed(broker, time.monotonic())
                connection.close()
            else:
                self._brokers.done(broker, connection, answer.keep)
            return answer, False
        except OSError as error:  # TimeoutError is one
            settled = True
            if connection is not None:
                connection.close()
            if stop is not None and stop.is_set():
                self._brokers.given_up(broker)
                raise Stopped from None
            self._brokers.failed(broker, time.monotonic())
            failures[broker.address.url] = _cause(error)
            return None, not sent
        finally:
            if not settled:  # cancelled, or the answer was no answer
                self._brokers.given_up(broker)
                if connection is not None:
                    connection.close()

    def close(self) -> None:
        """Close the connections that are idle; those at work are closed as they end."""
        self.closed = True
        self._brokers.close()


def _cause(error: OSError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return error.strerror or str(error) or type(error).__name__


def _unreachable(failures: Mapping[str, str]) -> BrokerUnreachable:
    tried = "; ".join(f"{url}: {cause}" for url, cause in failures.items()) or "no time was left to ask"
    return BrokerUnreachable(f"no broker answered ({tried}); start one with `queen up`, or check the address")
