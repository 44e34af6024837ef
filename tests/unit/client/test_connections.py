"""Connections of the synchronous client, on real sockets."""

from __future__ import annotations

import os
import resource
import socket

import pytest

from queenstream.client._sync._io import Connection

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
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] <= high:
        pytest.skip("the limit of open files is too low here")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection = Connection(socket.socket(fileno=os.dup2(ours.fileno(), high)))
        assert connection.open
        connection.close()
