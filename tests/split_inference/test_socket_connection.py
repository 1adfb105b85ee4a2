"""The client's connection to a real server of games."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from split_inference.socket_connection import FailedRequest, ServerUnreachable, SocketConnection
from tests.split_inference.servers import PATIENCE_S, alive, children, wait_until


def test_a_server_that_goes_away_is_named(start, trials):
    server = start()
    with closing(SocketConnection("localhost", server.port, PATIENCE_S)) as connection:
        with pytest.raises(FailedRequest, match="unknown command"):
            connection.send_request({"command": "fly"})
        (environment,) = children(server.process.pid)
        server.process.kill()
        wait_until(lambda: not alive(environment))
        with pytest.raises(ServerUnreachable, match=f"lost the server on localhost:{server.port}.*same command again"):
            connection.send_request({"command": "get_state"})
    server.wait()
    with pytest.raises(ServerUnreachable, match="start alfworld_server.py first"):
        SocketConnection("localhost", server.port, PATIENCE_S)


@pytest.mark.parametrize(("host", "port"), [("localhost", 1 << 20), ("a" * 70, 5555), ("no.such.host.invalid", 5555)])
def test_an_impossible_address_is_named(host, port):
    with pytest.raises(ServerUnreachable, match=f"no server on {host}:{port}"):
        SocketConnection(host, port, PATIENCE_S)


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request", b"[" * 100_000], ids=["http", "nested"])
def test_an_answer_that_is_not_json_is_told(answer: bytes):
    with socket.create_server(("localhost", 0)) as other, ThreadPoolExecutor(1) as threads:

        def serve() -> None:
            with other.accept()[0] as client:
                client.recv(1 << 16)
                client.sendall(answer + b"\n")

        serving, port = threads.submit(serve), other.getsockname()[1]
        with pytest.raises(ServerUnreachable, match=f"localhost:{port}: its answer is not JSON"):
            SocketConnection("localhost", port, PATIENCE_S)
        serving.result()
