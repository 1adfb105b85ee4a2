"""The server's end of the wire: transport only, no learning.

`_Handler` speaks HTTP: limits, MD5, token, decoding, and waiting for the answer. Sessions, retries and the queue are in
`admission`. The loop sees `DaggerHTTPServer.take() -> list[Pending]` and calls `Pending.reply(...)` once for each.
"""

from __future__ import annotations

import hmac
import json
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from errno import EADDRINUSE
from http.server import BaseHTTPRequestHandler
from io import BufferedReader, RawIOBase
from typing import Any

from xrl_alignment.common.network import is_loopback, process_on_port
from xrl_alignment.wire import protocol
from xrl_alignment.wire.admission import Admission, Inbox, Pending, Refusal, Response
from xrl_alignment.wire.protocol import ProtocolError

logger = logging.getLogger(__name__)

DEFAULT_MAX_BODY = 64 << 20  # a 300×300 frame is 1.5 MB in v1
DEFAULT_QUEUE_LIMIT = 256


class ServerError(OSError):
    """The server cannot open its port; the text says why and what to do."""


@dataclass(frozen=True)
class Limits:
    """What a client may cost us. Times in seconds, sizes in bytes."""

    max_body: int = DEFAULT_MAX_BODY
    idle_s: float = 900.0  # between two requests on one connection: a simulator may take minutes to load a room
    header_s: float = 10.0  # for the headers; also for the first request of a connection to begin
    body_s: float = 60.0
    write_s: float = 30.0
    drain_s: float = 5.0  # how long a refused body is read and thrown away, so that its sender sees the reason
    max_connections: int = 512


class DaggerHTTPServer:
    """A threaded HTTP server whose requests are answered by one loop.

    The port is bound at construction, so that a busy port is known before anything is loaded (`port=0`: any free one,
    see `.port`). `status` gives the JSON for `GET /status`. Raises ServerError (port busy, names the process that
    holds it) and ValueError (a host that others can reach, without a token).
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str = "",
        max_body: int = DEFAULT_MAX_BODY,
        queue_limit: int = DEFAULT_QUEUE_LIMIT,
        status: Callable[[], Mapping[str, Any]] = dict,
        *,
        session_timeout_s: float = 60.0,
        limits: Limits | None = None,
    ) -> None:
        if not token and not is_loopback(host):
            raise ValueError(f"server.host={host} can be reached from other machines: set server.token as well")
        self._inbox = Inbox(queue_limit)
        self._admission = Admission(self._inbox, session_timeout_s)
        self._silence_check_s = session_timeout_s / 4
        self._limits = limits or Limits(max_body=max_body)
        self._http = _bind(host, port)
        self._http.desk = _Desk(self._admission, self._limits, token, lambda: {**status(), "wire": self._counts()})
        self.port: int = self._http.server_address[1]
        self._thread: threading.Thread | None = None

    def start(self) -> DaggerHTTPServer:
        """Begin to accept connections, in a thread."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """Release every waiting client (503), finish what is being written, close the port. May be called twice."""
        self._admission.close()
        if self._thread is not None:
            self._http.shutdown()
            self._thread.join()
            self._thread = None
        self._http.close_connections(grace_s=2.0)
        self._http.server_close()

    def take(self, max_items: int, timeout_s: float, window_s: float = 0.0, longest_s: float = 0.0) -> list[Pending]:
        """Up to `max_items` requests in the order of their arrival; [] after `timeout_s` without one, or after stop.

        After the first, others are gathered until every session has its request here, or none has come for `window_s`,
        or `longest_s` (or `window_s`, if that is longer) has passed. A session that has been silent for longer than the
        session timeout comes as a `Bye` with a reason (nobody waits for its answer), so that its work can be handed out
        again.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            silent = self._admission.forget_silent()
            if silent:
                return silent
            left = max(0.0, deadline - time.monotonic())
            step = min(left, self._silence_check_s)
            taken = self._inbox.take(max_items, step, window_s, longest_s, self._admission.all_waiting)
            if taken or step == left or self._inbox.closed:
                return taken

    def _counts(self) -> dict[str, int]:
        return {"sessions": len(self._admission), "queued": len(self._inbox)}


