"""ALFWorld's experts beside the native engine: one decides as in TextWorld, the other walks a shortest way."""

from __future__ import annotations

import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from alfworld_native import make_environment
from alfworld_native.advice.environment import AdvisedNativeEnvironment
from alfworld_native.advice.shortest import shortest_way
from alfworld_native.base import Environment, Game
from alfworld_native.engine.game import NativeGame
from alfworld_native.engine.world import load_world
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from lavis.common.errors import MissingFileError


def decisions(environment: Environment, game: Game, steps: int = 30) -> list[str | None]:
    """What the expert beside `environment` would do in each state; every fifth command is not its own."""
    rng = random.Random(game.id)
    now, found = environment.reset(game), []
    for step in range(steps):
        found.append(environment.expert_action())
        if now.done:
            break
        own = found[-1] or "look"
        now = environment.step(rng.choice(now.admissible_commands) if step % 5 == 4 else own)
    return found


@pytest.fixture
def heldout(household_data: Path) -> list[Game]:
    return find_games("household_heldout", household_data)


@pytest.mark.parametrize("types", [3, pytest.param(6, marks=pytest.mark.slow)])
def test_the_handcoded_expert_decides_as_in_textworld(heldout: list[Game], alfworld_data: Path, types: int) -> None:
    official = find_games("valid_seen", alfworld_data)
    # The smallest room of each type: TextWorld takes ten times as long to load a kitchen.
    by_size = sorted(official, key=lambda game: Path(game.path).stat().st_size, reverse=True)
    one_of_each_type = list({game.task_type: game for game in by_size}.values())
    assert len(one_of_each_type) == 6
    one_of_each_type.sort(key=lambda game: Path(game.path).stat().st_size)
    native, textworld = (make_environment(name, expert="handcoded") for name in ("native", "textworld"))
    random.seed(3)
    won = 0
    for game in [*heldout[:2], *one_of_each_type[:types]]:
        found = decisions(native, game)
        assert found == decisions(textworld, game), game.id
        won += len(found) < 30
    assert won > types // 2  # so most comparisons go to a game's end
    assert random.random() == random.Random(3).random()  # it draws from its own generator
    textworld.close()


def test_the_planner_walks_a_shortest_way_from_wherever_it_is(heldout: list[Game]) -> None:
    environment = make_environment("household", expert="planner")
    assert isinstance(environment, Environment) and (environment.name, environment.expert) == ("native", "planner")
    for game in heldout:
        now, steps = environment.reset(game), 0
        while not now.won:
            now = environment.step(environment.expert_action())
            steps += 1
        assert environment.expert_action() is None
        assert steps == len(shortest_way(fresh(game)))
    assert None not in decisions(environment, heldout[0], steps=4)


def fresh(game: Game) -> NativeGame:
    made = NativeGame(load_world(game.path))
    made.reset()
    return made


def test_a_handcoded_expert_that_fails_gives_no_label_and_the_game_goes_on(
    heldout: list[Game], monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = AdvisedNativeEnvironment(expert="handcoded")
    environment.reset(heldout[0])
    assert environment.expert_action() == "look"
    monkeypatch.setattr(environment._handcoded._agent, "act", lambda *_: {}["val1"])
    assert environment.step("inventory").text == "You are not carrying anything."
    assert environment.expert_action() is None


def test_what_the_handcoded_expert_cannot_do(heldout: list[Game], tmp_path: Path) -> None:
    environment = AdvisedNativeEnvironment(expert="handcoded")
    environment.reset(heldout[0])
    with pytest.raises(EnvironmentFault, match="goes by what it has seen"):
        environment.restore(environment.snapshot())
    alone = shutil.copy(heldout[0].path, tmp_path)
    with pytest.raises(MissingFileError, match="handcoded expert needs .*traj_data.json beside the game file"):
        environment.reset(replace(heldout[0], path=Path(alone)))
    with pytest.raises(EnvironmentFault, match="unknown ALFWorld expert 'clairvoyant': .*handcoded"):
        AdvisedNativeEnvironment(expert="clairvoyant")


@pytest.mark.parametrize("expert", ["handcoded", "planner"])
def test_without_a_game_there_is_no_advice(heldout: list[Game], expert: str) -> None:
    environment = AdvisedNativeEnvironment(expert=expert)
    with pytest.raises(EnvironmentFault, match="no game is loaded"):
        environment.expert_action()
    environment.reset(heldout[0])
    environment.close()
    with pytest.raises(EnvironmentFault, match="no game is loaded"):
        environment.expert_action()


def test_a_reset_without_its_expert_leaves_no_game(heldout: list[Game], tmp_path: Path) -> None:
    environment = AdvisedNativeEnvironment(expert="handcoded")
    environment.reset(heldout[0])
    alone = shutil.copy(heldout[1].path, tmp_path)
    with pytest.raises(MissingFileError):
        environment.reset(replace(heldout[1], path=Path(alone)))
    with pytest.raises(EnvironmentFault, match="no game is loaded"):
        environment.step("look")  # the expert of the game before would advise in this one
