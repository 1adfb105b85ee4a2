"""Confidence intervals of success rates."""

from __future__ import annotations

import math


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval (Wilson 1927) of a success rate, 95 %; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    rate, z = successes / trials, 1.96
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
