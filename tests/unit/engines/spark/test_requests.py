"""Requests to Spark's state server that go out together: PySpark's own client, a server that takes notes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql.streaming.proto import StateMessage_pb2
from pyspark.sql.streaming.stateful_processor import StatefulProcessorHandle
from pyspark.sql.streaming.stateful_processor_api_client import StatefulProcessorApiClient
from pyspark.sql.types import StringType, StructField, StructType

from queenstream.engines.spark.keyed.requests import RequestPipeline

# The module is generated: nobody has told mypy what is in it.
proto: Any = StateMessage_pb2
TEXT = StructType([StructField("text", StringType())])


class Server(threading.Thread):
    """Says of every request that it was done, but for those that have ``refused`` in them."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self.bursts: list[tuple[int, list[Any]]] = []
        """The requests that came together, and their bytes."""

    def run(self) -> None:
        connection, _ = self._socket.accept()
        with connection, self._socket:
            while data := connection.recv(1 << 20):
                size, requests, answers = len(data), [], b""
                while data:
                    length = int.from_bytes(data[4:8], "big")
                    while len(data) < 8 + length:
                        data += connection.recv(1 << 20)
                    requests.append(proto.StateRequest.FromString(data[8 : 8 + length]))
                    refused = b"refused" in data[8 : 8 + length]
                    answer = proto.StateResponse(
                        statusCode=int(refused), errorMessage="no" if refused else ""
                    )
                    text = answer.SerializeToString()
                    answers += len(text).to_bytes(4, "big") + text
                    data = data[8 + length :]
                self.bursts.append((size, requests))
                connection.sendall(answers)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    started = Server(tmp_path / "socket")
    started.start()
    yield started
    started.join(10)


@pytest.fixture
def client(server: Server, tmp_path: Path) -> Iterator[StatefulProcessorApiClient]:
    made: Any = StatefulProcessorApiClient(str(tmp_path / "socket"), TEXT)
    yield made
    made.sockfile.close()
    made._client_socket.close()


def test_a_key_costs_one_round_trip(server: Server, client: StatefulProcessorApiClient) -> None:
    handle = StatefulProcessorHandle(client)
    value = handle.getValueState("state", TEXT)
    requests = RequestPipeline.of(handle)
    assert requests is not None
    server.bursts.clear()
    for key in ("ann", "bob", "cid"):
        client.set_implicit_key((key,))
        assert value.get() is None
        with requests.deferred():
            value.update((key,))
            handle.registerTimer(7)
    requests.flush()
    kinds = [[each.WhichOneof("method") for each in burst] for _, burst in server.bursts]
    first, rest = (
        ["implicitGroupingKeyRequest", "stateVariableRequest"],
        [
            "stateVariableRequest",
            "statefulProcessorCall",
        ],
    )
    assert kinds == [first, [*rest, *first], [*rest, *first], rest]


def test_what_goes_out_together_is_small(server: Server, client: StatefulProcessorApiClient) -> None:
    handle = StatefulProcessorHandle(client)
    value = handle.getValueState("state", TEXT)
    requests = RequestPipeline.of(handle)
    assert requests is not None
    server.bursts.clear()
    with requests.deferred():
        for size in (100, 3_000, 3_000, 3_000, 50_000, 100):
            value.update(("x" * size,))
    requests.flush()
    assert sum(len(burst) for _, burst in server.bursts) == 6
    assert all(size <= 8_192 for size, burst in server.bursts if len(burst) > 1)


def test_a_refusal_is_an_error(server: Server, client: StatefulProcessorApiClient) -> None:
    handle = StatefulProcessorHandle(client)
    value = handle.getValueState("state", TEXT)
    requests = RequestPipeline.of(handle)
    assert requests is not None
    with requests.deferred():
        value.update(("refused",))
    with pytest.raises(PySparkRuntimeError, match="refused a request: no"):
        value.get()
