"""Limits that uvicorn does not have: how many connections, and how long and how large the headers of a request."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from policy_server.refusals import RequestRefused
from policy_server.web.responses import raw_response

MAX_HEADER_BYTES = 1 << 16  # httptools, which parses them, has no limit of its own
READ_TIMEOUT_S = 30.0  # for a client to read an answer


class ConnectionRoom:
    """Makes room for new connections: at most `limit` are open, WebSockets included.

    One more closes the connection that has waited longest without a whole request. So those who send nothing, or too
    slowly, cannot keep the others out.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._waiting: dict[LimitedProtocol, None] = {}  # the one that waits longest first

    def has_room(self, number: int) -> bool:
        """Whether `number` connections can be open, after closing one if necessary."""
        if number <= self._limit:
            return True
        if not self._waiting:
            return False
        oldest = next(iter(self._waiting))
        self.leave(oldest)  # now: `connection_lost` comes a turn of the loop later, and the next one must not see it
        oldest.transport.close()
        return True

    def enter(self, connection: LimitedProtocol) -> None:
        """`connection` waits for a request, or for the rest of one."""
        self._waiting[connection] = None

    def leave(self, connection: LimitedProtocol) -> None:
        """`connection` has a whole request, or is closed."""
        self._waiting.pop(connection, None)


class _ReadDeadline(asyncio.Protocol):
    """Ends a connection whose client reads no answer: otherwise the answer would wait for ever."""

    transport: asyncio.Transport
    _unread: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        """The client reads slower than the server writes."""
        super().pause_writing()
        self._unread = asyncio.get_running_loop().call_later(READ_TIMEOUT_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has read."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()


class LimitedWebSocket(_ReadDeadline, WebSocketsSansIOProtocol):
    """uvicorn's WebSocket protocol, for clients that read their answers."""


class LimitedProtocol(_ReadDeadline, HttpToolsProtocol):
    """uvicorn's HTTP protocol with a deadline and a size limit for headers, and a place in `room`."""

    def __init__(self, *args: Any, room: ConnectionRoom, header_timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._room = room
        self._header_timeout_s = header_timeout_s
        self._deadline: asyncio.TimerHandle | None = None  # while headers are awaited
        self._header_bytes = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a place, or refuse the connection."""
        super().connection_made(transport)
        if self._room.has_room(len(self.connections)):
            self._room.enter(self)
            self._await_headers()
        else:
            self._refuse(RequestRefused(503, "too_many_connections", "too many connections are busy", 1))

    def connection_lost(self, exc: Exception | None) -> None:
        """Free the place."""
        self._stop_waiting()
        self._room.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse; refuse headers that become too long."""
        # The next request on a kept connection begins with these bytes.
        if self.cycle is not None and self.cycle.response_complete:
            self._await_headers()
        self._header_bytes += len(data)
        super().data_received(data)
        if self._deadline is not None and self._header_bytes > MAX_HEADER_BYTES:
            self._refuse(RequestRefused(431, "headers_too_large", f"the headers exceed {MAX_HEADER_BYTES} bytes"))

    def on_message_begin(self) -> None:
        """A request begins, perhaps while another is answered."""
        super().on_message_begin()
        self._await_headers()

    def on_headers_complete(self) -> None:
        """The headers are there; the body has a deadline of its own (`web.gate`)."""
        self._stop_waiting()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole: nobody may close the connection for another one now."""
        self._room.leave(self)
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():  # else a further request has come already
            self._room.enter(self)

    def handle_websocket_upgrade(self) -> None:
        """Leave the connection to uvicorn's WebSocket protocol."""
        self._room.leave(self)
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP in the server's own form."""
        self._refuse(RequestRefused(400, "not_http", msg))

    def _await_headers(self) -> None:
        if self._deadline is None:
            self._header_bytes = 0
            self._deadline = self.loop.call_later(self._header_timeout_s, self._too_slow)

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        # A connection that has sent nothing is idle: it is closed without an answer that nobody asked for.
        if self._header_bytes:
            reason = f"the headers took longer than {self._header_timeout_s:g} s"
            self._refuse(RequestRefused(408, "too_slow", reason))
        else:
            self.transport.close()

    def _refuse(self, refusal: RequestRefused) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.transport.write(raw_response(refusal))
            self.transport.close()