def _bind(host: str, port: int) -> _HTTPServer:
    server_class = _HTTPServer6 if ":" in host else _HTTPServer
    try:
        return server_class((host, port), _Handler)
    except OverflowError as error:
        raise ServerError(f"server.port={port}: a port is a number from 0 to 65535") from error
    except OSError as error:
        if error.errno != EADDRINUSE:
            raise ServerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
        holder = process_on_port(port) or "another process"
        raise ServerError(f"port {port} is held by {holder}; stop it or choose another server.port") from error


@dataclass(frozen=True)
class _Desk:
    """What a handler needs from the server."""

    admission: Admission
    limits: Limits
    token: str
    status: Callable[[], Mapping[str, Any]]


class _HTTPServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True  # a port in TIME_WAIT is free; one that somebody listens on stays an error
    daemon_threads = True
    request_queue_size = 128
    desk: _Desk

    def __init__(self, *args: Any) -> None:
        self._connections: set[socket.socket] = set()
        self._connections_changed = threading.Condition()
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._connections_changed:
            room = len(self._connections) < self.desk.limits.max_connections
            if room:
                self._connections.add(request)
        if room:
            super().process_request(request, client_address)
        else:
            request.settimeout(1.0)
            request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        with self._connections_changed:
            self._connections.discard(request)
            self._connections_changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.exception("a request from %s failed", client_address)

    def close_connections(self, grace_s: float) -> None:
        """No connection may ask any more; each may finish what it writes."""
        with self._connections_changed:
            for connection in self._connections:
                try:
                    connection.shutdown(socket.SHUT_RD)
                except OSError:  # the client was faster
                    continue
            self._connections_changed.wait_for(lambda: not self._connections, grace_s)


class _HTTPServer6(_HTTPServer):
    address_family = socket.AF_INET6


