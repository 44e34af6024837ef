"""Requests of a task to Spark's state server, several of them in one round trip.

PySpark waits for the answer to each request. Only a read needs its answer at once. So here other requests
wait for the next read, and go out with it: a key that is read, changed and written costs one round trip
instead of three or more. The server gets the same requests in the same order. If one fails, the call that
sends it raises the error.

This replaces functions of PySpark's client that are not public. They are the same in Spark 4.1 to 4.3; with a
client that lacks them, each request is a round trip.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle

_MOST_BYTES = 8_000
"""Of requests that go out together: they must fit into the 8,192 bytes that the server reads at once."""

_HEADER_BYTES = 8
_DONE = (0, "", b"")


class RequestPipeline:
    """Takes the place of the functions by which PySpark's client of a task sends and receives."""

    def __init__(self, client: Any) -> None:
        self._file = client.sockfile
        self._receive_one = client._receive_proto_message
        self._set_key = client.set_implicit_key
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._deferring = False
        self._deferred = Deferred(self)
        client._send_proto_message = self._send
        client._receive_proto_message = self._receive
        client.set_implicit_key = self._set_implicit_key

    @classmethod
    def of(cls, handle: StatefulProcessorHandle) -> RequestPipeline | None:
        """That of a task; None: its client does not have what is needed here."""
        client = getattr(handle, "_statefulProcessorApiClient", None)
        needed = ("sockfile", "_send_proto_message", "_receive_proto_message", "set_implicit_key")
        return cls(client) if all(hasattr(client, name) for name in needed) else None

    def deferred(self) -> Deferred:
        """Requests that are made meanwhile, all of them without a result, go out with the next one."""
        return self._deferred

    def flush(self) -> None:
        """Send what waits, and wait for the answers."""
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        if waiting:
            self._file.write(b"".join(waiting))
            self._file.flush()
            self._check(len(waiting))

    def _set_implicit_key(self, key: Any) -> None:
        with self._deferred:
            self._set_key(key)

    def _send(self, message: bytes) -> None:
        data = bytes(4) + len(message).to_bytes(4, "big") + message
        if self._bytes + len(data) > _MOST_BYTES:
            self.flush()
        if self._deferring and len(data) <= _MOST_BYTES:
            self._waiting.append(data)
            self._bytes += len(data)
            return
        waiting, self._waiting, self._bytes = self._waiting, [], 0
        self._file.write(b"".join([*waiting, data]))
        self._file.flush()
        self._check(len(waiting) + self._deferring)

    def _receive(self) -> Any:
        return _DONE if self._deferring else self._receive_one()

    def _check(self, number: int) -> None:
        """Wait for answers that only say whether it was done."""
        for _ in range(number):
            status, error, _ = self._receive_one()
            if status:
                raise PySparkRuntimeError(f"Spark's state server refused a request: {error}")


class Deferred(AbstractContextManager[None]):
    """Not a generator: a key enters it several times."""

    def __init__(self, requests: RequestPipeline) -> None:
        self._requests = requests

    def __enter__(self) -> None:
        self._requests._deferring = True

    def __exit__(self, *error: object) -> None:
        self._requests._deferring = False
