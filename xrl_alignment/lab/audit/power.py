"""How large a difference between two success rates must be before it says anything.

Published agents are compared by their rates alone, without their results game by game. So both rates are binomial
proportions of independent samples, and the number of games decides what can be seen.
"""

from __future__ import annotations

from math import sqrt
from statistics import NormalDist

from xrl_alignment.common.intervals import wilson_interval

LEVEL, POWER = 0.05, 0.8  # two-sided test; the usual chance to find a difference that is there


def detectable(base: float, games: int) -> float | None:
    """The smallest rate above `base` that a two-sided test of two proportions finds with `POWER`; None if none is.

    Both rates are of `games` games; normal approximation with unpooled variance (Fleiss, Levin and Paik 2003, §4).
    """
    normal = NormalDist()
    # A difference of so many standard errors is significant, and found with the chance POWER.
    needed = normal.inv_cdf(1 - LEVEL / 2) + normal.inv_cdf(POWER)
    # In steps of a thousandth: the error depends on the better rate itself, so the first one that suffices is searched.
    for step in range(1, round((1 - base) * 1000) + 1):
        better = base + step / 1000
        error = sqrt((base * (1 - base) + better * (1 - better)) / games)
        if better - base >= needed * error:
            return round(better, 3)
    return None


def games_needed(base: float, better: float) -> int:
    """How many games each of the two agents must play so that this difference is found with `POWER`."""
    normal = NormalDist()
    needed = normal.inv_cdf(1 - LEVEL / 2) + normal.inv_cdf(POWER)
    # The same condition, solved for the number of games and rounded up.
    return round(needed**2 * (base * (1 - base) + better * (1 - better)) / (better - base) ** 2 + 0.5)


def one_sided_games() -> int:
    """How many games one agent must win more than another on the same games, if it loses none, at level `LEVEL`.

    Exact sign test (McNemar): each of k games that only one of them solves is a fair coin under the null hypothesis.
    """
    k = 1
    # The two-sided p of k heads in k throws is 2 * (1/2)^k.
    while 2 * 0.5**k >= LEVEL:
        k += 1
    return k


def gap_interval(won: int, games: int, base_won: int, base_games: int) -> tuple[float, float]:
    """95 % interval of the difference between two rates of independent samples (Newcombe 1998, method 10)."""
    (low, high), (base_low, base_high) = wilson_interval(won, games), wilson_interval(base_won, base_games)
    rate, base = won / games, base_won / base_games
    # Each bound adds the squared distances to the Wilson bounds on that side: no interval leaves [-1, 1].
    down = sqrt((rate - low) ** 2 + (base_high - base) ** 2)
    up = sqrt((high - rate) ** 2 + (base - base_low) ** 2)
    return rate - base - down, rate - base + up
