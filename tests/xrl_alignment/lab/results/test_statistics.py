"""Means, paired differences and their intervals."""

from __future__ import annotations

import numpy as np
import pytest

from xrl_alignment.lab.results.statistics import (
    difference,
    difference_and_interval,
    grid,
    row,
    second_trial,
    steps_saved,
    success_and_interval,
)

SOLVED, FAILED = {"actions": 10, "rejected": 0}, {"actions": 50, "rejected": 5}


def evaluation(*trials: dict[str, bool]) -> dict:
    """What `evaluate.py` writes, as far as it is read."""
    episodes = [[{"game": game, "won": won} | (SOLVED if won else FAILED) for game, won in t.items()] for t in trials]
    return {"episodes": episodes, "games_hash": "abc", "split": "valid_seen", "first_trial": {"games": len(trials[0])}}


@pytest.mark.parametrize("interval", [success_and_interval, difference_and_interval])
def test_the_interval_of_several_seeds_is_that_of_the_two_way_bootstrap(interval) -> None:  # type: ignore[no-untyped-def]
    random = np.random.default_rng(1)
    skill = 0.7 + random.normal(scale=0.15, size=(8, 1)) + random.normal(scale=0.15, size=(1, 80))
    values = (random.random((8, 80)) < skill).astype(float)
    mean, low, high = interval(values)
    # The variance of the sum over draws in closed form. A seed is drawn W times, a game V times, both multinomial:
    # E[W_i W_k] = 1 + [i = k] - 1/seeds, and V alike.
    (seeds, games), total = values.shape, values.sum()
    of_seeds = (values.sum(1) ** 2).sum() - total**2 / seeds
    of_games = (values.sum(0) ** 2).sum() - total**2 / games
    of_both = (values**2).sum() - (values.sum(1) ** 2).sum() / games - (values.sum(0) ** 2).sum() / seeds
    deviation = np.sqrt(of_seeds + of_games + of_both + total**2 / values.size) / values.size
    assert of_seeds > of_both and of_games > of_both  # each matters
    assert low < mean < high and high - low == pytest.approx(2 * 1.96 * deviation, rel=0.04)


@pytest.mark.parametrize(("won", "low", "high"), [(140, 0.973, 1.0), (139, 0.961, 0.999), (138, 0.949, 0.996)])
def test_one_lost_game_of_one_seed_lowers_both_ends(won: int, low: float, high: float) -> None:
    found = success_and_interval(np.array([[1.0] * won + [0.0] * (140 - won)]))
    assert found == pytest.approx((won / 140, low, high), abs=5e-4)  # Wilson's


@pytest.mark.parametrize(
    ("gained", "lost", "games"), [(3, 0, 60), (2, 1, 140), (7, 7, 140), (15, 3, 140), (20, 20, 100)]
)
def test_the_interval_of_a_difference_covers_the_true_one_in_95_of_100_samples(
    gained: int, lost: int, games: int
) -> None:
    shares = np.array([gained, lost, games - gained - lost]) / games
    drawn = np.random.default_rng(0).multinomial(games, shares, size=2000)
    ends = np.array(
        [difference_and_interval(np.repeat([[1.0, -1.0, 0.0]], counts, axis=1))[1:] for counts in drawn.tolist()]
    )
    inside = (ends[:, 0] <= shares[0] - shares[1]) & (shares[0] - shares[1] <= ends[:, 1])
    assert 0.94 <= inside.mean() <= (0.975 if gained > 3 else 1)  # more than it says only if few games differ


def test_four_games_that_one_alone_solves_are_no_difference_yet() -> None:
    four, seven = (np.array([[1.0] * n + [0.0] * (140 - n)]) for n in (4, 7))
    assert difference_and_interval(four)[1] < 0 < difference_and_interval(seven)[1]  # sign test: p 0.125 and 0.016


