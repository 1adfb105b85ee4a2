"""What a client tells its user."""

from __future__ import annotations

import sys
import threading
from typing import TextIO

from lavis.common.progress import Bar


class ClientReport(Bar):
    """Episodes as they end, and what the connection does; on stderr. May be used from any thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__("episodes", stream or sys.stderr)
        self._lock = threading.Lock()
        self._waiting = False
        self._said: set[str] = set()
        self._expected = self._played = self._won = 0

    def expect(self, episodes: int) -> None:
        """At most so many episodes will be played (0: nobody knows)."""
        with self._lock:
            self._expected = episodes

    def episode(self, *, won: bool) -> None:
        """One more episode is over."""
        with self._lock:
            self._played += 1
            self._won += won
            self.show(self._played, max(self._expected, self._played), f"{self._won} won")

    def waiting(self, text: str) -> None:
        """The server is not there; said once until it is."""
        with self._lock:
            if not self._waiting:
                self.say(text)
            self._waiting = True

    def say_once(self, text: str) -> None:
        """Print `text` on a line of its own, whoever says it first."""
        with self._lock:
            if text not in self._said:
                self.say(text)
            self._said.add(text)

    def connected(self) -> None:
        """The server answers."""
        self._waiting = False