class _DeadlineReader(RawIOBase):
    """Reads a socket until a deadline: a client that sends a byte a second runs into it as well."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = 0.0

    def allow(self, seconds: float) -> None:
        self._deadline = time.monotonic() + seconds

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("deadline passed")
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """HTTP/1.1 with keep-alive; one thread for each connection."""

    protocol_version = "HTTP/1.1"
    server_version = "emac"
    disable_nagle_algorithm = True  # otherwise a small reply waits 40 ms for the delayed ACK
    wbufsize = -1  # headers and body leave in one segment
    server: _HTTPServer

    def setup(self) -> None:
        super().setup()
        self.desk = self.server.desk
        self._reader = _DeadlineReader(self.connection)
        self.rfile.close()
        self.rfile = BufferedReader(self._reader, 1 << 16)
        self._unread = 0  # bytes of the current body that are still on their way
        self._known = False  # has sent a valid request: only then may the connection lie idle for long

    def handle_one_request(self) -> None:
        """Wait for a request (long), read its headers (short), answer it."""
        limits = self.desk.limits
        self.close_connection = True
        self._unread = 0
        try:
            self._reader.allow(limits.idle_s if self._known else limits.header_s)
            if not self.rfile.peek(1):
                return
            self._reader.allow(limits.header_s)
            self._read_and_answer()
        except (TimeoutError, ConnectionError) as error:  # idle, slow, or gone: the loop does not notice
            self.close_connection = True
            logger.debug("%s closed: %s", self.client_address, error)

    def _read_and_answer(self) -> None:
        try:
            self.raw_requestline = self.rfile.readline(65537)
            complete = self.parse_request()  # answers malformed requests itself
        except TimeoutError:
            self.requestline, self.request_version, self.command = "", self.protocol_version, ""
            self._refuse(Refusal(408, f"the headers took longer than {self.desk.limits.header_s:g} s"))
            return
        self.connection.settimeout(self.desk.limits.write_s)
        if complete:
            answer = {"POST": self._post, "GET": self._get}.get(self.command)
            try:
                if answer is None:
                    raise Refusal(405, f"{self.command} is not spoken here; POST / and GET /health, /status are")
                answer()
            except Refusal as refusal:
                self._refuse(refusal)
        self.wfile.flush()

    def handle_expect_100(self) -> bool:
        """Say 100 Continue only to a body that will be read."""
        try:
            self._check_head()
        except Refusal as refusal:
            self._unread = 0  # it waits for our word before it sends
            self._refuse(refusal)
            return False
        return super().handle_expect_100()

    def _post(self) -> None:
        """Any path: the original's server looked at none."""
        body = self._read_body()
        digest = protocol.md5_hex(body)
        claimed = self.headers.get("MD5")
        if claimed is None:
            raise Refusal(400, "header MD5 is missing: send the hex MD5 of the body")
        if claimed.strip().lower() != digest:
            raise Refusal(400, f"header MD5 is {claimed[:40]}, the body's is {digest}: damaged on the way")
        pending = self._admit(body, digest)
        self._known = True
        try:
            response = pending.wait()
        finally:
            self.desk.admission.finished(pending)
        self._send(response, {"MD5": protocol.md5_hex(response.body)})

    def _admit(self, body: bytes, digest: str) -> Pending:
        try:
            if self.headers.get_content_type() == protocol.CONTENT_TYPE_V2:
                return self.desk.admission.admit_v2(protocol.decode_v2(body), digest)
            return self.desk.admission.admit_v1(protocol.decode_v1(body))
        except ProtocolError as error:
            raise Refusal(400, str(error)) from error

    def _get(self) -> None:
        path = self.path.partition("?")[0]
        if path == "/health":
            self._send_json({"status": "ok"})
        elif path == "/status":
            self._check_token()
            self._send_json(self.desk.status())
        else:
            raise Refusal(404, f"nothing at {path[:80]}; there are /health and /status")

    def _read_body(self) -> bytes:
        length = self._check_head()
        self._reader.allow(self.desk.limits.body_s)
        try:
            body = self.rfile.read(length)
        except TimeoutError as error:
            self._unread = 0  # too slow: no more of it
            raise Refusal(408, f"the body took longer than {self.desk.limits.body_s:g} s") from error
        if len(body) < length:
            raise ConnectionError(f"the client left after {len(body)} of {length} bytes")
        self._unread = 0
        self.connection.settimeout(self.desk.limits.write_s)
        return body

    def _check_head(self) -> int:
        """What can be told before the body is read; returns its length."""
        length = self.headers.get("Content-Length")
        if length is None:
            raise Refusal(411, "header Content-Length is missing")
        if not (length.isascii() and length.isdigit()) or len(length) > 18:
            raise Refusal(400, f"header Content-Length is no count: {length[:40]!r}")
        self._unread = int(length)
        self._check_token()
        if self._unread > self.desk.limits.max_body:
            raise Refusal(413, f"the body has {length} bytes, at most {self.desk.limits.max_body} are taken")
        return self._unread

    def _check_token(self) -> None:
        token = self.desk.token
        given = self.headers.get("Authorization", "")
        if token and not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise Refusal(401, "a token is needed: Authorization: Bearer <token>", {"WWW-Authenticate": "Bearer"})

    def _send_json(self, value: Mapping[str, Any]) -> None:
        self._send(Response(200, json.dumps(value, default=str).encode(), "application/json"))

    def _send(self, response: Response, headers: Mapping[str, str] | None = None) -> None:
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        if response.status != 200:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(response.body)
        self.wfile.flush()

    def _refuse(self, refusal: Refusal) -> None:
        logger.info("%s: %d %s", self.client_address, refusal.response.status, refusal)
        self.connection.settimeout(self.desk.limits.write_s)
        self._send(refusal.response, refusal.headers)
        self._drain()

    def _drain(self) -> None:
        """Read away the rest of a refused body: closing on unread bytes resets the connection, and the sender would
        see that instead of the reason."""
        self._reader.allow(self.desk.limits.drain_s)
        while self._unread > 0:
            chunk = self.rfile.read1(min(self._unread, 1 << 20))
            if not chunk:
                return
            self._unread -= len(chunk)

    def log_message(self, format: str, *args: Any) -> None:
        logger.debug("%s " + format, self.client_address, *args)
