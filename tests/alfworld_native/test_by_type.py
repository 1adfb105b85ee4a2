"""Objects without numbers: the same game in both forms, command by command."""

from __future__ import annotations

import copy
import random
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from alfworld_native import make_environment
from alfworld_native.base import Environment, Game, TimeStep
from alfworld_native.by_type import ByTypeEnvironment
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.errors import EnvironmentFault
from alfworld_native.experts.explorer import Explorer
from alfworld_native.experts.seeing import SeeingExplorer
from alfworld_native.games import find_games
from alfworld_native.reuse import ReusedEnvironments
from xrl_alignment.play.client.player import ClientPlayer
from xrl_alignment.play.rollouts.play import play_expert, without_questions


def objects_of(environment: NativeEnvironment) -> list[str]:
    """The names of all objects of the game, the longest first."""
    state = environment.room_state()
    names = (name for key, name in state.names.items() if key not in state.receptacle_locations)
    return sorted(names, key=len, reverse=True)


def plain(text: str, objects: list[str]) -> str:
    """`text` with the type of each of the `objects` in place of its name."""
    for name in objects:
        text = re.sub(rf"\b{name}\b", name.split()[0], text)
    return text


def play_both(game: Game, draw: random.Random, steps: int) -> int:
    """Play `game` at random in both forms at once; returns how often a type stood for one of several objects."""
    numbered, by_type = NativeEnvironment(), ByTypeEnvironment(NativeEnvironment())
    one, other = numbered.reset(game), by_type.reset(game)
    objects, several = objects_of(numbered), 0
    assert one.text == other.text
    for _ in range(steps):
        means: dict[str, list[str]] = {}
        for command in one.admissible_commands:
            means.setdefault(plain(command, objects), []).append(command)
        assert other.admissible_commands == list(means)
        # Half of the steps handle an object, else most would be "go to".
        handling = [each for each in means if not each.startswith(("go to", "look", "inventory", "help"))]
        action = draw.choice(handling if handling and draw.random() < 0.5 else list(means))
        several += len(means[action]) > 1
        # The first of the engine's list is meant; every third time it is named by its number, which is understood, too.
        one = numbered.step(means[action][0])
        other = by_type.step(means[action][0] if draw.random() < 0.3 else action)
        assert plain(one.text, objects) == other.text and one[2:] == other[2:]
        assert numbered.facts() == by_type.facts()
        if one.done:
            break
    return several


def test_generated_games_are_the_same_in_both_forms(household_data: Path) -> None:
    draw = random.Random(0)
    games = find_games("household_train", data=household_data)
    assert sum(play_both(game, draw, 40) for game in games for _ in range(4)) > 20


def test_official_games_are_the_same_in_both_forms(alfworld_data: Path) -> None:
    draw = random.Random(1)
    assert sum(play_both(game, draw, 49) for game in find_games("valid_seen", data=alfworld_data, num=40)) > 20


def test_what_is_not_there_gets_the_engines_answer(games: list[Game]) -> None:
    environment = make_environment("native", name_by="type")
    now = environment.reset(games[0])
    for action in ("take nothing from countertop 1", "put mug in/on shelf 99", "heat egg with microwave 1", "mug"):
        assert environment.step(action).text == "Nothing happens."
    with pytest.raises(EnvironmentFault, match="an action is a string"):
        environment.step([3])  # type: ignore[arg-type]
    assert not any(re.search(r"(?:take|put|use) \w+ \d", command) for command in now.admissible_commands)


def test_the_object_in_the_hand_is_meant(household_data: Path) -> None:
    """After `take mug` the commands `put mug` and `examine mug` mean that mug, although others lie there."""
    for game in find_games("household_train", data=household_data):
        environment = ByTypeEnvironment(NativeEnvironment())
        now = environment.reset(game)
        for place in [command for command in now.admissible_commands if command.startswith("go to ")]:
            now = environment.step(place)
            kinds = re.findall(r"\ba ([a-z]+)\b", now.text)
            twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
            take = next((each for each in now.admissible_commands if each.startswith(f"take {twice} ")), None)
            if not take:
                continue
            where = take.partition(" from ")[2]
            before = environment.facts()
            assert environment.step(take).text == f"You pick up the {twice} from the {where}."
            assert environment.step("inventory").text == f"You are carrying: a {twice}."
            now = environment.step(f"put {twice} in/on {where}")
            assert now.text.startswith(("You move the ", "You put the ")) and " 1" not in now.text.replace(where, "")
            lies = {fact for fact in before if fact[0] == "inreceptacle"}
            assert lies == {fact for fact in environment.facts() if fact[0] == "inreceptacle"}
            return
    pytest.fail("no game has two objects of one type in one place")


@pytest.fixture
def two_kinds(household_data: Path, tmp_path: Path) -> tuple[Game, str]:
    """A game with two kinds of objects that the text calls by one name, `cup`, and what one of them was called."""
    for game in find_games("household_train", data=household_data):
        text = game.path.read_text(encoding="utf-8")
        for kind in ("Mug", "Bowl", "Plate", "Pot", "Pan"):
            if f"{kind}_bar_" in text and "Cup_bar_" in text:
                path = tmp_path / "game.tw-pddl"
                path.write_text(text.replace(f"{kind}_bar_", "Cup_bar_"), encoding="utf-8")
                return replace(game, path=path), kind.lower()
    return pytest.fail("no game has cups and something like it")


