"""Many connections that send nothing, or too slowly: an attack on any of the project's servers, for tests.

    python tests/reliability/floods.py --port 8001 --number 1000 --kind idle
    python tests/reliability/floods.py --port 7860 --number 512 --kind slow-body

It prints `ready` when all connections are open, and ends when its standard input ends. Connections that the server
closes are opened again. It needs nothing but Python.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import select
import socket
import sys

HTTP = b"POST /get_action HTTP/1.1\r\nHost: 127.0.0.1\r\n"
KINDS = {
    "idle": b"",
    "slow-header": HTTP + b"X-Slow: ",
    "slow-body": HTTP + b"Content-Type: application/json\r\nContent-Length: 100000\r\n\r\n{",
    "slow-line": b'{"command": "get_state", "slow": "',  # of the split-inference server's JSON lines
}
PAUSE_S = 0.5  # between two bytes of a slow connection
REOPENED = 10  # connections in each pause, at most


def opened(port: int, opening: bytes) -> socket.socket:
    """A new connection that has sent `opening`."""
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.setblocking(False)
    with contextlib.suppress(OSError):  # refused at once
        connection.send(opening)
    return connection


def closed(connection: socket.socket, drip: bytes) -> bool:
    """Send `drip`; whether the server has closed the connection."""
    try:
        connection.send(drip)
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def main() -> None:
    """Open the connections and keep them until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--number", type=int, default=1000)
    parser.add_argument("--kind", choices=sorted(KINDS), default="idle")
    arguments = parser.parse_args()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    opening, drip = KINDS[arguments.kind], b"" if arguments.kind == "idle" else b"x"
    connections = [opened(arguments.port, opening) for _ in range(arguments.number)]
    print("ready", flush=True)
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        lost = [number for number, connection in enumerate(connections) if closed(connection, drip)]
        for number in lost[:REOPENED]:
            connections[number].close()
            connections[number] = opened(arguments.port, opening)


if __name__ == "__main__":
    main()
