"""Progress of rounds and episodes: a bar with ETA on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

LINE_EVERY_S = 10.0


class Bar:
    """A bar on a terminal; elsewhere a plain line every ten seconds and at the end. A context manager."""

    def __init__(self, what: str, stream: TextIO | None = None) -> None:
        self._what = what
        self._stream = stream or sys.stdout
        self._bar: Progress | None = None
        self._task = None
        self._line_at = self._began = time.monotonic()
        self._first: int | None = None

    def __enter__(self) -> Bar:
        """Open the bar if this is a terminal."""
        if self._stream.isatty():
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
            times = (TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, *times, console=Console(file=self._stream))
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        """Close the bar."""
        if self._bar:
            self._bar.stop()

    def show(self, done: int, total: int, text: str) -> None:
        """`done` of `total` are there; `text` says how it goes."""
        if self._bar:
            if self._task is None:
                self._task = self._bar.add_task(text, total=total)
            self._bar.update(self._task, completed=done, description=text)
            return
        now = time.monotonic()
        if self._first is None:
            self._first = max(0, done - 1)  # a resumed run does not begin at nothing
        if now - self._line_at >= LINE_EVERY_S or done == total:
            self._line_at = now
            left = (now - self._began) / max(1, done - self._first) * (total - done)
            print(f"{text}, {done} of {total} {self._what}, about {left:.0f} s left", file=self._stream, flush=True)

    def say(self, text: str) -> None:
        """One line of text, above the bar."""
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)


class RoundProgress(Bar):
    """Shows `DaggerLoop.status()`."""

    def __init__(self) -> None:
        super().__init__("episodes")

    def update(self, status: dict[str, Any]) -> None:
        """Show a new status, after every episode."""
        done = status["round"] * status["num_envs"] + status["played_in_round"]
        text = f"round {status['round'] + 1}/{status['num_rounds']}, {status['solved']} solved by the policy"
        self.show(done, status["num_rounds"] * status["num_envs"], text)


class GameProgress(Bar):
    """Counts games as they end."""

    def __init__(self, total: int) -> None:
        super().__init__("games")
        self._total = total
        self._won = self._played = 0

    def advance(self, won: bool) -> None:
        """One more game has ended."""
        self._played += 1
        self._won += won
        self.show(self._played, max(self._total, self._played), f"{self._won} solved")
