"""What a game gives away beside its task: rooms of the training games, places that the text names, lists of commands.

The games are read and the explorer plays them; nothing is learned.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from statistics import median
from typing import Any

from alfworld_native.base import Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.explorer import Explorer
from alfworld_native.games import games_hash
from alfworld_native.language.sentences import parse_opening, parse_task, type_of
from xrl_alignment.play.evaluation.metrics import share
from xrl_alignment.play.rollouts.play import Turn, play, without_questions


def shared_with_training(games: Sequence[Game], training: Sequence[Game]) -> dict[str, Any]:
    """How many of `games` are in a room of the training games, and how many are a task of theirs in that very room.

    A game's folder is `<task type>-<object>-<receptacle it lies in>-<target>-<room>`.
    """
    rooms = {room_of(game) for game in training}
    tasks = {task_of(game) for game in training}
    number = len(games)
    return {
        "games_hash": games_hash(games),
        "room": share(sum(room_of(game) in rooms for game in games), number),
        "task": share(sum(task_of(game) in tasks for game in games), number),
    }


def room_of(game: Game) -> str:
    """The number of ALFWorld's floor plan."""
    return task_of(game).rpartition("-")[2]


def task_of(game: Game) -> str:
    """The folder of the game's task: type, object, target and room."""
    return game.id.partition("/")[0]


def told_by_text(games: Sequence[Game]) -> dict[str, Any]:
    """What the opening text and a table of likely places tell, and what the list of commands adds, in these games."""
    found = [_look_into(game) for game in games]
    number = len(games)
    states = [state for game in found for state in game["states"]]
    acting = [state for state in states if state["acts"]]
    return {
        "games_hash": games_hash(games),
        "one_target": share(sum(game["one_target"] for game in found), number),
        "first_place": share(sum(game["first_place"] for game in found), number),
        "commands": median(state["commands"] for state in states) if states else 0,
        "one_fitting": share(sum(state["fitting"] == 1 for state in acting), len(acting)),
    }


def _look_into(game: Game) -> dict[str, Any]:
    """One game, as the explorer plays it.

    "one_target": the place that the task names is the only one of its kind. "first_place": an object that it asks for
    is in the first place that the explorer visits. Of each state: how many commands are listed, whether the explorer
    handles an object there, and how many of the listed commands do so with an object of the task.
    """
    states: list[dict[str, Any]] = []
    expert = Explorer()

    def agent(turn: Turn) -> Generator[Any, Any, str | None]:
        action = expert.act().action
        # Commands that take, put or treat an object of the type that the task asks for: `take mug 1 from desk 2`.
        handles = {
            command
            for command in turn.now.admissible_commands
            if command.startswith(tuple(f"{verb} {wanted} " for verb in ("take", "put", "clean", "heat", "cool")))
        }
        states.append({
            "commands": len(turn.now.admissible_commands), "acts": action in handles, "fitting": len(handles),
        })  # fmt: skip
        return action
        yield  # a generator that asks nothing

    environment = NativeEnvironment()
    opening = environment.reset(game).text
    receptacles, sentence = parse_opening(opening)
    task = parse_task(sentence)
    wanted = task.object_type if task else ""
    episode = without_questions(play(environment, game, agent, expert=expert))
    # In the first place: at most one `go to` before the first `take` (none if it stands there at the beginning).
    took = next((n for n, (action, _) in enumerate(episode.steps) if action.startswith("take ")), None)
    before = [action for action, _ in episode.steps[:took]] if took is not None else []
    return {
        "one_target": task is not None and [type_of(name) for name in receptacles].count(task.target_type) == 1,
        "first_place": took is not None and sum(action.startswith("go to ") for action in before) <= 1,
        "states": states,
    }
