"""What a client tells its user: a bar with the time that is left on a terminal, plain lines in a log."""

from __future__ import annotations

import sys
import threading
import time
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_LINE_EVERY_S = 10.0


class ClientReport:
    """Progress of the episodes; a context manager. May be used from any thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._lock = threading.Lock()
        self._waiting = False
        self._total: int | None = None
        self._played = self._won = 0
        self._started = self._line_at = time.monotonic()
        self._bar: Progress | None = None
        if self._stream.isatty():
            columns = (TextColumn("episodes"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
            times = (TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, *times, console=Console(file=self._stream))
            self._task = self._bar.add_task("", total=None)

    def __enter__(self) -> ClientReport:
        if self._bar:
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar:
            self._bar.stop()
        elif self._played:
            self._line()

    def expect(self, episodes: int | None) -> None:
        """At most so many episodes will be played (None: nobody knows)."""
        with self._lock:
            self._total = episodes
            if self._bar:
                self._bar.update(self._task, total=episodes)

    def episode(self, *, won: bool) -> None:
        """One more episode is over."""
        with self._lock:
            self._played += 1
            self._won += won
            if self._bar:
                self._bar.update(self._task, advance=1, description=f"won {self._won}")
            elif time.monotonic() - self._line_at >= _LINE_EVERY_S:
                self._line()

    def waiting(self, text: str) -> None:
        """The server is not there; said once until it is."""
        with self._lock:
            if not self._waiting:
                self._print(text)
            self._waiting = True

    def connected(self) -> None:
        """The server answers."""
        self._waiting = False

    def say(self, text: str) -> None:
        """One line."""
        with self._lock:
            self._print(text)

    def _line(self) -> None:
        self._line_at = time.monotonic()
        of = f"/{self._total}" if self._total else ""
        rate = self._played / max(self._line_at - self._started, 1e-9)
        left = f", about {(self._total - self._played) / rate:.0f} s left" if self._total else ""
        self._print(f"episodes {self._played}{of}, won {self._won}, {rate:.2f}/s{left}")

    def _print(self, text: str) -> None:
        if self._bar:
            self._bar.console.print(text, markup=False, highlight=False)
        else:
            print(text, file=self._stream, flush=True)
