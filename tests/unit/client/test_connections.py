"""Connections, on real sockets."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
import time

import pytest

from queenstream.client._async.transport import Connection as AsyncConnection
from queenstream.client._sync.transport import Connection

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture
def ends() -> tuple[Connection, socket.socket]:
    """A connection, and the server's end of it."""
    ours, theirs = socket.socketpair()
    return Connection(ours), theirs


def test_an_answer_in_pieces(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    with server:
        server.sendall(ANSWER)
        answer = connection.exchange(b"GET / HTTP/1.1\r\n\r\n", 5)
        assert (answer.status, answer.body) == (200, b"ok")
        assert server.recv(100) == b"GET / HTTP/1.1\r\n\r\n"
        assert connection.open
    connection.close()


def test_one_that_the_server_closed_is_not_open(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    found = [connection.open]
    server.close()
    found.append(connection.open)
    with pytest.raises(OSError):
        connection.exchange(b"GET / HTTP/1.1\r\n\r\n", 5)
    connection.close()
    assert [*found, connection.open] == [True, False, False]


def test_one_with_something_unasked_for_is_not_open(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    with server:
        server.sendall(b"HTTP/1.1 408 Too late\r\n")
        assert not connection.open
    connection.close()


def test_one_that_was_hung_up_is_not_used_again(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    with server:
        connection.hang_up()
        assert server.recv(100) == b""
        assert not connection.open
        with pytest.raises(ConnectionResetError):
            connection.exchange(b"GET / HTTP/1.1\r\n\r\n", 5)
    connection.close()


def test_silence_ends_in_time(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    with server, pytest.raises(TimeoutError):
        connection.exchange(b"GET / HTTP/1.1\r\n\r\n", 0.05)
    connection.close()


def test_a_high_descriptor_is_as_good_as_any() -> None:
    """A program with thousands of open files keeps its connections too."""
    high = 2000
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, high + 1), most))
    ours, theirs = socket.socketpair()
    try:
        with ours, theirs:
            connection = Connection(socket.socket(fileno=os.dup2(ours.fileno(), high)))
            assert connection.open
            connection.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


def test_a_shorter_limit_counts_after_a_longer_one(ends: tuple[Connection, socket.socket]) -> None:
    connection, server = ends
    with server:
        for limit in (60.0, 60.0):
            server.sendall(ANSWER)
            assert connection.exchange(b"GET / HTTP/1.1\r\n\r\n", limit).body == b"ok"
        before = time.monotonic()
        with pytest.raises(TimeoutError):
            connection.exchange(b"GET / HTTP/1.1\r\n\r\n", 0.05)
        assert time.monotonic() - before < 30
    connection.close()


async def opened() -> tuple[AsyncConnection, socket.socket]:
    """The same of the asynchronous client."""
    ours, theirs = socket.socketpair()
    _, connection = await asyncio.get_running_loop().create_connection(AsyncConnection, sock=ours)
    return connection, theirs


async def test_one_alarm_for_all_requests() -> None:
    connection, server = await opened()
    with server:
        for limit in (60.0, 0.05):
            server.sendall(ANSWER)
            assert (await connection.exchange(b"GET / HTTP/1.1\r\n\r\n", limit)).body == b"ok"
        # The alarm of the last one rings while this one waits, and must not end it.
        waits = asyncio.create_task(connection.exchange(b"GET / HTTP/1.1\r\n\r\n", 60))
        await asyncio.sleep(0.1)
        server.sendall(ANSWER)
        assert (await asyncio.wait_for(waits, 30)).body == b"ok"
        # This one's limit is before the alarm.
        with pytest.raises(TimeoutError, match="no answer in time"):
            await asyncio.wait_for(connection.exchange(b"GET / HTTP/1.1\r\n\r\n", 0.05), 30)
    connection.close()


async def test_a_connection_that_is_lost_ends_its_request() -> None:
    connection, server = await opened()
    waits = asyncio.create_task(connection.exchange(b"GET / HTTP/1.1\r\n\r\n", 60))
    await asyncio.get_running_loop().run_in_executor(None, server.recv, 100)
    server.close()
    with pytest.raises(OSError):
        await asyncio.wait_for(waits, 30)
    assert not connection.open
