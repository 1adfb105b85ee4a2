"""Success over games and seeds: means, and paired differences with intervals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xrl_alignment.common.intervals import wilson_interval

DRAWS = 10_000  # of the bootstrap (Efron 1979), over seeds and games


def won_by_game(evaluation: Mapping[str, Any], trial: int = 0) -> dict[str, bool]:
    """Game -> solved, of one trial of an evaluation that `evaluate.py` wrote."""
    return {episode["game"]: episode["won"] for episode in evaluation["episodes"][trial]}


def grid(evaluations: Sequence[Mapping[str, bool]]) -> np.ndarray:
    """Solved or not, (seeds, games), float64; the games in sorted order. ValueError if seeds played other games."""
    games = sorted(evaluations[0])
    if any(sorted(evaluation) != games for evaluation in evaluations):
        raise ValueError("evaluations of other games cannot be compared")
    return np.array([[evaluation[game] for game in games] for evaluation in evaluations], dtype=float)


def success_and_interval(won: np.ndarray) -> tuple[float, float, float]:
    """Mean of `won` (seeds, games; 0 or 1) and its 95 % interval: of one seed Wilson's, of several `_drawn_interval`.

    If all games of all seeds end alike it is Wilson's, too: no draw would differ, and a width of zero is no interval.
    Seeds play the same games, so they count as no further ones.
    """
    mean = float(won.mean())
    if len(won) == 1 or mean in (0, 1):
        return mean, *wilson_interval(int(won[0].sum()), won.shape[1])
    return mean, *_drawn_interval(won)


def difference_and_interval(values: np.ndarray) -> tuple[float, float, float]:
    """Mean of paired differences (seeds, games; -1, 0 or 1) and its 95 % interval, of several seeds `_drawn_interval`.

    Of one seed, and if all differences are equal, it is made of Wilson's intervals (l, u) for the share b of the games
    that the first alone solves, and for the share c of those that the second alone solves (square and add, Newcombe
    1998; with the correlation of two shares of one sample):

        b - c - sqrt((b - l_b)² + (u_c - c)² - 2 r (b - l_b) (u_c - c)),    r = -sqrt(b c / ((1 - b) (1 - c)))

    and the upper end likewise. Unlike a bootstrap it knows that 0 of n games may be more of other ones.
    """
    mean = float(values.mean())
    if len(values) > 1 and values.min() < values.max():
        return mean, *_drawn_interval(values)
    games = values.shape[1]
    gained, lost = int((values[0] > 0).sum()), int((values[0] < 0).sum())
    b, c = gained / games, lost / games
    (low_b, high_b), (low_c, high_c) = wilson_interval(gained, games), wilson_interval(lost, games)
    r = -math.sqrt(b * c / ((1 - b) * (1 - c))) if 0 < b < 1 and 0 < c < 1 else 0.0

    def width(of_b: float, of_c: float) -> float:
        return math.sqrt(of_b**2 + of_c**2 - 2 * r * of_b * of_c)

    return mean, mean - width(b - low_b, high_c - c), mean + width(high_b - b, c - low_c)


def _drawn_interval(values: np.ndarray) -> tuple[float, float]:
    """95 % interval of the mean of `values` (seeds, games), by a bootstrap over seeds and games.

    Seeds and games are drawn with replacement, independently (a two-way bootstrap: Owen 2007, arXiv:0712.1111): another
    training run and other games would both have given other figures. It is too narrow if all but a few values are
    equal, and with few seeds.
    """
    low, high = np.quantile(_drawn_sums(values) / values.size, [0.025, 0.975])
    return float(low), float(high)


def _drawn_sums(values: np.ndarray) -> np.ndarray:
    """The sum of `values` (seeds, games) in each draw, (DRAWS,); the same draws for the same shape."""
    random = np.random.default_rng(0)
    # How often each seed, and each game, is in a draw.
    rows, columns = (random.multinomial(n, np.full(n, 1 / n), size=DRAWS) for n in values.shape)
    return ((rows @ values) * columns).sum(axis=1)


def row(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a table says of one setting: success with its interval over seeds, and by seed; steps, rejected commands."""
    values = grid([won_by_game(evaluation) for evaluation in evaluations])  # (seeds, games)
    mean, low, high = success_and_interval(values)
    episodes = [episode for evaluation in evaluations for episode in evaluation["episodes"][0]]
    # Steps of won games alone: those of a failed one say only how long it was allowed to go on.
    won = [episode["actions"] for episode in episodes if episode["won"]]
    actions = sum(episode["actions"] for episode in episodes)
    return {
        "success": mean,
        "interval": [low, high],
        "by_seed": values.mean(axis=1).tolist(),
        "games": values.shape[1],
        "games_hash": evaluations[0]["games_hash"],
        "split": evaluations[0]["split"],
        "mean_steps": sum(won) / len(won) if won else None,
        "rejected": sum(episode["rejected"] for episode in episodes) / actions if actions else 0.0,
    }


