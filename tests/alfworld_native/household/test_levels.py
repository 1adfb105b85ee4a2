"""Levels: each knob changes the games as it says, and the default changes nothing."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import pytest

from alfworld_native.advice.shortest import task_of
from alfworld_native.base import Game
from alfworld_native.engine.world import load_world
from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.state_service import StateService
from alfworld_native.games import find_games
from alfworld_native.household.floor_plans import GRID, room_kind
from alfworld_native.household.generator import generate, make_game
from alfworld_native.household.houses import draw_plan
from alfworld_native.household.levels import LEVELS, GameLevel, frozen_splits, level_named, level_of, longest_horizon


@pytest.fixture(scope="module")
def worlds(tmp_path_factory):
    """Level -> four of its games, made ready."""

    def make(name: str, level: GameLevel) -> list:
        split = tmp_path_factory.mktemp(name) / "household_train"
        split.mkdir()
        return [load_world(make_game(split, index, 3, level).path) for index in range(4)]

    return {name: make(name, level) for name, level in LEVELS.items()}


def sizes(worlds) -> tuple[list[int], list[int]]:
    """Receptacles and objects of each game."""
    return [len(world.location_of) for world in worlds], [len(world.type_of) for world in worlds]


def test_rooms_receptacles_and_distractors(worlds):
    assert all(8 <= number <= 16 for number in sizes(worlds["standard"])[0])
    assert all(number >= 17 for number in sizes(worlds["large"])[0])
    assert all(number >= 40 for number in sizes(worlds["house"])[0])
    for places, things in zip(*sizes(worlds["cluttered"]), strict=True):
        assert 5 * places <= things <= 7 * places + 4  # what belongs nowhere comes on top


def test_goals_and_the_number_of_objects(worlds):
    for world in worlds["many"]:
        ((errand,), four) = task_of(world).errands, 4
        assert len(errand.parts) == four and re.match("Your task is to: (put|find) four ", world.text.task)
    for name, goals in (("compound", 2), ("hardest", 3)):
        for world in worlds[name]:
            assert len(task_of(world).errands) == goals
            assert world.text.task.count(", and ") == goals - 1


def test_what_is_asked_for_is_hidden(worlds):
    hidden = 0
    for world in worlds["hidden"]:
        task = task_of(world)
        parts = [task.held] if task.held else [part for errand in task.errands for part in errand.parts]
        things = {thing for part in parts for thing in part.things}
        assert len(things) == len(parts)  # no spare ones
        homes = {place for place, contents in world.contents.items() if things & set(contents)}
        possible = any(world.accepts(place, thing) for thing in things for place in world.able["openable"])
        hidden += homes <= world.able["openable"]
        assert homes <= world.able["openable"] or not possible or len(world.able["openable"]) < 4
    assert hidden >= 3


def test_new_names(worlds):
    known = {kind for world in worlds["house"] for kind in world.type_of.values()}
    new = {kind for world in worlds["renamed"] for kind in world.type_of.values()} - known
    assert len(new) > 10 and "mugtype" in known
    assert not any("mug " in name for world in worlds["hardest"] for name in world.names.values())


def test_a_house_is_the_same_whoever_asks_and_its_rooms_are_apart():
    house = draw_plan(4, True, random.Random(1))
    assert house == draw_plan(4, True, random.Random(1)) and house.kind == "House"
    assert len({room_kind(int(number)) for number in house.label.split("_")}) == 4
    assert len({r.id.lower() for r in house.receptacles}) == len(house.receptacles)
    assert len(set(house.points)) == len(house.points)
    for receptacle in house.receptacles:  # each is reached from near by: both were moved alike
        x, _ = (int(word.replace("_minus_", "-")) for word in receptacle.location.split("_bar_")[1:3])
        assert abs(x * GRID - receptacle.position[0]) < 3.0


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"rooms": 5}, "rooms must be from 1 to 4, got 5"),
        ({"receptacles": (20, 10)}, r"receptacles \(most\) must be from 20"),
        ({"clutter": (3.0, 1.0)}, "clutter"),
        ({"count": 6}, "count must be from 2 to 5, got 6"),
        ({"goals": 2}, "leave look_at_obj_in_light"),
        ({"max_steps": 0}, "max_steps"),
        ({"kinds": ()}, "kinds is empty"),
        ({"kinds": ("pick_two",)}, "kinds: unknown task type 'pick_two': .*pick_two_obj_and_place"),
    ],
)
def test_a_level_that_makes_no_game_is_refused(knobs, said):
    with pytest.raises(EnvironmentFault, match=said):
        GameLevel(**knobs)


def test_names_of_levels():
    assert level_named("house").rooms == 4 and level_of("household_house") == "house"
    assert level_of("household_train") is level_of("house") is level_of("valid_seen") is None
    assert frozen_splits()[0] == "household_standard"
    with pytest.raises(EnvironmentFault, match="unknown level 'huose'"):
        level_named("huose")


def test_a_level_with_more_receptacles_alone_has_the_games_it_always_had():
    assert LEVELS["standard"].key() == "16" and LEVELS["standard"].with_most(40).key() == "40"
    keys = {dataclasses.replace(level, max_steps=50).key() for level in LEVELS.values()}
    assert len(keys) == len(LEVELS)


def test_a_folder_of_a_level_grants_the_levels_steps(tmp_path):
    """Whoever played such a folder got 50 steps, in which a hardest game cannot be won."""
    level = dataclasses.replace(LEVELS["many"], max_steps=73)
    for folder, asked, steps in (("many", level, 73), ("plain", LEVELS["standard"], 50)):
        generate(tmp_path / folder, 1, 0, seed=0, level=asked)
        games = find_games("household_train", data=tmp_path / folder)
        assert longest_horizon(games) == steps
        assert StateService(games[0]).max_steps == steps
    assert longest_horizon([Game("pick/own", Path("game.tw-pddl"))]) == 50, "of nobody's folder"
    # A frozen test set beside them keeps its own horizon.
    own = tmp_path / "many" / "json_2.1.1" / "household_house" / "task" / "trial" / "game.tw-pddl"
    assert longest_horizon([Game("task/trial", own, "household_house")]) == 150
    generate(tmp_path / "many", 1, 0, seed=0, level=LEVELS["standard"], replace=True)
    assert longest_horizon(games := find_games("household_train", data=tmp_path / "many")) == 50 and games


@pytest.mark.parametrize(("knobs", "named"), [({"instances": 0}, "instances"), ({"clutter": (-3, 2)}, "clutter")])
def test_a_knob_that_makes_no_game_is_named(knobs, named):
    with pytest.raises(EnvironmentFault, match=f"{named}.* must be from"):
        dataclasses.replace(LEVELS["standard"], **knobs)
