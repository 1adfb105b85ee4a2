"""Mixtures of levels: weights, and how many games of each level they mean.

read_mixture("standard=0.3 compound=0.2")      # {"standard": 0.6, "compound": 0.4}
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import Any

from alfworld_native.errors import EnvironmentFault
from alfworld_native.household.levels import LEVELS, level_named


def read_mixture(text: str) -> dict[str, float]:
    """The mixture that `level=weight …` means; EnvironmentFault as `checked_mixture`, and for a weight that is none."""
    weights: dict[str, Any] = {}
    for part in text.replace(",", " ").split():
        level, _, weight = part.partition("=")
        if level in weights:
            raise EnvironmentFault(f"level {level} is named twice: give it one weight")
        try:
            weights[level] = float(weight or 1)
        except ValueError:
            message = f"{part}: {weight!r} is no weight; write level=weight, for instance many=0.5"
            raise EnvironmentFault(message) from None
    return checked_mixture(weights)


def checked_mixture(weights: Mapping[str, Any]) -> dict[str, float]:
    """`weights` of levels, scaled to add up to 1, without those that are 0, in the order of `LEVELS`.

    EnvironmentFault for a level that does not exist, a weight below 0, or weights that add up to nothing.
    """
    for level, weight in weights.items():
        level_named(level)
        if not isinstance(weight, int | float) or not (math.isfinite(weight) and weight >= 0):
            raise EnvironmentFault(f"the weight of level {level} is {weight!r}: use a number of at least 0")
    total = sum(weights.values())
    if not total:
        raise EnvironmentFault("the weights of the levels add up to nothing: give at least one level a weight above 0")
    # One order, because it decides which games are made: the same mixture means the same games.
    return {level: weights[level] / total for level in LEVELS if weights.get(level)}


def apportioned(mixture: Mapping[str, float], number: int, draw: random.Random | None = None) -> dict[str, int]:
    """How many of `number` games each level has: its share rounded down, and what is left over by largest remainder.

    With `draw` the games that are left over go to levels by chance, in proportion to the remainders, so that also a
    level with less than one game has its share over many draws.
    """
    exact = {level: weight * number for level, weight in mixture.items()}
    # 0.29 * 100 is 28.999999999999996 in binary: without the 1e-9 a level would lose a whole game to rounding.
    games = {level: math.floor(share + 1e-9) for level, share in exact.items()}
    rest = {level: exact[level] - games[level] for level in exact}
    for _ in range(number - sum(games.values())):
        # The largest-remainder method (Hamilton's, known from seats in parliaments), or by chance with these weights.
        if draw and sum(rest.values()) > 0:
            (level,) = draw.choices(list(rest), [max(0.0, left) for left in rest.values()])
        else:
            level = max(rest, key=rest.__getitem__)
        games[level] += 1
        rest[level] = 0.0 if draw else rest[level] - 1
    return games


def horizon_of(mixture: Mapping[str, float]) -> int:
    """The longest horizon of the levels in the mixture."""
    return max(LEVELS[level].max_steps for level in mixture)
