"""Watches one process while it is fed: what it writes, how long an input takes, how much it grows."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

HANG_S, STOP_S = 1.0, 10  # seconds of this process's own time: the machine may be busy with other work
GROWTH = 96 << 20  # bytes that caches and allocators may take after the first tenth
_CHANGES = {"os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod"}
_FORBIDDEN = {"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "socket.connect"}


class Hang(Exception):
    """An input that took `STOP_S` of processor time."""


class Watch:
    """Notes every file that is changed outside `folder`, every program that is started, every connection."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self.seen: list[str] = []
        self._on = False
        sys.addaudithook(self._event)
        signal.signal(signal.SIGPROF, self._stop)

    @contextlib.contextmanager
    def input(self) -> Iterator[None]:
        """Surround one input."""
        self._on = True
        signal.setitimer(signal.ITIMER_PROF, STOP_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._on = False

    def _stop(self, *_: object) -> None:
        raise Hang(f"more than {STOP_S} s")

    def _event(self, event: str, arguments: tuple) -> None:
        if not self._on:
            return
        if event in _FORBIDDEN:
            self.seen.append(f"{event} {arguments[:2]!r}"[:300])
        elif event == "open" and self._written(arguments[0], arguments[2]):
            self.seen.append(f"open for writing {arguments[0]!r}")
        elif event in _CHANGES and self._outside(arguments[0]):
            self.seen.append(f"{event} {arguments!r}"[:300])

    def _written(self, path: object, flags: object) -> bool:
        changes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        return isinstance(flags, int) and bool(flags & changes) and self._outside(path)

    def _outside(self, path: object) -> bool:
        if not isinstance(path, (str, bytes, os.PathLike)):
            return False
        name = os.path.realpath(os.fsdecode(path))
        return not (name.startswith(self.folder) or name == os.devnull or "__pycache__" in name)


def memory() -> int:
    """Bytes that this process holds."""
    return psutil.Process().memory_info().rss
