"""The original engine at the project's border: equal to native, ALFWorld's experts, faults."""

import dataclasses
import json
import random
import sys

import pytest

from alfworld_native.base import Environment, Game
from alfworld_native.engine import gamefile
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games
from alfworld_native.prove.oracle import Oracle
from alfworld_native.textworld import TextWorldEnvironment, room_state


def game_of(data, kind):
    return next(g for g in find_games("household_heldout", data) if g.task_type == kind)


@pytest.fixture
def environment():
    made = TextWorldEnvironment(max_steps=30, expert="planner")
    yield made
    made.close()


def assert_same_room(ours, theirs):
    for field in dataclasses.fields(ours):
        a, b = getattr(ours, field.name), getattr(theirs, field.name)
        if field.name == "names":
            a, b = ({k: v for k, v in dict(x).items() if not k.startswith("loc_")} for x in (a, b))
        if field.name == "contents":
            a, b = ({k: tuple(sorted(v)) for k, v in x.items()} for x in (a, b))
        assert a == b, field.name


def test_planner_solves_a_game_and_native_tells_the_same(environment, household_data):
    game = game_of(household_data, "pick_clean_then_place_in_recep")
    native = NativeEnvironment(max_steps=30)
    step = environment.reset(game)
    assert isinstance(environment, Environment)
    assert step == native.reset(game)
    actions = []
    while not step.done:
        actions.append(environment.expert_action())
        step = environment.step(actions[-1])
        assert step == native.step(actions[-1])
        assert_same_room(environment.room_state(), native.room_state())
    assert step.won
    assert environment.expert_action() is None
    assert actions[-1].startswith("put ") and " in/on " in actions[-1]
    assert len(actions) <= len(json.loads(game.path.read_text())["walkthrough"])
    with pytest.raises(EnvironmentFault, match="episode is over"):
        environment.step("look")


def test_official_game_and_step_limit(alfworld_data):
    environment = TextWorldEnvironment(max_steps=2)
    game = find_games("valid_seen", alfworld_data)[0]
    assert environment.reset(game) == NativeEnvironment().reset(game)
    with pytest.raises(EnvironmentFault, match="an action is a string"):
        environment.step(3)
    assert environment.step("fly").text == "Nothing happens."
    step = environment.step("look")
    assert (step.won, step.done) == (False, True)
    environment.close()


def test_a_game_of_a_mixture_ends_at_its_own_horizon(household_data):
    game = find_games("household_heldout", household_data)[0]
    mixed = dataclasses.replace(game, id="pick_and_place_simple-Mug-None-Desk-1/trial_H-3_standard2_000000")
    for environment in (TextWorldEnvironment(max_steps=60), NativeEnvironment(max_steps=60)):
        environment.reset(mixed)
        assert [environment.step("look").done for _ in range(2)] == [False, True]
        environment.reset(game)
        assert [environment.step("look").done for _ in range(3)] == [False] * 3
        environment.close()


def test_handcoded_expert_repeats_itself_and_leaves_random_numbers_and_arguments_alone(household_data):
    game = game_of(household_data, "pick_and_place_simple")
    environment = TextWorldEnvironment(expert="handcoded")
    arguments = sys.argv
    episodes = []
    for seed in (1, 2):
        random.seed(seed)
        expected = random.Random(seed).random()
        environment.reset(game)
        actions = []
        for _ in range(6):
            actions.append(environment.expert_action())
            environment.step(actions[-1])
        assert random.random() == expected
        episodes.append(actions)
    assert sys.argv is arguments
    assert episodes[0] == episodes[1]
    assert episodes[0][0] == "look"
    assert any(action.startswith("go to ") for action in episodes[0])
    environment.close()


@pytest.mark.parametrize("fault", [KeyError("val1"), RuntimeError("Timeout"), IndexError()])
def test_an_expert_that_fails_gives_no_label_and_the_game_goes_on(household_data, fault):
    environment = TextWorldEnvironment(expert="handcoded")
    environment.reset(game_of(household_data, "look_at_obj_in_light"))

    def fail(*arguments):
        raise fault

    environment._engine._handcoded_expert.act = fail
    step = environment.step("inventory")
    assert step.text == "You are not carrying anything."
    assert environment.expert_action() is None
    environment.close()


def test_older_dialect_is_translated(household_data, tmp_path, monkeypatch):
    game = game_of(household_data, "pick_and_place_simple")
    content = json.loads(game.path.read_text())
    commands = content["walkthrough"]
    content["grammar"] = content["grammar"].replace('"move {o} to {r}"', '"put {o} in/on {r}"')
    (tmp_path / "game.tw-pddl").write_text(json.dumps(content))
    monkeypatch.setitem(gamefile.GRAMMARS, gamefile.fingerprint(content["grammar"]), gamefile.Wording("put", "-"))
    environment = TextWorldEnvironment()
    environment.reset(Game(game.id, tmp_path / "game.tw-pddl"))
    for command in commands:
        step = environment.step(command)
    assert step.won
    environment.close()


