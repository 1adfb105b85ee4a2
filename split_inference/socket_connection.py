"""A client's connection to `alfworld_server.py`: one JSON object on one line for each request and each answer.

docs/split_inference.md describes the messages.
"""

from __future__ import annotations

import json
import socket
from typing import Any

from lavis.common.errors import EmacError

MAX_ANSWER_BYTES = 64 << 20  # a list of all 3,553 training games has 1 MB
HUNG_UP = "closed: "  # begins the server's last line on a connection that was silent for too long
Message = dict[str, Any]  # a JSON object


class ServerUnreachable(EmacError, ConnectionError):
    """No server answers at an address, or the connection to it broke; the text names the address."""


class FailedRequest(EmacError, RuntimeError):
    """The server answered `success: false`; the text is the server's reason."""


class SocketConnection:
    """One connection to an `alfworld_server.py`, which is one environment.

    It takes its place at once, and shows the `token` (empty: none); FailedRequest if the server does not take it, or
    is full. All methods but `close` raise ServerUnreachable once the server is gone.
    """

    def __init__(self, host: str, port: int, timeout_s: float, token: str = "") -> None:
        self._address = f"{host}:{port}"
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except (OSError, OverflowError, UnicodeError) as error:  # the last two: no valid port, no valid host name
            raise ServerUnreachable(
                f"no server on {self._address} ({error}): start alfworld_server.py first"
            ) from error
        # A request is one small packet, which Nagle's algorithm (RFC 896) would hold back.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._lines = self._socket.makefile("rb")
        # The server gives a process only to a connection that has sent something.
        try:
            self.send_request({"command": "get_state", **({"token": token} if token else {})})
        except BaseException:
            self.close()
            raise

    def send_request(self, request: Message) -> Message:
        """Send a request and wait for its answer; FailedRequest if the server could not do it."""
        self.send(request)
        return self.receive()

    def send(self, request: Message) -> None:
        """Send a request without waiting; `receive` gets the answers in the order of the requests."""
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
        except OSError as error:
            raise self._lost(error) from error

    def receive(self) -> Message:
        """Wait for the next answer; FailedRequest if it is `success: false`, and the connection goes on."""
        try:
            line = self._lines.readline(MAX_ANSWER_BYTES)
        except OSError as error:
            raise self._lost(error) from error
        if not line.endswith(b"\n"):
            raise self._lost("it closed the connection")
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError) as error:  # RecursionError: brackets in brackets, thousands of them
            raise self._lost(f"its answer is not JSON: {error}") from error
        if not isinstance(answer, dict) or answer.get("success") is not True:
            reason = str(answer.get("error", answer) if isinstance(answer, dict) else answer)
            if reason.startswith(HUNG_UP):
                raise self._lost(reason)
            raise FailedRequest(reason)
        return answer

    def close(self) -> None:
        """Close the connection; the server frees the environment."""
        self._lines.close()
        self._socket.close()

    def _lost(self, reason: object) -> ServerUnreachable:
        return ServerUnreachable(
            f"lost the server on {self._address}: {reason}; run the same command again to continue from here"
        )
