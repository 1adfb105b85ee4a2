"""Connections that send or read too slowly, as raw sockets."""

from __future__ import annotations

import asyncio
import socket
from contextlib import closing, suppress
from http.client import HTTPResponse

import pytest

from policy_server.web import connections
from tests.policy_server.servers import Running, action_body, raw_request
from tests.split_inference.servers import wait_until

HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def dial(server: Running) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=60)


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes the connection."""
    received = b""
    try:
        while piece := connection.recv(1 << 16):
            received += piece
    except ConnectionResetError:
        pass
    return received


def status(connection: socket.socket) -> int:
    """The status of one answer, which is read whole: its body may come later than its headers."""
    answer = HTTPResponse(connection)
    answer.begin()
    answer.read()
    return answer.status


def test_headers_have_a_deadline(serve):
    server = serve("server.header_timeout_s=1")
    with closing(dial(server)) as silent, closing(dial(server)) as slow:
        slow.sendall(HEALTH[:-2])
        answer = rest(slow)
        assert b" 408 " in answer and b"too_slow" in answer and b"default-src 'none'" in answer
        assert rest(silent) == b""


def test_the_deadline_is_that_of_each_request(serve):
    server = serve("server.header_timeout_s=1")
    with closing(dial(server)) as connection:
        for _ in range(2):
            connection.sendall(HEALTH)
            assert status(connection) == 200
        connection.sendall(b"\r\n")  # blank lines before a request are no request
        assert b" 408 " in rest(connection)


def test_headers_have_a_limit(serve):
    with closing(dial(serve())) as connection:
        connection.sendall(HEALTH[:-2] + b"X: " + b"x" * (2 * connections.MAX_HEADER_BYTES))
        assert b" 431 " in rest(connection)


def test_what_is_no_http_gets_the_same_kind_of_answer(serve):
    with closing(dial(serve())) as connection:
        connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
        answer = rest(connection)
        assert b" 400 " in answer and b"not_http" in answer and b"default-src 'none'" in answer


def test_one_connection_more_closes_the_one_that_waits_longest(serve):
    server = serve("server.connections=3")
    opened = [dial(server) for _ in range(3)]
    opened[1].sendall(HEALTH)
    assert status(opened[1]) == 200
    with closing(dial(server)) as another:
        another.sendall(HEALTH)
        assert status(another) == 200
        assert rest(opened[0]) == b""
        opened[1].sendall(HEALTH)
        assert status(opened[1]) == 200
    for connection in opened:
        connection.close()


def test_a_request_in_hand_keeps_its_connection(serve, held_model):
    server = serve("server.connections=1", model=held_model)
    with closing(dial(server)) as busy:
        busy.sendall(raw_request(action_body()))
        held_model.wait_until_called()
        with closing(dial(server)) as another:
            assert b" 503 " in rest(another)
        held_model.release.set()
        assert status(busy) == 200


def is_answered(server: Running) -> bool:
    """Whether a new connection finds room."""
    with closing(dial(server)) as connection, suppress(ConnectionError):
        connection.sendall(HEALTH)
        return status(connection) == 200
    return False


def test_a_client_that_reads_nothing_makes_room(serve, monkeypatch):
    monkeypatch.setattr(connections, "READ_TIMEOUT_S", 0.2)
    server = serve("server.connections=1")
    with closing(dial(server)) as unread:
        unread.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        unread.settimeout(2)
        with pytest.raises(OSError):  # the server stops reading, or resets the connection
            while True:
                unread.sendall(HEALTH.replace(b"/health", b"/openapi.json") * 100)
        wait_until(lambda: is_answered(server))


def test_a_client_that_has_read_after_all_is_kept(monkeypatch):
    monkeypatch.setattr(connections, "READ_TIMEOUT_S", 0.05)
    ended: list[str] = []

    class Transport:
        def __init__(self, name: str) -> None:
            self.abort = lambda: ended.append(name)

    async def run() -> None:
        reading, silent = (connections._ReadDeadline() for _ in range(2))
        reading.transport, silent.transport = Transport("reading"), Transport("silent")
        for _ in range(2):
            reading.pause_writing()
            reading.resume_writing()
        silent.pause_writing()
        await asyncio.sleep(0.2)

    asyncio.run(run())
    assert ended == ["silent"]
