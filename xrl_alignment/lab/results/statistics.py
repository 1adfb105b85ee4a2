"""Success over games and seeds: means, and paired differences with intervals."""

from __future__ import annotations

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


def mean_and_interval(values: np.ndarray, *, lowest: float = -1.0, seed: int = 0) -> tuple[float, float, float]:
    """Mean of `values` (seeds, games), from `lowest` to 1, and its 95 % interval, by a bootstrap over seeds and games.

    Seeds and games are drawn with replacement, independently (a two-way bootstrap: Owen 2007, arXiv:0712.1111): another
    training run and other games would both have given other figures. Of paired differences it is the interval of the
    mean difference; success has `lowest` 0.

    If all values are equal no draw differs, and the bootstrap would call a width of zero an interval. Then Wilson's
    interval for 0 of these games says how large a share of other games may have another value, whichever. Seeds played
    the same games, so they are no further ones.
    """
    mean = float(values.mean())
    if values.min() == values.max():
        _, share = wilson_interval(0, values.shape[1])
        return mean, mean - share * (mean - lowest), mean + share * (1 - mean)
    low, high = np.quantile(_drawn_sums(values, seed) / values.size, [0.025, 0.975])
    return mean, float(low), float(high)


def _drawn_sums(values: np.ndarray, seed: int = 0) -> np.ndarray:
    """The sum of `values` (seeds, games) in each draw, (DRAWS,); the same draws for the same shape and `seed`."""
    random = np.random.default_rng(seed)
    # How often each seed, and each game, is in a draw.
    rows, columns = (random.multinomial(n, np.full(n, 1 / n), size=DRAWS) for n in values.shape)
    return ((rows @ values) * columns).sum(axis=1)


def row(evaluations: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What a table says of one setting: success with its interval over seeds, and by seed; steps, rejected commands."""
    values = grid([won_by_game(evaluation) for evaluation in evaluations])  # (seeds, games)
    mean, low, high = mean_and_interval(values, lowest=0.0)
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
    more, low, high = mean_and_interval(played[:1] - played[1:]) if won else (0.0, 0.0, 0.0)
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
    mean, low, high = mean_and_interval(values)
    return {"difference": mean, "interval": [low, high], "by_seed": values.mean(axis=1).tolist()}


def steps_saved(ours: Sequence[Mapping[str, Any]], base: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The share of the steps of `base` that `ours` saves in the games that both solve (same seed), and its interval."""
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
