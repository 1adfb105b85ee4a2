"""Frames of the receptacle at hand."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest

from alfworld_native import make_environment
from alfworld_native.base import Game
from alfworld_native.close import CloseEnvironment, render_close
from alfworld_native.engine.environment import NativeEnvironment
from lavis.common.errors import ConfigError


def close(game: Game, *actions: str, seed: int = 0, show_ids: bool = False) -> np.ndarray:
    """The frame after some actions."""
    environment = make_environment("native", show_ids=show_ids, camera="close", seed=seed)
    environment.reset(game)
    for action in actions:
        assert environment.step(action).text != "Nothing happens."
    return environment.render()


def same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape == (224, 224, 3) and bool((one == other).all())


def commands(game: Game, start: str, *actions: str) -> list[str]:
    """The admissible commands that begin with `start`, after some actions."""
    environment = NativeEnvironment()
    now = environment.reset(game)
    for action in actions:
        now = environment.step(action)
    return [command for command in now.admissible_commands if command.startswith(start)]


@pytest.fixture
def open_and_take(games: list[Game]) -> tuple[Game, str, str, str]:
    """A game with a closed container that holds something: the commands that lead to it, open it and take it."""
    for game in games:
        for go in commands(game, "go to "):
            for opens in commands(game, "open ", go):
                for take in commands(game, "take ", go, opens):
                    return game, go, opens, take
    return pytest.fail("no container holds anything")


def test_before_the_first_go_to_the_frame_shows_the_room(games: list[Game]) -> None:
    environment = NativeEnvironment(show_ids=False)
    environment.reset(games[0])
    assert same(close(games[0]), environment.render())


@pytest.mark.parametrize("size", [5000, 64.5, 31])
def test_the_size_is_checked_in_the_room_and_at_a_receptacle(games: list[Game], size: float) -> None:
    environment = make_environment("native", camera="close")
    now = environment.reset(games[0])
    for _ in range(2):
        with pytest.raises(ConfigError, match=f"frame size is {size}"):
            environment.view(size)
        environment.step(next(command for command in now.admissible_commands if command.startswith("go to ")))


def test_it_shows_what_is_in_an_open_container_and_what_is_taken_from_it(open_and_take) -> None:
    game, go, opens, take = open_and_take
    shots = [close(game, *actions) for actions in ((), (go,), (go, opens), (go, opens, take))]
    assert len({shot.tobytes() for shot in shots}) == 4


def test_a_frame_depends_on_game_state_and_seed_alone(games: list[Game]) -> None:
    (go, *_) = commands(games[0], "go to ")
    first = close(games[0], go)
    assert same(first, close(games[0], go)) and same(first, close(games[0], go, "look"))
    assert not same(first, close(games[0], go, seed=1))
    other = replace(games[0], id=f"{games[0].id}-again")  # the same room in another game: other light and materials
    assert not same(first, close(other, go))


def test_only_games_of_training_splits_have_training_variants(open_and_take, monkeypatch) -> None:
    game, go, opens, _ = open_and_take
    told: list[bool] = []
    real = render_close
    monkeypatch.setattr(
        "alfworld_native.close.render_close", lambda *args, **kw: told.append(kw["held_out"]) or real(*args, **kw)
    )
    shots = [close(replace(game, split=split), go, opens) for split in ("household_train", "train", "valid_seen", "")]
    assert told == [False, False, True, True]
    assert same(shots[0], shots[1]) and same(shots[2], shots[3]) and not same(shots[0], shots[2])


def test_labels_are_written_if_asked_for(open_and_take) -> None:
    game, go, opens, _ = open_and_take
    assert not same(close(game, go, opens, show_ids=True), close(game, go, opens))
    # A shut container shows no object, so there is nothing to write on.
    assert same(close(game, go, show_ids=True), close(game, go))


def test_it_can_be_copied_and_shown_larger(open_and_take) -> None:
    game, go, opens, _ = open_and_take
    environment = make_environment("native", camera="close", name_by="type")
    environment.reset(game)
    environment.step(go)
    other = copy.deepcopy(environment)
    assert same(environment.render(), other.render())
    assert environment.view(448).shape == (448, 448, 3) and same(environment.render(), other.render())


def test_objects_without_a_drawing_are_counted_once(games: list[Game], tmp_path, caplog) -> None:
    """A game of another generator, with a type that nobody has drawn."""
    game = next(game for game in games if "Mug_bar_" in game.path.read_text(encoding="utf-8"))
    path = tmp_path / "game.tw-pddl"
    path.write_text(game.path.read_text(encoding="utf-8").replace("Mug_bar_", "Quux_bar_"), encoding="utf-8")
    strange = replace(game, path=path)
    environment = make_environment("native", camera="close")
    for known in (*games, game):
        environment.reset(known)
    assert not caplog.messages  # sinks and lids are no objects that anybody looks for
    names = environment.room_state().names.values()
    for _ in range(2):
        environment.reset(strange)
    (message,) = caplog.messages
    assert f"unknown boxes: quux ({sum(name.startswith('mug ') for name in names)})" in message
    for command in commands(strange, "go to "):
        environment.step(command)
        assert environment.render().any()


class OwnFrames:
    """An environment that renders by itself."""

    name = "own"


def test_an_environment_that_renders_by_itself_has_no_such_camera() -> None:
    with pytest.raises(ConfigError, match="environment.camera=close: own renders its own frames"):
        CloseEnvironment(OwnFrames())  # type: ignore[arg-type]


def test_the_same_room_in_another_game_is_drawn_anew(games: list[Game]) -> None:
    environment = make_environment("native", show_ids=False, camera="close")
    go = commands(games[0], "go to ")[0]
    other = replace(games[0], id=f"{games[0].id}_again")
    for game in (games[0], other):
        environment.reset(game)
        environment.step(go)
        frame = environment.render()
    assert same(frame, close(other, go)) and not same(frame, close(games[0], go))
