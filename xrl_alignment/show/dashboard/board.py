"""The newest state of every part of the page, ready to be sent, and the streams of those who watch it.

A viewer has no queue of its own: it gets each part's newest state, and what changed twice meanwhile is sent once. So a
slow viewer costs no memory and holds up nobody; the server drops it when a message takes too long. Places are few. If
all are taken, one more viewer gets the place of one that does not read, else of one that has watched for its turn.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from xrl_alignment.wire.admission import RequestRefused

MAX_VIEWERS = 16  # each holds a connection open
STILL_HERE_S = 15.0  # a comment is sent after so long without news: it finds viewers whose network has gone
LOOK_S = 1.0  # how soon the server sees that a viewer has left
UNREAD_S = 1.0  # a viewer that has not read a message for so long makes room for another
TURN_S = 30.0  # and so does one that has watched for so long, if all read: the page of a viewer comes back by itself
_STILL_HERE = b": nothing new\n\n"


class Board:
    """Parts of the page by name, each a JSON object; safe to use from many threads.

    `put` replaces a part. `watch` gives every part to a new viewer, and then each that changes.
    """

    def __init__(
        self, *, max_viewers: int = MAX_VIEWERS, still_here_s: float = STILL_HERE_S, turn_s: float = TURN_S
    ) -> None:
        self._max_viewers = max_viewers
        self._turn_s = turn_s
        self.still_here_s = still_here_s
        self._parts: dict[str, tuple[int, bytes]] = {}  # when it changed last, and the event
        self._version = 0
        self._watching: dict[Viewer, None] = {}  # the one that has watched longest first
        self._closed = False
        self._changed = threading.Condition()

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return len(self._watching)

    def put(self, name: str, event: str, content: Any) -> None:
        """Make `content` the part `name`; viewers get it as an event `event`, unless nothing has changed."""
        data = json.dumps(content, separators=(",", ":"), allow_nan=False)
        message = f"event: {event}\ndata: {data}\n\n".encode()
        # A part that has not changed is not sent again: looks come every second, and most find nothing new.
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
        """Wait until somebody watches; False after `timeout_s`, or if nobody ever will."""
        with self._changed:
            self._changed.wait_for(lambda: self._watching or self._closed, timeout_s)
            return bool(self._watching) and not self._closed

    def close(self) -> None:
        """End every stream once it has sent what is new."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def watch(self) -> Viewer:
        """Let somebody watch; RequestRefused 503 if too many do already and none of them makes room."""
        with self._changed:
            displaced: Viewer | None = None
            full = len(self._watching) >= self._max_viewers
            if full and not self._closed:
                # First the viewer that has not read its message for longest, else the one whose turn is over for
                # longest.
                now = time.monotonic()
                deaf = [viewer for viewer in self._watching if now - viewer.sending_since > UNREAD_S]
                oldest = next(iter(self._watching))
                if deaf:
                    displaced = min(deaf, key=lambda viewer: viewer.sending_since)
                elif now - oldest.since > self._turn_s:
                    displaced = oldest
            if self._closed or (full and displaced is None):
                raise RequestRefused(503, f"{self.viewers} viewers watch already", {"Retry-After": "10"})
            if displaced:
                del self._watching[displaced]
            viewer = Viewer(self)
            self._watching[viewer] = None
            self._changed.notify_all()
        if displaced:  # outside the lock: it hangs up, and another thread may be sending to it
            displaced.displace()
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """Note that a viewer has left."""
        with self._changed:
            self._watching.pop(viewer, None)

    def news(self, since: int) -> tuple[int, bytes, bool]:
        """Wait a moment for parts newer than version `since`: the version now, their events, whether it is the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._version > since or self._closed, min(LOOK_S, self.still_here_s))
            newer = sorted(part for part in self._parts.values() if part[0] > since)
            return self._version, b"".join(event for _, event in newer), self._closed


class Viewer:
    """One viewer's events (`wire.pages.EventStream`): every part, then each that changes.

    `since` is when it came, `sending_since` when the message was given out that it has not read yet, infinity if it has
    read all (both on the monotonic clock, in seconds).
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._hang_up: Callable[[], None] | None = None
        self._over = False
        self.since = time.monotonic()
        self.sending_since = math.inf

    def attach(self, hang_up: Callable[[], None]) -> None:
        """Call `hang_up` when another viewer gets this one's place."""
        self._hang_up = hang_up
        if self._over:
            hang_up()

    def displace(self) -> None:
        """Another viewer has this one's place: end its stream, also in the middle of a message."""
        self._over = True
        if self._hang_up:
            self._hang_up()

    def __iter__(self) -> Iterator[bytes]:
        """Wait for what is new; ends when the board is closed. An empty event says that nothing is new."""
        since, ended, last = 0, False, time.monotonic()
        while not (self._over or ended):
            since, events, ended = self._board.news(since)
            if not events and time.monotonic() - last >= self._board.still_here_s:
                events = _STILL_HERE
            if events:
                self.sending_since = last = time.monotonic()
            yield events  # the server comes back for the next one when the network has taken this one
            self.sending_since = math.inf

    def close(self) -> None:
        """Leave."""
        self._over = True
        self._board.leave(self)
