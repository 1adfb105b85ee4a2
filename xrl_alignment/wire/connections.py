"""The connections of the server: how many are open, and which one makes room for another."""

from __future__ import annotations

import socket
import threading


class OpenConnections:
    """At most `limit` open connections; one more closes one that waits for a request.

    First go those whose client has not sent a whole request yet, then those that wait for the next one; of each, the
    one that has waited longest. So those who send nothing, or too slowly, cannot keep the others out. A connection
    whose request is being answered is never closed.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._changed = threading.Condition()
        # Ordered sets, the one that has waited longest first. A connection is in one of them until it is closed.
        self._new: dict[socket.socket, None] = {}  # no whole request yet
        self._idle: dict[socket.socket, None] = {}  # answered, and no whole next request
        self._busy: dict[socket.socket, None] = {}  # its request is being answered

    def __len__(self) -> int:
        return len(self._new) + len(self._idle) + len(self._busy)

    def enter(self, connection: socket.socket) -> bool:
        """Let a new connection in; False if `limit` requests are being answered."""
        with self._changed:
            if len(self) >= self._limit:
                oldest = next(iter(self._new or self._idle), None)  # dicts keep the order in which they were filled
                if oldest is None:
                    return False
                self._remove(oldest)
                end(oldest, socket.SHUT_RDWR)  # its thread ends
            self._new[connection] = None
            return True

    def busy(self, connection: socket.socket) -> None:
        """A whole request has come; ConnectionAbortedError if the connection has been closed for another one."""
        with self._changed:
            if connection not in self._new and connection not in self._idle:
                raise ConnectionAbortedError("closed for another connection")
            self._remove(connection)
            self._busy[connection] = None

    def idle(self, connection: socket.socket) -> None:
        """The request is answered."""
        with self._changed:
            if connection in self._busy:
                self._remove(connection)
                self._idle[connection] = None

    def leave(self, connection: socket.socket) -> None:
        """The connection is closed."""
        with self._changed:
            self._remove(connection)
            self._changed.notify_all()

    def close_all(self, grace_s: float) -> None:
        """Read no more from any connection; wait up to `grace_s` for replies that are being written."""
        with self._changed:
            for connection in (*self._new, *self._idle, *self._busy):
                end(connection, socket.SHUT_RD)
            self._changed.wait_for(lambda: not len(self), grace_s)

    def _remove(self, connection: socket.socket) -> None:
        for group in (self._new, self._idle, self._busy):
            group.pop(connection, None)


def end(connection: socket.socket, how: int) -> None:
    """Shut a connection down, of which another thread may be reading or writing; `how` as in `socket.shutdown`."""
    try:
        connection.shutdown(how)
    except OSError:  # the client has closed it already
        return