def second_trial(evaluation: Mapping[str, Any], without: Mapping[str, Any]) -> dict[str, Any]:
    """Of the games that failed in the first trial, how many the second one solved, and how many more than `without`.

    Both evaluations have the same first trial; ValueError if they have not.
    """
    # The second trial holds the failed games only; paired by game with the one without a memory.
    won, base = won_by_game(evaluation, trial=1), won_by_game(without, trial=1)
    played = grid([won, base])
    more, low, high = difference_and_interval(played[:1] - played[1:]) if won else (0.0, 0.0, 0.0)
    solved = sum(won.values())
    return {
        "failed": len(won),
        "solved": solved,
        "games": evaluation["first_trial"]["games"],
        "games_hash": evaluation["games_hash"],
        "split": evaluation["split"],
        "share": solved / len(won) if won else None,
        "interval": list(wilson_interval(solved, len(won))),
        "over_without": {"difference": more, "interval": [low, high]},
    }


def difference(ours: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Mean paired difference in success (same seed, same game) of two settings, and its interval."""
    won, won_by_base = _side_by_side(ours, base)
    values = won - won_by_base
    mean, low, high = difference_and_interval(values)
    return {"difference": mean, "interval": [low, high], "by_seed": values.mean(axis=1).tolist()}


def steps_saved(ours: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The share of the steps of `base` that `ours` saves in the games that both solve (same seed), and its interval.

    The interval has no width if there are no such games (`pairs` 0), or if all take the same steps.
    """
    # Games that both solve, (seeds, games); the interval draws seeds and games for both sums alike.
    won, won_by_base = _side_by_side(ours, base)
    both = won * won_by_base
    taken, needed = (both * _steps(each) for each in (ours, base))
    low, high = np.quantile(_saved(_drawn_sums(taken), _drawn_sums(needed)), [0.025, 0.975])
    saved = _saved(taken.sum(keepdims=True), needed.sum(keepdims=True)).item()
    return {"saved": saved, "interval": [float(low), float(high)], "pairs": int(both.sum())}


def _side_by_side(
    ours: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]
) -> tuple[np.ndarray, np.ndarray]:
    """Solved or not by `ours` and by `base`, each (seeds, games); ValueError if they played other games."""
    played = grid([won_by_game(each) for each in (*ours, *base)])
    return played[: len(ours)], played[len(ours) :]


def _saved(taken: np.ndarray, needed: np.ndarray) -> np.ndarray:
    """1 - taken / needed; 0 if no game was solved by both."""
    return 1 - np.divide(taken, needed, out=np.ones_like(needed), where=needed > 0)


def _steps(evaluations: Sequence[Mapping[str, Any]]) -> np.ndarray:
    """Steps of the first trial, (seeds, games); the games in sorted order, as in `grid`."""
    by_game = [{episode["game"]: episode["actions"] for episode in each["episodes"][0]} for each in evaluations]
    return np.array([[steps[game] for game in sorted(steps)] for steps in by_game], dtype=float)
