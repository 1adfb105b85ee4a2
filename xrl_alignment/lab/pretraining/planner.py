"""Trains a small language model as a planner that plans badly: the file `lavis/models/tiny/planner.safetensors`.

    python -m xrl_alignment.make_planner --games DIR … --out lavis/models/tiny/planner.safetensors
    python -m xrl_alignment.make_planner --games DIR … --model output/smollm/model --out output/smollm/planner

A large planner knows from its pretraining how people speak of such tasks, and knows nothing of this household. The tiny
one, whose language model has read logs only, and SmolLM2-135M, which writes no plan either, learn the same from the
plans of a hasty player: the explorer's plans, but it searches where things lay in another house, whatever this room
has, and forgets most treatments. What a planner has to learn in the loop (docs/emac_plus.md) is which places this room
has, where things are likely to lie, and what a task needs.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

from lavis.common.program import read_first, run_program


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--games", required=True, nargs="+", metavar="DIR", help="generated games (environments.household)"
    )
    parser.add_argument(
        "--model",
        default="tiny",
        metavar="FOLDER",
        help="language model, as planner.model: tiny, tiny_planner, or a folder or hub id (tiny)",
    )
    parser.add_argument(
        "--out", required=True, type=Path, help="file of weights; of a folder or hub id a folder to be made"
    )
    parser.add_argument("--number", type=int, default=600, help="games to play (600)")
    parser.add_argument("--epochs", type=int, default=2, help="passes over their plans (2)")
    parser.add_argument("--lr", type=float, default=3e-3, help="learning rate (3e-3)")
    parser.add_argument("--batch-size", type=int, default=16, help="plans in a batch (16)")
    parser.add_argument("--rank", type=int, default=RANK, help=f"rank of the adapter, which is merged ({RANK})")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(argv)
    for name in ("rank", "number", "epochs", "batch_size"):
        if (value := getattr(arguments, name)) < 1:
            parser.error(f"--{name.replace('_', '-')}: {value} is not a number of at least 1")
    return arguments


RANK = 64

if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

from alfworld_native.base import Game
from alfworld_native.engine.environment import NativeEnvironment
from alfworld_native.games import find_games
from alfworld_native.language.sentences import parse_opening
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.errors import FileError
from lavis.common.files import writable
from lavis.common.progress import Bar
from lavis.models.blip2_models.emac_config import package_path
from lavis.models.blip2_models.text import load_llm_tokenizer
from lavis.models.played import PlayedGames, played_by_base
from xrl_alignment.lab.pretraining.files import read_splits, write_folder, write_weights
from xrl_alignment.planning.building import TINY, language_model
from xrl_alignment.planning.planners.base import PlanAnswer, Planner, PlanQuestion
from xrl_alignment.planning.planners.explorer import explorers_plan
from xrl_alignment.planning.planners.learning import PlanExample, examples_of, train_planner
from xrl_alignment.planning.planners.local import LocalPlanner
from xrl_alignment.planning.plans import TREATMENTS, HighLevelAction, write_plan
from xrl_alignment.planning.player import Answerer, PlanningPlayer, PlanSettings
from xrl_alignment.play.rollouts.sequential import SequentialExecutor
from xrl_alignment.settings.planning import PlannerTraining

# Where things lay in the other house.
ROUTE = ("countertop 1", "drawer 1", "shelf 1", "cabinet 1", "desk 1", "dresser 1", "sidetable 1", "bed 1", "fridge 1")
HABIT = 0.6  # share of the searches that follow the route; the others go anywhere in the room
FORGETS = 0.6  # share of the treatments that are left out


class HastyPlanner(Planner):
    """The explorer's plans, spoilt; the same question gets the same answer."""

    identity = "hasty"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan_all(self, questions: Sequence[PlanQuestion]) -> list[PlanAnswer]:
        """See `Planner`."""
        answers = []
        for question in questions:
            draw = random.Random(f"{self.seed} {question.goal} {question.history}")
            room, _ = parse_opening(question.goal)
            tried = {action for action, _ in question.history}
            plan = spoil(explorers_plan(question), room, tried, draw)
            answers.append(PlanAnswer(write_plan(plan), self.identity))
        return answers


def spoil(
    plan: Sequence[HighLevelAction], room: Sequence[str], tried: set[str], draw: random.Random
) -> list[HighLevelAction]:
    """`plan` with its places to search exchanged and treatments left out; `tried` are the high-level actions so far."""
    # It does not search a place of its route twice, whatever it found there.
    route = iter([place for place in ROUTE if f"go to {place}" not in tried])
    forgets = draw.random() < FORGETS
    spoilt: list[HighLevelAction] = []
    for action in plan:
        if action.verb == "go to":
            usual = next(route, "") if draw.random() < HABIT else ""
            spoilt.append(HighLevelAction("go to", place=usual or draw.choice(list(room))))
        elif not (forgets and action.verb in TREATMENTS):
            spoilt.append(action)
    return spoilt


def hasty_examples(games: Sequence[Game], seed: int) -> list[PlanExample]:
    """The plans of the hasty player in its own games: it learns to plan as it does, wherever that leads."""
    player = PlanningPlayer(NativeEnvironment, PlanSettings(seed=seed), agent=False)
    found: list[PlanExample] = []
    with SequentialExecutor(32) as executor:
        for outcome in executor.run(player, list(games), answer=Answerer(HastyPlanner(seed))):
            record = outcome.value.record()
            # Its own plans stand as the right ones, and none of them as a failed one.
            record["calls"] = [call | {"corrected": call["plan"]} for call in record["calls"] if call["plan"]]
            found += [one._replace(rejected="") for one in examples_of(record)]
    player.close()
    return found


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    is_ours = arguments.model in TINY
    if not is_ours and arguments.out.exists():
        raise FileError(f"{arguments.out} exists already: give a folder that is still to be made")
    writable("--out", arguments.out, folder=not is_ours)  # it is written after up to an hour of training
    bound_kernel_cache()
    keep_freed_memory()
    games = [game for folder in arguments.games for game in find_games("household_train", data=folder)]
    random.Random(arguments.seed).shuffle(games)
    examples = hasty_examples(games[: arguments.number], arguments.seed)
    # LoRA (Hu et al. 2021), merged at the end: the file holds plain weights. alpha / rank is 2.
    tokenizer = load_llm_tokenizer(package_path("tiny") if is_ours else arguments.model, "--model")
    base, rank = language_model(arguments.model, "--model"), arguments.rank
    planner = LocalPlanner(base, tokenizer, rank=rank, alpha=2 * rank)
    # No DPO: the hasty player's plans have no better ones beside them.
    settings = PlannerTraining(
        epochs=arguments.epochs,
        dpo_epochs=0,
        lr=arguments.lr,
        batch_size=arguments.batch_size,
        max_examples=len(examples),
    )
    with Bar("updates") as bar:

        def show(stage: str, done: int, total: int, loss: float) -> None:
            bar.show(done, total, f"loss {loss:.3f}")

        train_planner(planner, examples, settings, seed=arguments.seed, report=show)
    model, played = planner.merged(), read_splits(official=False)
    if is_ours:
        # The output layer is the embedding, which stands in the file already.
        weights = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
        write_weights(weights, arguments.out, played)
    else:
        before = played_by_base(arguments.model) or PlayedGames()
        write_folder(model, arguments.model, arguments.out, before.merged(played))


if __name__ == "__main__":
    run_program(main)