def test_a_difference_is_paired_by_game() -> None:
    games = {f"g{i}": i % 2 == 0 for i in range(40)}
    better = games | {"g1": True, "g3": True, "g5": True, "g7": True}
    found = difference([evaluation(better)] * 2, [evaluation(games)] * 2)
    assert found["difference"] == pytest.approx(0.1) and found["by_seed"] == pytest.approx([0.1, 0.1])
    low, high = found["interval"]
    assert 0 < low < 0.1 < high < 0.25  # unpaired, the interval would be four times as wide
    # If no game differs, another one still might: of 40, up to 0.088 (Wilson).
    assert difference([evaluation(games)], [evaluation(games)])["interval"] == pytest.approx([-0.088, 0.088], abs=1e-3)
    all_won, none = (dict.fromkeys(games, won) for won in (True, False))
    assert difference([evaluation(all_won)], [evaluation(none)])["interval"] == pytest.approx([0.876, 1], abs=1e-3)


def test_other_games_are_not_compared() -> None:
    with pytest.raises(ValueError, match="other games"):
        grid([{"a": True}, {"b": True}])
    for compare in (difference, steps_saved):
        with pytest.raises(ValueError, match="other games"):
            compare([evaluation({"a": True})], [evaluation({"b": True})])


@pytest.mark.parametrize("won", [True, False])
def test_an_interval_has_a_width_if_all_games_end_alike(won: bool) -> None:
    games = {f"g{i}": won for i in range(20)}
    low, high = row([evaluation(games)] * 3)["interval"]  # of 20 games, not of 60
    assert (low, high) == pytest.approx((0.839, 1.0) if won else (0.0, 0.161), abs=1e-3)


def test_a_row_counts_steps_of_solved_games_and_rejected_commands() -> None:
    found = row([evaluation({"a": True, "b": False}), evaluation({"b": True, "a": True})])
    assert found["success"] == 0.75 and found["by_seed"] == [0.5, 1.0]
    assert found["mean_steps"] == 10 and found["rejected"] == 5 / 80


def test_the_second_trial_is_of_failed_games() -> None:
    first = {f"g{i}": i >= 20 for i in range(30)}
    without = evaluation(first, {f"g{i}": i == 0 for i in range(20)})
    found = second_trial(evaluation(first, {f"g{i}": i < 6 for i in range(20)}), without)
    assert (found["failed"], found["solved"], found["share"]) == (20, 6, 0.3)
    low, high = found["over_without"]["interval"]
    assert 0 < low < found["over_without"]["difference"] == 0.25 < high < 0.5
    none = second_trial(without, without)["over_without"]
    assert none == {"difference": 0, "interval": pytest.approx([-0.161, 0.161], abs=1e-3)}


def test_no_game_is_left_for_a_second_trial() -> None:
    solved = evaluation({"a": True}, {})
    assert second_trial(solved, solved)["share"] is None


def test_second_trials_after_other_first_ones_are_not_compared() -> None:
    with pytest.raises(ValueError, match="other games"):
        second_trial(evaluation({"a": False}, {"a": True}), evaluation({"b": False}, {"b": True}))


def test_steps_are_saved_in_the_games_that_both_solve() -> None:
    base = evaluation({f"g{i}": True for i in range(20)} | {"lost": False})
    ours = evaluation({f"g{i}": True for i in range(19)} | {"g19": False, "lost": True})
    for episode in ours["episodes"][0]:
        episode["actions"] = 8 + int(episode["game"][1:] or 0) % 2 if episode["game"] != "lost" else 3
    found = steps_saved([ours], [base])
    assert found["pairs"] == 19 and found["saved"] == pytest.approx(1 - (19 * 8 + 9) / 190)
    low, high = found["interval"]
    assert 0.1 < low < found["saved"] < high < 0.2
    nothing = evaluation({f"g{i}": False for i in range(20)} | {"lost": True})
    assert steps_saved([nothing], [base]) == {"saved": 0, "interval": [0, 0], "pairs": 0}
