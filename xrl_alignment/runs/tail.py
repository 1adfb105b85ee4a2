"""Reads a log that somebody else still writes: only what is new, only whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_PIECE = 1 << 20  # bytes that are read at once


class Tail:
    """The lines of `path` that have come since the last look; a log that is not there has none."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._inode = -1
        self._at = 0  # where the next line begins

    def began_anew(self) -> bool:
        """Whether the log was replaced or has become shorter, so that `lines` gives it from its beginning.

        A resumed run cuts off what it plays again.
        """
        try:
            stat = self.path.stat()
        except OSError:
            return False
        anew = self._at > 0 and (stat.st_ino != self._inode or stat.st_size < self._at)
        self._inode = stat.st_ino
        if anew:
            self._at = 0
        return anew

    def lines(self) -> Iterator[tuple[int, bytes]]:
        """Each new whole line without its end, and where in the file it begins."""
        try:
            file = open(self.path, "rb", buffering=0)
        except OSError:
            return
        with file:
            file.seek(self._at)
            rest = b""
            while piece := file.read(_PIECE):
                *whole, rest = (rest + piece).split(b"\n")
                for line in whole:
                    start, self._at = self._at, self._at + len(line) + 1
                    yield start, line
