"""Invented names: nobody has read them, and a game is the same under them."""

from __future__ import annotations

import random

import pytest

from alfworld_native import make_environment
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.explorer import Explorer
from alfworld_native.experts.statistics import load_statistics
from alfworld_native.household.generator import make_game
from alfworld_native.household.levels import LEVELS
from alfworld_native.household.new_names import NEW_NAMES
from alfworld_native.renaming import RenamedEnvironment, invented_names
from xrl_alignment.play.rollouts.play import play_expert, without_questions


@pytest.fixture(scope="module")
def game(tmp_path_factory):
    split = tmp_path_factory.mktemp("renaming") / "household_train"
    split.mkdir()
    return make_game(split, 0, 5, LEVELS["compound"])


def test_names_are_new_words_of_their_own():
    known = load_statistics()
    taken = {*known.object_types, *known.receptacle_types, *(name.lower() for name in NEW_NAMES.values())}
    for seed in range(50):
        names = invented_names(random.Random(seed))
        assert names.keys() == {name.lower() for name in NEW_NAMES}
        assert len(set(names.values())) == len(names) and not taken & set(names.values())
        assert all(name.isalpha() and name.islower() for name in names.values())
    assert invented_names(random.Random(1)) == invented_names(random.Random(1)) != invented_names(random.Random(2))


def test_a_game_under_new_names_is_solved_and_says_no_old_name(game):
    environment = RenamedEnvironment(NativeEnvironment(100), invented_names(random.Random(3)))
    episode = without_questions(play_expert(environment, game, Explorer(), max_steps=100))
    assert episode.won
    said = " ".join([episode.text, *(word for step in episode.steps for word in step)]).lower()
    assert not {name.lower() for name in NEW_NAMES} & set(said.replace(",", " ").replace(".", " ").split())


def test_texts_and_commands_are_the_games_own_but_for_the_names(game):
    names = invented_names(random.Random(4))
    plain, renamed = NativeEnvironment(100), RenamedEnvironment(NativeEnvironment(100), names)
    there, here = plain.reset(game), renamed.reset(game)
    back = {new: old for old, new in names.items()}
    draw = random.Random(5)
    for _ in range(40):
        assert [_with(back, command) for command in here.admissible_commands] == there.admissible_commands
        assert _with(back, here.text) == there.text
        if here.done:
            break
        action = draw.choice(here.admissible_commands)
        there, here = plain.step(_with(back, action)), renamed.step(action)
    # An old name names nothing, also where the object is at hand.
    environment, expert = RenamedEnvironment(NativeEnvironment(100), names), Explorer()
    now = environment.reset(game)
    expert.begin(now.text)
    while not (take := next((one for one in now.admissible_commands if one.startswith("take ")), "")):
        action = expert.act().action
        now = environment.step(action)
        expert.observe(action, now.text)
    assert environment.step(_with(back, take)).text == "Nothing happens." and _with(back, take) != take
    assert environment.step(take).text.startswith("You pick up ")


def _with(names: dict[str, str], text: str) -> str:
    for old, new in names.items():
        text = text.replace(f"{old} ", f"{new} ").replace(f" {old} ", f" {new} ")
    return text


def test_old_names_come_neither_from_the_expert_nor_from_a_restored_state(game):
    """Both came past the renaming: every label named what the game does not know."""
    environment = RenamedEnvironment(
        make_environment("native", expert="planner", max_steps=100), invented_names(random.Random(3))
    )
    now = environment.reset(game)
    state = environment.snapshot()
    assert environment.restore(state).admissible_commands == now.admissible_commands
    while not now.done:
        now = environment.step(environment.expert_action())
    assert now.won
