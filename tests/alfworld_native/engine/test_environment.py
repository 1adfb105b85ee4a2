"""The native engine as an `Environment`: dialect, step limit, bad input, frames."""

from __future__ import annotations

import gc
import os
import tracemalloc
from dataclasses import asdict, replace

import numpy as np
import pytest

from alfworld_native.base import Environment, Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.engine.gamefile import read_games, read_json
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from alfworld_native.language.sentences import NOTHING_HAPPENS
from alfworld_native.textworld import TextWorldEnvironment


@pytest.fixture(scope="module")
def games(household_data) -> list[Game]:
    return find_games("household_train", data=household_data)


def walkthrough(game: Game) -> list[str]:
    return read_json(game.path)["walkthrough"]


def test_every_walkthrough_wins(games):
    environment = NativeEnvironment()
    assert isinstance(environment, Environment)
    for game in games:
        step = environment.reset(game)
        assert step.text.startswith("-= Welcome to TextWorld, ALFRED! =-") and not step.done
        for command in walkthrough(game):
            assert not step.won
            step = environment.step(command)
            assert step.text != NOTHING_HAPPENS
        assert step.won and step.done


def test_commands_are_canonical_and_both_dialects_are_understood(games):
    game = next(game for game in games if game.task_type == "pick_and_place_simple")
    put = next(i for i, command in enumerate(walkthrough(game)) if command.startswith("move "))
    texts = []
    for spoken in ("move", "put"):
        environment = NativeEnvironment()
        step = environment.reset(game)
        for command in walkthrough(game)[:put]:
            step = environment.step(command)
        assert step.admissible_commands == sorted(step.admissible_commands)
        assert not any(command.startswith("move ") for command in step.admissible_commands)
        (canonical,) = [c for c in step.admissible_commands if c.startswith("put ")][:1]
        thing, _, place = canonical[4:].partition(" in/on ")
        texts.append(environment.step(canonical if spoken == "put" else f"move {thing} to {place}").text)
    assert texts[0] == texts[1] == f"You move the {thing} to the {place}."


def test_the_step_limit_ends_an_episode(games):
    environment = NativeEnvironment(max_steps=3)
    environment.reset(games[0])
    assert [environment.step("look").done for _ in range(3)] == [False, False, True]
    with pytest.raises(EnvironmentFault, match="episode is over"):
        environment.step("look")
    assert not environment.reset(games[0]).done
    of_a_mixture = replace(games[0], id="pick_and_place_simple-Mug-None-Desk-1/trial_H-2_standard2_000000")
    environment.reset(of_a_mixture)
    assert of_a_mixture.horizon == 2 and [environment.step("look").done for _ in range(2)] == [False, True]


def test_an_environment_goes_back_with_its_step_count(games):
    environment = NativeEnvironment(max_steps=4)
    environment.reset(games[0])
    environment.step("look")
    state = environment.snapshot()
    other = environment.clone()
    assert [environment.step("look").done for _ in range(3)] == [False, False, True]
    assert [other.step("look").done for _ in range(3)] == [False, False, True]
    assert not environment.restore(state).done
    assert [environment.step("look").done for _ in range(3)] == [False, False, True]
    environment.reset(games[1])
    with pytest.raises(EnvironmentFault, match="another game"):
        environment.restore(state)


def test_a_game_that_cannot_be_loaded_leaves_none(games, tmp_path):
    environment = NativeEnvironment()
    environment.reset(games[0])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        environment.reset(Game("nowhere", tmp_path / "nowhere"))
    with pytest.raises(EnvironmentFault, match="no game is loaded"):
        environment.step("look")


def test_room_state_is_textworlds(games):
    native, textworld = NativeEnvironment(), TextWorldEnvironment()
    for environment in (native, textworld):
        environment.reset(games[1])
    for command in walkthrough(games[1])[:-1]:
        assert native.step(command)[:2] == textworld.step(command)[:2]
        assert asdict(native.room_state()) == asdict(textworld.room_state())
    assert list(native.room_state().names) == list(textworld.room_state().names)
    textworld.close()


def test_a_room_state_does_not_move(games):
    environment = NativeEnvironment()
    environment.reset(games[0])
    state, before = environment.room_state(), asdict(environment.room_state())
    for command in walkthrough(games[0]):
        environment.step(command)
    assert asdict(state) == before != asdict(environment.room_state())


def test_a_frame(games):
    environment = NativeEnvironment()
    environment.reset(games[0])
    frame = environment.render()
    assert frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3


def test_a_frame_is_of_the_present_and_the_callers_own(games):
    environment = NativeEnvironment()
    environment.reset(games[0])
    first = environment.render()
    kept = first.copy()
    first[:] = 0
    environment.step("fly to the moon")
    assert np.array_equal(environment.render(), kept)
    frames = [kept]
    for command in walkthrough(games[0]):
        environment.step(command)
        frames.append(environment.render())
    assert not np.array_equal(frames[-1], kept)
    for game in (games[1], games[0]):
        environment.reset(game)
        assert np.array_equal(environment.render(), kept) == (game == games[0])


def test_games_read_beforehand_play_the_same(games):
    texts = read_games(game.path for game in games)
    for game in games[:3]:
        assert NativeEnvironment(games=texts).reset(game) == NativeEnvironment().reset(game)


def test_order_of_calls_and_types(games):
    environment = NativeEnvironment()
    for call in (environment.room_state, environment.facts, environment.snapshot, environment.render):
        with pytest.raises(EnvironmentFault, match="reset"):
            call()
    with pytest.raises(EnvironmentFault, match="reset"):
        environment.step("look")
    environment.reset(games[0])
    for action in (None, 3, ["look"], b"look"):
        with pytest.raises(EnvironmentFault, match=type(action).__name__):
            environment.step(action)
    environment.close()
    environment.close()
    with pytest.raises(EnvironmentFault, match="reset"):
        environment.step("look")
    with pytest.raises(EnvironmentFault, match="max_steps is 0"):
        NativeEnvironment(max_steps=0)


def test_thousands_of_environments_leave_nothing_behind(games):
    def play(number: int) -> None:
        for i in range(number):
            environment = NativeEnvironment()
            environment.reset(games[i % len(games)])
            environment.step("look")
            environment.close()

    play(len(games))  # what is remembered of each game stays
    gc.collect()
    files = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    tracemalloc.start()
    play(3000)
    gc.collect()
    assert tracemalloc.get_traced_memory()[0] < 100_000
    tracemalloc.stop()
    # Not to the file: what other tests have left to the garbage collector, or to a thread, opens and closes some, too.
    assert not files or len(os.listdir("/proc/self/fd")) < files + 100