CODE = "{open('PATH', 'w').close()}"  # TextWorld evaluates what stands in braces


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("Your task is to: ", f"{CODE} Your task is to: ", "PDDL grammar .* could run code"),
        ("Your task is to: ", f"Your task is to: {CODE} ", "task sentence .* could run code"),  # not in the fingerprint
    ],
)
@pytest.mark.parametrize("engine", [TextWorldEnvironment, Oracle])
def test_code_in_a_game_file_does_not_run(household_data, tmp_path, engine, old, new, reason):
    game = game_of(household_data, "pick_and_place_simple")
    content = json.loads(game.path.read_text())
    assert old in content["grammar"]
    content["grammar"] = content["grammar"].replace(old, new.replace("PATH", str(tmp_path / "ran")))
    crafted = tmp_path / "game.tw-pddl"
    crafted.write_text(json.dumps(content))
    with pytest.raises(EnvironmentFault, match=reason) as fault:
        engine().reset(Game(game.id, crafted) if engine is TextWorldEnvironment else crafted)
    assert not (tmp_path / "ran").exists() and "environment.name" not in str(fault.value)


def test_a_game_that_does_not_exist_leaves_none(household_data, tmp_path):
    environment = TextWorldEnvironment()
    environment.reset(find_games("household_heldout", household_data)[0])
    with pytest.raises(FileNotFoundError, match="nowhere"):
        environment.reset(Game("a/b", tmp_path / "nowhere"))
    with pytest.raises(EnvironmentFault, match="no game is loaded"):
        environment.step("look")
    environment.close()


def test_faults_before_a_game(tmp_path):
    environment = TextWorldEnvironment()
    for call in (lambda: environment.step("look"), environment.room_state):
        with pytest.raises(EnvironmentFault, match="call reset"):
            call()
    with pytest.raises(EnvironmentFault, match="without an expert"):
        environment.expert_action()
    with pytest.raises(FileNotFoundError, match="missing.tw-pddl"):
        environment.reset(Game("a/b", tmp_path / "missing.tw-pddl"))
    (tmp_path / "game.tw-pddl").write_text('{"pddl_domain": ')
    with pytest.raises(EnvironmentFault, match="truncated or no JSON"):
        environment.reset(Game("a/b", tmp_path / "game.tw-pddl"))
    environment.close()
    environment.close()
    with pytest.raises(EnvironmentFault, match="at least 1"):
        TextWorldEnvironment(max_steps=0)
    with pytest.raises(EnvironmentFault, match="handcoded, planner"):
        TextWorldEnvironment(expert="clairvoyant")


def test_handcoded_needs_the_trajectory_file_and_the_planner_does_not(household_data, tmp_path, environment):
    game = game_of(household_data, "pick_and_place_simple")
    (tmp_path / "game.tw-pddl").write_bytes(game.path.read_bytes())
    alone = Game(game.id, tmp_path / "game.tw-pddl")
    environment.reset(alone)
    assert environment.expert_action().startswith("go to ")
    handcoded = TextWorldEnvironment(expert="handcoded")
    with pytest.raises(EnvironmentFault, match="traj_data.json"):
        handcoded.reset(alone)
    handcoded.close()


def test_room_state_from_facts():
    facts = [
        ("receptacletype", "desk_1", "desktype"),
        ("receptacletype", "safe_1", "safetype"),
        ("openable", "safe_1"),
        ("opened", "safe_1"),
        ("objecttype", "mug_1", "mugtype"),
        ("objecttype", "pen_1", "pentype"),
        ("inreceptacle", "mug_1", "safe_1"),
        ("holds", "agent1", "pen_1"),
        ("atlocation", "agent1", "loc_2"),
        ("receptacleatlocation", "desk_1", "loc_1"),
        ("receptacleatlocation", "safe_1", "loc_2"),
        ("ishot", "mug_1"),
    ]
    state = room_state(facts, {"desk_1": "desk 1", "mug_1": "mug 1", "loc_1": "loc 1", "agent1": "agent"})
    assert state.names == {"desk_1": "desk 1", "mug_1": "mug 1"}
    assert (state.location, state.held) == ("loc_2", "pen_1")
    assert state.contents == {"desk_1": (), "safe_1": ("mug_1",)}
    assert state.receptacle_locations == {"desk_1": "loc_1", "safe_1": "loc_2"}
    assert (state.openable, state.opened, state.hot, state.clean) == ({"safe_1"}, {"safe_1"}, {"mug_1"}, frozenset())
