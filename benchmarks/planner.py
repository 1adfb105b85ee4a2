"""Plans of EMAC+'s local planner: Transformers' `generate` with peft's adapter against `LocalPlanner.plan_all`.

    python benchmarks/planner.py --json planner.json [--model output/smollm/model]

The questions are those of a player's own games, asked in the order of play: the first of every game, then the second.
Both sides decode greedily, without the grammar, 16 questions at a time, with the same adapter of random weights.
`speedup` is the time of `generate` divided by that of `plan_all`, `kept_speedup` the same with kept prompts. Float32
models must write the same plans on all sides, or the benchmark fails; of others it tells how many plans agree.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from _bench import Result, run

from alfworld_native.games import find_games
from alfworld_native.household.generator import generate
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.models.blip2_models.emac_config import package_path
from lavis.models.blip2_models.text import load_llm_tokenizer, prompt_rows
from xrl_alignment.lab.pretraining.planner import hasty_examples
from xrl_alignment.planning.building import TINY, language_model
from xrl_alignment.planning.planners.base import PlanQuestion
from xrl_alignment.planning.planners.local import LocalPlanner

GAMES, TURNS, BATCH, NEW_TOKENS = 16, 4, 16, 40
KEPT_MIB = 4000


def options(parser: argparse.ArgumentParser) -> None:
    """The planner's language model."""
    parser.add_argument("--model", default="tiny_planner", help="as planner.model: a name of ours, a folder or hub id")


def questions() -> list[list[PlanQuestion]]:
    """What is asked in each turn: a list of at most `GAMES` questions, of different games."""
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder), num_train=3 * GAMES, num_heldout=1, seed=0)
        asked = [example.question for example in hasty_examples(find_games("household_train", data=folder), seed=0)]
    games: dict[str, list[PlanQuestion]] = {}
    for question in asked:
        games.setdefault(question.goal, []).append(question)
    long = [game for game in games.values() if len(game) >= TURNS][:GAMES]
    return [[game[turn] for game in long] for turn in range(TURNS)]


@torch.no_grad()
def build(name: str, kept_mib: int = 0) -> LocalPlanner:
    """A planner whose adapter counts: peft's own begins at zero."""
    tokenizer = load_llm_tokenizer(package_path("tiny") if name in TINY else name)
    planner = LocalPlanner(
        language_model(name), tokenizer, max_batch=BATCH, max_answer_tokens=NEW_TOKENS, kept_mib=kept_mib
    )
    draw = torch.Generator().manual_seed(0)
    for key, value in planner.model.named_parameters():
        if ".lora_B." in key:
            value.copy_(0.01 * torch.randn(value.shape, generator=draw))
    planner.changed()
    return planner


@torch.no_grad()
def by_transformers(planner: LocalPlanner, asked: Sequence[PlanQuestion]) -> list[str]:
    """What `planner` answers, by Transformers' `generate` with peft's adapter beside its matrices."""
    tokenizer = planner.tokenizer
    rows = prompt_rows([planner.encode(planner.prompt(question)) for question in asked], tokenizer.pad_id)
    made = planner.model.generate(
        input_ids=rows.ids,
        attention_mask=rows.mask,
        do_sample=False,
        max_new_tokens=NEW_TOKENS,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
    )[:, rows.ids.shape[1] :]
    texts = []
    for tokens in made.tolist():
        ended = tokens.index(tokenizer.eos_id) if tokenizer.eos_id in tokens else len(tokens)
        texts.append(tokenizer.decode(tokens[:ended]).strip())
    return texts


def timed(turns: Sequence[Sequence[PlanQuestion]], answer: Callable[[Sequence[PlanQuestion]], list[str]]) -> tuple:
    """Seconds for all turns, and the plans."""
    start = time.perf_counter()
    texts = [text for asked in turns for text in answer(asked)]
    return time.perf_counter() - start, texts


def measure(model: str) -> Result:
    """All sides on one thread, each after a turn that is not counted."""
    bound_kernel_cache()
    keep_freed_memory()
    torch.set_num_threads(1)
    turns, sides = questions(), {}
    plain, kept = build(model), build(model, KEPT_MIB)
    for name, answer in (
        ("generate, peft", lambda asked: by_transformers(plain, asked)),
        ("plan_all", lambda asked: [one.text for one in plain.plan_all(asked)]),
        ("plan_all, kept prompts", lambda asked: [one.text for one in kept.plan_all(asked)]),
    ):
        answer(turns[-1])
        kept.forget()
        sides[name] = timed(turns, answer)
    (theirs, wanted), (ours, got), (going_on, same) = sides.values()
    if plain.model.get_base_model().dtype is torch.float32 and not wanted == got == same:
        raise ValueError("the sides do not plan alike")
    rows = [
        {
            "side": name,
            "s a plan": round(seconds / len(texts), 4),
            "plans": len(texts),
            "as generate": sum(one == other for one, other in zip(texts, wanted, strict=True)),
        }
        for name, (seconds, texts) in sides.items()
    ]
    return Result(rows, {"speedup": theirs / ours, "kept_speedup": theirs / going_on}, {"speedup": 1.2})


if __name__ == "__main__":
    run("A planner's plans", measure, options)
