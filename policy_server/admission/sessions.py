"""What the server remembers of its clients: each session's last steps, and actions for observations seen before."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from policy_server.games.prompts import Reading


@dataclass
class _Session:
    used: float
    steps: deque[str] = field(default_factory=deque)


class Sessions:
    """The last `history` steps of at most `limit` sessions; one that was silent for `idle_s` seconds is forgotten.

    A session belongs to its caller: the same name under another key is another session.
    """

    def __init__(self, limit: int, history: int, idle_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self.history = history
        self.idle_s = idle_s
        self._clock = clock
        self._sessions: OrderedDict[tuple[str, str], _Session] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._sessions)

    def steps(self, caller: str, name: str) -> list[str]:
        """The session's last steps, oldest first; [] for a new one, and for the empty name (no session)."""
        self._forget_idle()
        session = self._sessions.get((caller, name))
        return list(session.steps) if session else []

    def add(self, caller: str, name: str, line: str) -> None:
        """Append a step; the empty name keeps nothing."""
        if not name or not self.history:
            return
        session = self._sessions.pop((caller, name), None) or _Session(0.0, deque(maxlen=self.history))
        session.used = self._clock()
        session.steps.append(line)
        self._sessions[caller, name] = session
        if len(self._sessions) > self.limit:
            self._sessions.popitem(last=False)

    def forget(self, caller: str, name: str) -> bool:
        """End a session; whether there was one."""
        return self._sessions.pop((caller, name), None) is not None

    def _forget_idle(self) -> None:
        oldest_allowed = self._clock() - self.idle_s
        while self._sessions and next(iter(self._sessions.values())).used < oldest_allowed:
            self._sessions.popitem(last=False)


class ActionCache:
    """The readings of the last `size` different observations (0: keeps nothing)."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._readings: OrderedDict[Hashable, Reading] = OrderedDict()

    def get(self, key: Hashable) -> Reading | None:
        """What was answered before, or None."""
        if key in self._readings:
            self._readings.move_to_end(key)
        return self._readings.get(key)

    def put(self, key: Hashable, reading: Reading) -> None:
        """Remember an answer; the one not asked for the longest makes room."""
        if not self.size:
            return
        self._readings[key] = reading
        self._readings.move_to_end(key)
        if len(self._readings) > self.size:
            self._readings.popitem(last=False)
