"""What a client tells its user: progress on stderr, and the counts that `play` returns."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import dataclass, field
from typing import Any, TextIO

from alfworld_native.base import Game
from lavis.common.progress import Bar


class ClientReport(Bar):
    """Shows episodes as they end, and the state of the connection; on stderr. May be used from any thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__("episodes", stream or sys.stderr)
        self._lock = threading.Lock()
        self._waiting = False
        self._said: set[str] = set()
        self._expected = self._played = self._won = 0

    def expect(self, episodes: int) -> None:
        """At most so many episodes will be played (0: unknown)."""
        with self._lock:
            self._expected = episodes

    def episode(self, *, won: bool) -> None:
        """One more episode is over."""
        with self._lock:
            self._played += 1
            self._won += won
            self.show(self._played, max(self._expected, self._played), f"{self._won} won (by policy or expert)")

    def waiting(self, text: str) -> None:
        """Print `text`, because the server does not answer; only once until it answers again."""
        with self._lock:
            if not self._waiting:
                self.say(text)
            self._waiting = True

    def say_once(self, text: str) -> None:
        """Print `text` on a line of its own, even if several workers say it."""
        with self._lock:  # a worker that has just been told the same waits here, and then finds the text said
            if text not in self._said:
                self.say(text)
            self._said.add(text)

    def connected(self) -> None:
        """The server answers."""
        self._waiting = False


@dataclass
class EpisodeTally:
    """Counts finished episodes, from any thread."""

    report: ClientReport
    started: float = field(default_factory=time.monotonic)
    steps: int = 0
    solved_by_policy: int | None = None  # of the whole run's games, without the expert's help; None: not known
    per_task_type: dict[str, list[int]] = field(default_factory=dict)  # task type -> [won, played]
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run_is_over(self, solved: object, games: object) -> None:
        """The server has said how many of the run's games the policy has solved alone (older servers do not)."""
        if isinstance(solved, int) and isinstance(games, int):
            self.solved_by_policy = solved
            self.report.say_once(f"the run is over: the policy alone has solved {solved} of its {games} games")

    @property
    def episodes(self) -> int:
        """How many episodes have ended."""
        return sum(played for _, played in self.per_task_type.values())

    def add(self, game: Game, *, won: bool, steps: int) -> None:
        """Count one finished episode."""
        with self._lock:
            counts = self.per_task_type.setdefault(game.task_type, [0, 0])
            counts[0] += won
            counts[1] += 1
            self.steps += steps
            self.report.episode(won=won)

    def summary(self, bytes_sent: int) -> dict[str, Any]:
        """What `play` returns. `won` and `success` count the episodes that the expert drove, too."""
        won, episodes = sum(won for won, _ in self.per_task_type.values()), self.episodes
        return {
            "episodes": episodes,
            "won": won,
            "success": won / episodes if episodes else 0.0,
            "solved_by_policy": self.solved_by_policy,
            "steps": self.steps,
            "seconds": time.monotonic() - self.started,
            "bytes_sent": bytes_sent,
            "per_task_type": dict(sorted(self.per_task_type.items())),
        }
