"""The server's end of the wire: opens the port and hands requests to the loop. No learning here.

The loop calls `DaggerHTTPServer.take() -> list[PendingRequest]`, and then `PendingRequest.reply(...)` once for each.
Each connection has a thread with a `RequestHandler` (`http_handler`); sessions, retries and the queue are in
`admission`. `mount` shows something to browsers as well; `PageServer` does nothing else.
"""

from __future__ import annotations

import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping
from errno import EADDRINUSE
from functools import partial
from typing import Any, TypeVar

from lavis.common.errors import ConfigError, EmacError
from xrl_alignment.common.network import is_loopback, process_on_port
from xrl_alignment.wire.admission import ByteBudget, PendingRequest, RequestQueue, SessionAdmission
from xrl_alignment.wire.connections import OpenConnections
from xrl_alignment.wire.http_handler import HandlerContext, Limits, RequestHandler
from xrl_alignment.wire.pages import Pages

logger = logging.getLogger(__name__)

DEFAULT_QUEUE_LIMIT = 256
Started = TypeVar("Started", bound="PageServer")


class ServerError(EmacError, OSError):
    """The server cannot open its port; the text says why and what to do."""


class PageServer:
    """A threaded HTTP server that only shows pages (`mount`) to browsers, `/health` and `/status`.

    The constructor binds the port, so that a busy port is reported before anything is loaded (`port=0`: any free one,
    see `.port`). `status` gives the JSON for `GET /status`. Raises ServerError for a port that cannot be opened (names
    the process that holds it) and ConfigError for a host that others can reach, without a token.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str = "",
        status: Callable[[], Mapping[str, Any]] = dict,
        *,
        limits: Limits | None = None,
        admission: SessionAdmission | None = None,
        port_setting: str = "server.port",
    ) -> None:
        if not token and not is_loopback(host):
            raise ConfigError(
                f"server.host={host} can be reached from other machines: set server.token_file (or $EMAC_TOKEN) as well"
            )
        limits = limits or Limits()
        self._budget = ByteBudget(limits.max_held)
        self._connections = OpenConnections(limits.max_connections)
        self._context = HandlerContext(
            admission=admission,
            connections=self._connections,
            budget=self._budget,
            limits=limits,
            token=token,
            local=is_loopback(host),
            status=status,
        )
        # Only an address of IPv6 has colons, and it needs a socket of another family.
        server_class = _HTTPServer6 if ":" in host else _HTTPServer
        try:
            self._http = server_class((host, port), self._context)
        except OverflowError as error:
            raise ServerError(f"{port_setting}={port}: a port is a number from 0 to 65535") from error
        except OSError as error:
            if error.errno != EADDRINUSE:
                raise ServerError(f"cannot listen on {host}:{port}: {error.strerror}") from error
            # The user is told who holds the port and decides; the original killed that process.
            holder = process_on_port(port) or "another process"
            raise ServerError(f"port {port} is held by {holder}; stop it or choose another {port_setting}") from error
        self.port: int = self._http.server_address[1]
        self._thread: threading.Thread | None = None
        self._stopping = threading.Lock()

    def mount(self, pages: Pages) -> None:
        """Show `pages` to browsers from now on; `stop` closes them."""
        self._context.pages = pages

    def start(self: Started) -> Started:
        """Begin to accept connections, in a thread."""
        if self._thread is None:
            # `shutdown` waits for the server's next poll: a tenth of a second at most.
            self._thread = threading.Thread(
                target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, name="http", daemon=True
            )
            self._thread.start()
        return self

    def stop(self) -> None:
        """Finish what is being written, close the port; may be called again, also by another thread."""
        if self._context.pages:
            self._context.pages.close()  # streams never end by themselves
        with self._stopping:  # the second caller returns only when the first has closed everything
            if self._thread is not None:
                self._http.shutdown()
                self._thread.join()
                self._thread = None
            self._connections.close_all(grace_s=2.0)  # for replies that are being written
            self._http.server_close()


class DaggerHTTPServer(PageServer):
    """A `PageServer` that also takes messages, which one loop answers.

    Arguments and errors as there; `GET /status` also counts sessions, waiting requests and the bytes that they hold.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str = "",
        queue_limit: int = DEFAULT_QUEUE_LIMIT,
        status: Callable[[], Mapping[str, Any]] = dict,
        *,
        session_timeout_s: float = 60.0,
        limits: Limits | None = None,
    ) -> None:
        self._queue = RequestQueue(queue_limit)
        self._admission = SessionAdmission(self._queue, session_timeout_s)
        # While the loop waits for requests, a silent session is found at most a quarter of its timeout late.
        self._silence_check_s = session_timeout_s / 4
        self._run_status = status
        super().__init__(host, port, token, self.status, limits=limits, admission=self._admission)

    def status(self) -> dict[str, Any]:
        """What `GET /status` shows."""
        wire = {"sessions": len(self._admission), "queued": len(self._queue), "bytes": self._budget.held}
        return {**self._run_status(), "wire": wire}

    def stop(self) -> None:
        """Release every waiting client (503), finish what is being written, close the port.

        May be called again, also by another thread.
        """
        self._admission.close()
        super().stop()

    @property
    def stopped(self) -> bool:
        """Whether `stop` has been called."""
        return self._queue.closed

    def take(
        self, max_items: int, timeout_s: float, window_s: float = 0.0, longest_s: float = 0.0
    ) -> list[PendingRequest]:
        """Up to `max_items` requests in the order of their arrival; [] after `timeout_s` without one, or after stop.

        After the first request, more are gathered until every session has its request here, or none has come for
        `window_s`, or `longest_s` (or `window_s`, whichever is longer) has passed. When a session has been silent for
        longer than the session timeout, the server makes a `Bye` with a reason for it (nobody waits for the reply), so
        that the loop reassigns its game.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            silent = self._admission.forget_silent()
            if silent:
                return silent
            # Wait in short steps, so that a session that has gone silent is found soon, whatever `timeout_s` is.
            left = max(0.0, deadline - time.monotonic())
            step = min(left, self._silence_check_s)
            taken = self._queue.take(max_items, step, window_s, longest_s, self._admission.all_waiting)
            if taken or step == left or self._queue.closed:
                return taken


class _HTTPServer(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True  # a port in TIME_WAIT is free; a port on which a process listens is still an error
    daemon_threads = True  # a thread that waits for the loop's answer must not keep the process after `stop`
    request_queue_size = 1024  # the system's queue of new connections: a cluster's clients all come at once

    def __init__(self, address: tuple[str, int], context: HandlerContext) -> None:
        self._connections = context.connections
        super().__init__(address, partial(RequestHandler, context))

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._connections.enter(request):
            super().process_request(request, client_address)
        else:
            # Every connection is busy. The answer is written by hand: a thread for it would be one too many.
            request.settimeout(1.0)
            request.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        super().shutdown_request(request)
        self._connections.leave(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.exception("a request from %s failed", client_address)


class _HTTPServer6(_HTTPServer):
    address_family = socket.AF_INET6