def test_two_kinds_of_one_name_are_one_type(two_kinds: tuple[Game, str]) -> None:
    game, gone = two_kinds
    numbered = NativeEnvironment()
    numbered.reset(game)
    kinds = {
        fact[2]
        for fact in numbered.facts()
        if fact[0] == "objecttype" and numbered.room_state().names[fact[1]][:4] == "cup "
    }
    assert len(kinds) == 2 and not any(name.startswith(f"{gone} ") for name in objects_of(numbered))
    draw = random.Random(2)
    for _ in range(6):
        play_both(game, draw, 49)


class Boxes:
    """A room of one's own in which an object has the name of a receptacle."""

    name = "boxes"

    def reset(self, game: Game | None) -> TimeStep:
        self.said: list[str] = []
        room = "You are in the middle of a room. Looking quickly around you, you see a box 1."
        return TimeStep(f"{room}\n\nYour task is to: move 2 pens.", ["go to box 1"], False, False)

    def step(self, action: str) -> TimeStep:
        self.said.append(action)
        commands = ["take box 1 from box 1", "take box 2 from box 1", "take pen 1 from box 1", "take pen 2 from box 1"]
        return TimeStep("On the box 1, you see a box 1, a box 2, a pen 2, and a pen 1.", commands, False, False)

    def render(self):
        raise NotImplementedError

    def close(self) -> None:
        pass


def test_an_object_with_a_receptacles_name_keeps_its_number() -> None:
    inner = Boxes()
    environment: Environment = ByTypeEnvironment(inner)
    assert environment.reset(None).text.endswith("move 2 pens.")  # type: ignore[arg-type]
    now = environment.step("go to box 1")
    assert now.text == "On the box 1, you see a box 1, a box, a pen, and a pen."
    assert now.admissible_commands == ["take box 1 from box 1", "take box from box 1", "take pen from box 1"]
    for action in (*now.admissible_commands, "take pen 2 from box 1"):
        environment.step(action)
    taken = [f"take {thing} from box 1" for thing in ("box 1", "box 2", "pen 1", "pen 2")]
    assert inner.said == ["go to box 1", *taken]


def labels_of(environment: Environment, game: Game, expert) -> list[str]:
    episode = without_questions(play_expert(environment, game, expert))
    assert episode.won
    assert not any(re.search(r"^(?:take|put|heat|cool|clean|use) [a-z]+ \d", action) for action, _ in episode.steps)
    return [action for action, _ in episode.steps]


def test_experts_name_types_and_solve_the_games_in_as_many_steps(household_data: Path) -> None:
    for game in find_games("household_train", data=household_data):
        numbered = without_questions(play_expert(NativeEnvironment(), game, Explorer()))
        by_type = make_environment("native", name_by="type")
        assert len(labels_of(by_type, game, Explorer())) == numbered.actions
        sees = SeeingExplorer("everything")
        assert len(labels_of(by_type, game, sees)) <= numbered.actions


def test_the_planners_action_names_types(games: list[Game]) -> None:
    environment = make_environment("native", name_by="type", expert="planner")
    now = environment.reset(games[0])
    while not now.done:
        action = environment.expert_action()
        assert action in now.admissible_commands
        now = environment.step(action)
    assert now.won and environment.expert_action() is None


def test_a_client_asks_no_expert_that_is_not_there(games: list[Game]) -> None:
    for expert in (None, "planner"):
        factory = partial(make_environment, "native", name_by="type", expert=expert)
        player = ClientPlayer(ReusedEnvironments(factory))
        assert player.describe().advises is bool(expert)
        observation = next(player(games[0]))
        assert observation is not None and "Your task is to" in observation.text
        assert bool(observation.information.get("expert_action")) is bool(expert)


def test_states_can_be_kept_and_copied(games: list[Game]) -> None:
    labelled = make_environment("native", name_by="type", expert="planner")
    labelled.reset(games[0])
    assert labelled.expert_action() and not hasattr(labelled.clone(), "expert_action")  # a clone has no expert
    environment = ByTypeEnvironment(NativeEnvironment())
    environment.reset(games[0])
    action = next(each for each in environment.step("look").admissible_commands if each.startswith("go to "))
    state, clone, copied = environment.snapshot(), environment.clone(), copy.deepcopy(environment)
    now = environment.step(action)
    assert clone.step(action) == copied.step(action) == now
    assert environment.restore(state).admissible_commands == clone.restore(state).admissible_commands
    assert environment.step(action) == now and isinstance(clone, ByTypeEnvironment)
    # What a type means is known to a clone at once.
    for go in environment.reset(games[0]).admissible_commands:
        takes = [each for each in environment.step(go).admissible_commands if each.startswith("take ")]
        if takes:
            break
    answer = environment.clone().step(takes[0])
    assert answer.text.startswith("You pick up") and answer == environment.step(takes[0])


def test_an_unknown_way_to_name_objects_is_told() -> None:
    with pytest.raises(EnvironmentFault, match="unknown name_by 'typ': did you mean 'type'"):
        make_environment("native", name_by="typ")
