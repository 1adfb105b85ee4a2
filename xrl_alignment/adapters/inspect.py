"""Household games as a task of Inspect, the evaluation framework (extra `inspect`): a dataset, a solver, a scorer.

    task = household_task(find_games("valid_seen"))           # whole: examples/inspect_household.py
    inspect_ai.eval(task, model="openai/gpt-4o-mini")

A sample is a game; the model plays it in one conversation, a command for each message. With `admissible=True` every
message also lists the admissible commands, which is an easier task: compare only scores of one kind. Several trials of
a game are epochs of Inspect; its reducer `mean` gives the rate of a single trial, `max` the best of all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from alfworld_native.base import Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import games_hash
from alfworld_native.household.levels import longest_horizon
from lavis.common.errors import missing_extra
from xrl_alignment.adapters.conversation import INSTRUCTION, message
from xrl_alignment.agents.language.answers import read_answer

try:
    from inspect_ai import Task
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.model import ChatMessageUser
    from inspect_ai.scorer import CORRECT, INCORRECT, Score, Scorer, Target, accuracy, scorer, stderr
    from inspect_ai.solver import Generate, Solver, TaskState, solver
except ModuleNotFoundError as error:
    raise missing_extra("inspect", error) from None

_WON, _STEPS = "household_won", "household_steps"  # what the solver tells the scorer


def household_task(games: Sequence[Game], *, admissible: bool = False, max_steps: int | None = None) -> Task:
    """Every game once; an episode ends after `max_steps` commands, or those of the hardest of `games`.

    EnvironmentFault for no games.
    """
    if not games:
        raise EnvironmentFault("the list of games is empty; give at least one game")
    max_steps = longest_horizon(games) if max_steps is None else max_steps
    samples = [Sample(input=INSTRUCTION, id=game.id, target="won", metadata={"game": game.id}) for game in games]
    kind = "admissible commands" if admissible else "free text"
    return Task(
        dataset=MemoryDataset(samples, name=f"household-{games_hash(games)}"),
        solver=play_household({game.id: game for game in games}, admissible, max_steps),
        scorer=household_won(),
        metadata={"games": games_hash(games), "answers": kind, "max_steps": max_steps},
    )


@solver
def play_household(games: Mapping[str, Game], admissible: bool = False, max_steps: int | None = None) -> Solver:
    """The model plays its sample's game until it is won or `max_steps` commands (see `household_task`) are given."""
    limit = longest_horizon(games.values()) if max_steps is None else max_steps
    NativeEnvironment(limit).close()  # raises for a number below 1 before the first sample is started

    async def solve(state: TaskState, generate: Generate) -> TaskState:
        environment, steps = NativeEnvironment(limit), 0
        now = environment.reset(games[state.metadata["game"]])
        # One of Inspect's limits, such as tokens or time, ends this function wherever it waits. So the sample's store,
        # from which its scorer reads, is up to date after every step.
        while not now.done and not state.completed:
            state.messages.append(ChatMessageUser(content=message(now, admissible)))
            state = await generate(state)
            now = environment.step(read_answer(state.output.completion).action)
            steps += 1
            state.store.set(_WON, now.won)
            state.store.set(_STEPS, steps)
        return state

    return solve


@scorer(metrics=[accuracy(), stderr()])
def household_won() -> Scorer:
    """Whether the game was won; the metadata of the score hold the number of commands."""

    async def score(state: TaskState, target: Target) -> Score:
        won, steps = state.store.get(_WON, False), state.store.get(_STEPS, 0)
        return Score(value=CORRECT if won else INCORRECT, metadata={"steps": steps})

    return score
