"""Confidence intervals of success rates."""

from __future__ import annotations

import math


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's score interval (Wilson 1927) of a success rate, 95 %; (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    # (p + z²/2n ± z √(p (1 - p) / n + z²/4n²)) / (1 + z²/n), with the normal distribution's 97.5 % quantile z. Unlike
    # p ± z √(p (1 - p) / n) it has a width when all games, or none, are solved.
    rate, z = successes / trials, 1.96
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    # The rate is in it: if all or none are solved it is a bound, which the quotients miss by a rounding error.
    return min(rate, max(0.0, (centre - spread) / scale)), max(rate, min(1.0, (centre + spread) / scale))
