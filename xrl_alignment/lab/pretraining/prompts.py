"""Make `prompts/` from real runs: `python -m xrl_alignment.make_prompts --out prompts`.

The explorer plays generated household games in the native engine, thinking aloud; three solved episodes for each task
type, of different objects, become the ReAct examples. Two agents that fail on purpose, one that never treats the
object and one that runs out of steps, give the traces of the reflection examples. The planner's examples are plans of
the explorer (`planning.planners.explorer`), one game for each task type. No official game's text gets into the files,
and the same seed writes the same bytes.
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

from alfworld_native.base import MAX_STEPS, Environment, Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.experts.explorer import Explorer
from alfworld_native.games import find_games
from alfworld_native.household.generator import generate
from alfworld_native.language.sentences import NOTHING_HAPPENS, TASK_TYPES, parse_opening, parse_task
from lavis.common.errors import ConfigError
from lavis.common.files import make_folder
from lavis.common.program import run_program
from xrl_alignment.agents.language.history import EpisodeTrace
from xrl_alignment.agents.language.react import EXAMPLES_PER_TYPE, prompt_name, react_text
from xrl_alignment.agents.reflexion.rule import RULE_MARK, RuleReflector
from xrl_alignment.planning.planners.base import PlanQuestion, plan_prompt
from xrl_alignment.planning.planners.explorer import ExplorerPlanner
from xrl_alignment.planning.player import Answerer, PlanningPlayer, PlanSettings
from xrl_alignment.play.rollouts.play import Turn, ask_expert, play, without_questions
from xrl_alignment.play.rollouts.sequential import SequentialExecutor

PROMPTS_FILE = "alfworld_3prompts.json"
REFLECTIONS_FILE = "reflexion_few_shot_examples.txt"
PLANS_FILE = "planner_examples.txt"
LENGTHS = range(6, 16)  # actions: long enough to show a search, short enough for three in a prompt
FAILED_STEPS = 12


class ForgetfulExplorer(Explorer):
    """Does not get to read some words of the task sentence, and so fails like a hasty agent."""

    def __init__(self, forget: Sequence[str]) -> None:
        super().__init__()
        self._forget = forget

    def begin(self, intro: str, **context: Any) -> None:
        """See `Expert`."""
        room, marker, task = intro.partition("Your task is to: ")
        super().begin(room + marker + " ".join(word for word in task.split() if word not in self._forget), **context)


def play_aloud(game: Game, environment: Environment, expert: Explorer, *, max_steps: int = MAX_STEPS) -> EpisodeTrace:
    """One episode of the expert, thinking aloud (a thought is a step answered `OK.`)."""

    def agent(turn: Turn) -> Generator[Any, Any, str | None]:
        label = yield from ask_expert(expert, turn)  # the same again after its thought
        thinks = label.action and label.thought and not turn.episode.has_just_thought
        return f"think: {label.thought}" if thinks else label.action

    rollout = play(environment, game, agent, expert=expert, max_steps=max_steps, thoughts=True)
    return without_questions(rollout).trace()


def react_examples(games: Iterable[Game], environment: Environment) -> dict[str, str]:
    """`react_<name>_<i>` -> episode: for each task type three solved games with different objects.

    Raises ConfigError, which names the task type, if the games do not suffice.
    """
    chosen: dict[str, dict[str, str]] = {task_type: {} for task_type in TASK_TYPES}
    for game in games:
        examples = chosen[game.task_type]
        trace = play_aloud(game, environment, Explorer()) if len(examples) < EXAMPLES_PER_TYPE else None
        if trace is None or not trace.won:
            continue
        # Of a good length, and nothing in it failed: an agent learns late that it stands at two places at once.
        actions = sum(not action.startswith("think:") for action, _ in trace.steps)
        if actions in LENGTHS and all(feedback != NOTHING_HAPPENS for _, feedback in trace.steps):
            task = parse_task(parse_opening(trace.opening)[1])
            assert task is not None  # the generator writes ALFWorld's own sentences
            # The first game of each object, so the examples are of different ones.
            examples.setdefault(task.object_type, react_text(trace.opening, trace.steps))
    for task_type, examples in chosen.items():
        if len(examples) < EXAMPLES_PER_TYPE:
            raise ConfigError(f"only {len(examples)} examples of {task_type}; generate more games (--games)")
    return {
        f"react_{prompt_name(task_type)}_{i}": text
        for task_type, examples in chosen.items()
        for i, text in enumerate(examples.values())
    }


def reflection_examples(games: Sequence[Game], environment: Environment) -> str:
    """Two failed episodes, each with the plan that a reader of its trace would make: one agent forgot to heat, one
    went through the room in the order of its listing until the steps were used up.

    Raises ConfigError if the games do not suffice.
    """
    # Without the word "hot" the task reads as one that asks for no treatment.
    hasty = (
        play_aloud(game, environment, ForgetfulExplorer(["hot"]), max_steps=FAILED_STEPS)
        for game in games
        if game.task_type.startswith("pick_heat")
    )
    slow = (
        play_aloud(game, environment, Explorer(order="listing"), max_steps=FAILED_STEPS)
        for game in games
        if game.task_type.startswith("pick_and_place")
    )
    # The plans are those of `RuleReflector`; these words of theirs name the failure that each agent is to show.
    texts = [_first_failure(hasty, "did not heat it"), _first_failure(slow, "and found no")]
    return "\n\n".join(texts) + "\n"


def planner_examples(games: Iterable[Game], environment: Environment) -> str:
    """For each task type one game that took two plans or more: its record, and after the last `> ` the last plan.

    Raises ConfigError, which names the task type, if the games do not suffice.
    """
    player = PlanningPlayer(lambda: environment, PlanSettings(), agent=False)
    found: dict[str, str] = {}
    with SequentialExecutor() as executor:
        for game in games:
            if game.task_type in found:
                continue
            played = executor.run_one(player, game, answer=Answerer(ExplorerPlanner())).value
            # One plan alone would not show that a plan is made anew after what was seen.
            if played.result.won and len(played.calls) > 1:
                last = played.calls[-1]
                found[game.task_type] = plan_prompt(PlanQuestion(played.goal, "", last["history"])) + last["plan"]
    for task_type in TASK_TYPES:
        if task_type not in found:
            raise ConfigError(f"no example of a plan for {task_type}; generate more games (--games)")
    return "\n\n".join(found[task_type] for task_type in TASK_TYPES) + "\n"


def _first_failure(traces: Iterable[EpisodeTrace], reason: str) -> str:
    for trace in traces:
        plan = RuleReflector().reflect(trace, ()).removeprefix(RULE_MARK).strip()
        if not trace.won and reason in plan:
            return f"{react_text(trace.opening, trace.steps)}\nSTATUS: FAIL\n\nNew plan: {plan}"
    raise ConfigError(f"no failed episode in which the agent {reason!r}; generate more games (--games)")


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, generate games in a temporary folder, play, write the three files."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--out", type=Path, default=Path("prompts"), help="folder to write to (default: prompts)")
    parser.add_argument("--games", type=int, default=300, help="games to generate and choose from (default: 300)")
    parser.add_argument("--seed", type=int, default=7, help="seed of the generated games (default: 7)")
    chosen = parser.parse_args(arguments)
    make_folder(chosen.out)
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), num_train=chosen.games, num_heldout=1, seed=chosen.seed)
        games = find_games("household_train", data=folder)
        random.Random(chosen.seed).shuffle(games)  # they come sorted: the examples would all be about apples
        environment = NativeEnvironment()
        examples = react_examples(games, environment)
        reflections = reflection_examples(games, environment)
        plans = planner_examples(games, NativeEnvironment())
    (chosen.out / PROMPTS_FILE).write_text(json.dumps(examples, indent=1) + "\n", encoding="utf-8")
    (chosen.out / REFLECTIONS_FILE).write_text(reflections, encoding="utf-8")
    (chosen.out / PLANS_FILE).write_text(plans, encoding="utf-8")
    print(f"wrote {len(examples)} examples to {chosen.out / PROMPTS_FILE}, 2 to {chosen.out / REFLECTIONS_FILE}")


if __name__ == "__main__":
    run_program(main)
