"""Mixtures of levels: weights that mean something, and whole games for every level."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from alfworld_native.errors import EnvironmentFault
from alfworld_native.household.mixture import apportioned, checked_mixture, horizon_of, read_mixture


def test_weights_are_shares():
    assert read_mixture("standard=3 compound=1") == {"standard": 0.75, "compound": 0.25}
    assert read_mixture("many, house") == {"many": 0.5, "house": 0.5}
    assert checked_mixture({"standard": 2, "hidden": 0}) == {"standard": 1.0}
    one, same = checked_mixture({"many": 1, "standard": 3}), checked_mixture({"standard": 3, "many": 1})
    assert list(one.items()) == list(same.items()) == [("standard", 0.75), ("many", 0.25)]
    assert horizon_of({"standard": 0.5, "compound": 0.5}) == 100


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("huose=1", "unknown level 'huose'"),
        ("standard=0 many=0", "add up to nothing"),
        ("", "add up to nothing"),
        ("standard=much", "'much' is no weight"),
        ("standard=-1 many=2", "weight of level standard is -1.0"),
        ("standard=nan", "weight of level standard is nan"),
        ("many=1 standard=1 many=0", "level many is named twice"),
    ],
)
def test_a_mixture_that_means_nothing_is_refused(text, said):
    with pytest.raises(EnvironmentFault, match=said):
        read_mixture(text)


def test_games_are_whole_and_none_is_lost():
    mixture = checked_mixture({"standard": 0.3, "compound": 0.2, "hardest": 0.5})
    assert apportioned(mixture, 10) == {"standard": 3, "compound": 2, "hardest": 5}
    for number in range(12):
        games = apportioned(mixture, number)
        assert sum(games.values()) == number
        assert all(abs(games[level] - share * number) < 1 for level, share in mixture.items())


def test_by_chance_a_level_with_less_than_a_game_has_its_share_over_many_draws():
    draw, total = random.Random(1), Counter()
    for _ in range(300):
        total.update(apportioned({"standard": 0.9, "house": 0.1}, 4, draw))
    assert sum(total.values()) == 1200 and 80 < total["house"] < 160
