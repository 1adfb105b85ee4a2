"""Curves that grow with a run and take the same memory however long it lasts."""

from __future__ import annotations

import math
from collections import deque

MOST_POINTS = 400  # of a curve; longer ones are thinned


class Curve:
    """Points in the order of x. When there are too many, each two neighbours become their mean.

    A point at or before the last x replaces what was there from it on: a resumed run repeats its last steps.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        self._most = most
        self._group = 1  # how many given points become one
        self._sums: list[tuple[float, float, int]] = []  # of each group: sums of x and y, number of points
        self._last: list[float] = []  # of each group, its last x

    def add(self, x: float, y: float) -> None:
        """Add a point; one that is not finite is left out."""
        if not (math.isfinite(x) and math.isfinite(y)):
            return
        while self._last and x <= self._last[-1]:
            self._sums.pop()
            self._last.pop()
        if self._sums and self._sums[-1][2] < self._group:
            before = self._sums[-1]
            self._sums[-1] = (before[0] + x, before[1] + y, before[2] + 1)
            self._last[-1] = x
        else:
            self._sums.append((x, y, 1))
            self._last.append(x)
        if len(self._sums) > self._most:
            # Each two neighbours become one group, which ends where the second of them ends.
            pairs = [self._sums[i : i + 2] for i in range(0, len(self._sums), 2)]
            self._sums = [(sum(g[0] for g in p), sum(g[1] for g in p), sum(g[2] for g in p)) for p in pairs]
            self._last = [self._last[min(i + 1, len(self._last) - 1)] for i in range(0, len(self._last), 2)]
            self._group *= 2

    @property
    def last(self) -> float | None:
        """The x of the newest point, exactly; None without any."""
        return self._last[-1] if self._last else None

    def points(self) -> list[tuple[float, float]]:
        """The points, rounded to six digits."""
        return [(float(f"{x / n:.6g}"), float(f"{y / n:.6g}")) for x, y, n in self._sums]


class RunningShare:
    """The share of hits among the last `window` episodes; an episode may hold several tries."""

    def __init__(self, window: int = 25) -> None:
        self._episodes: deque[tuple[int, int]] = deque(maxlen=window)

    def add(self, hits: int, tries: int) -> float | None:
        """Take in an episode; returns the share now, None if nothing was tried."""
        self._episodes.append((hits, tries))
        total = sum(tries for _, tries in self._episodes)
        return sum(hits for hits, _ in self._episodes) / total if total else None
