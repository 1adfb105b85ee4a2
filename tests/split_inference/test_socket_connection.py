"""The client's connection to a real server of games."""

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
