"""The newest state of every part of the page, ready to be sent, and the streams of those who watch it.

A viewer has no queue of its own: it gets each part's newest state, and what changed twice meanwhile is sent once. So a
slow viewer costs no memory and holds up nobody; the server drops it when a message takes too long.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

from xrl_alignment.wire.admission import RequestRefused

MAX_VIEWERS = 16
STILL_HERE_S = 15.0  # a comment is sent after so long without news: it finds viewers whose network has gone
LOOK_S = 1.0  # how soon the server sees that a viewer has left
_STILL_HERE = b": nothing new\n\n"


class Board:
    """Parts of the page by name, each a JSON object; safe to use from many threads.

    `put` replaces a part. `watch` gives every part to a new viewer, and then each that changes.
    """

    def __init__(self, *, max_viewers: int = MAX_VIEWERS, still_here_s: float = STILL_HERE_S) -> None:
        self._max_viewers = max_viewers
        self.still_here_s = still_here_s
        self._parts: dict[str, tuple[int, bytes]] = {}  # when it changed last, and the event
        self._version = 0
        self._viewers = 0
        self._closed = False
        self._changed = threading.Condition()

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return self._viewers

    def put(self, name: str, event: str, content: Any) -> None:
        """Make `content` the part `name`; viewers get it as an event `event`, unless nothing has changed."""
        data = json.dumps(content, separators=(",", ":"), allow_nan=False)
        message = f"event: {event}\ndata: {data}\n\n".encode()
        with self._changed:
            if self._parts.get(name, (0, b""))[1] != message:
                self._version += 1
                self._parts[name] = (self._version, message)
                self._changed.notify_all()

    def drop(self, name: str) -> None:
        """Forget a part."""
        with self._changed:
            self._parts.pop(name, None)

    def wait_for_viewer(self, timeout_s: float) -> bool:
        """Wait until somebody watches; False after `timeout_s`, or where nobody ever will."""
        with self._changed:
            self._changed.wait_for(lambda: self._viewers or self._closed, timeout_s)
            return self._viewers > 0 and not self._closed

    def close(self) -> None:
        """End every stream once it has sent what is new."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def watch(self) -> Viewer:
        """Let somebody watch; RequestRefused 503 where too many do already."""
        with self._changed:
            if self._closed or self._viewers >= self._max_viewers:
                raise RequestRefused(503, f"{self._viewers} viewers watch already", {"Retry-After": "10"})
            self._viewers += 1
            self._changed.notify_all()
        return Viewer(self)

    def leave(self) -> None:
        """Note that a viewer has left."""
        with self._changed:
            self._viewers -= 1

    def news(self, since: int) -> tuple[int, bytes, bool]:
        """Wait a moment for parts newer than version `since`: the version now, their events, whether it is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > since or self._closed, min(LOOK_S, self.still_here_s))
            newer = sorted(part for part in self._parts.values() if part[0] > since)
            return self._version, b"".join(event for _, event in newer), self._closed


class Viewer:
    """One viewer's events (`wire.pages.EventStream`): every part, then each that changes."""

    def __init__(self, board: Board) -> None:
        self._board: Board | None = board

    def __iter__(self) -> Iterator[bytes]:
        """Wait for what is new; ends when the board is closed. Empty while nothing is."""
        since, over, sent = 0, False, time.monotonic()
        while self._board and not over:
            since, events, over = self._board.news(since)
            if not events and time.monotonic() - sent >= self._board.still_here_s:
                events = _STILL_HERE
            if events:
                sent = time.monotonic()
            yield events

    def close(self) -> None:
        """Leave."""
        if self._board:
            self._board.leave()
            self._board = None
