"""The native engine on input that is not admissible. `prove` and its tests hold it against TextWorld."""

from __future__ import annotations

import pytest

from xrl_alignment.environments.base import Game
from xrl_alignment.environments.games import find_games
from xrl_alignment.environments.native.game import NativeGame
from xrl_alignment.language.sentences import NOTHING_HAPPENS


@pytest.fixture(scope="module")
def games(household_data) -> list[Game]:
    return find_games("household_train", data=household_data)


def test_what_is_not_admissible_changes_nothing(games):
    game = NativeGame.load(games[0].path)
    before = game.facts()
    for command in ("", "LOOK", "go to nowhere 1", "take", "think: hm", "look\n", "help "):
        text = game.step(command)
        assert (text == NOTHING_HAPPENS) is (command.strip() not in game.admissible_commands())
    assert game.step("open fridge 99") == NOTHING_HAPPENS
    assert {fact for fact in game.facts() ^ before if fact[0] != "checked"} == set()
