"""Where the time of a loop goes: seconds by part."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

PARTS = ("environment", "policy", "expert", "training", "waiting")


class TimeSplit:
    """Adds up the seconds of parts that follow each other; what belongs to none of them is `other`."""

    def __init__(self) -> None:
        self._seconds = dict.fromkeys(PARTS, 0.0)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of this block to the part `name`; blocks must not be nested."""
        began = time.monotonic()
        try:
            yield
        finally:
            self._seconds[name] += time.monotonic() - began

    def take(self, total_s: float) -> dict[str, float]:
        """The seconds of every part of `total_s`, `other` included; counting begins anew."""
        taken, self._seconds = self._seconds, dict.fromkeys(PARTS, 0.0)
        return {**taken, "other": max(0.0, total_s - sum(taken.values()))}
