r"""Trains the student on games of all levels, by whole episodes, from any weights of Blip2Emac's language model.

    python -m xrl_alignment.make_student --out DIR --tokens 20
    python -m xrl_alignment.make_student --out DIR --tokens 30 --student-drives 0.3      # goes on from what DIR holds
    python -m xrl_alignment.make_student --out DIR --tokens 0.4 --official 1 --drills 0 --untold 0 --actions-only \
        --batch-tokens 1600 --model-type smollm2_135m --options llm_model=FOLDER    # of a pretrained language model

    python -m xrl_alignment.make_student --out A --beside B --seed 1 --tokens 20 &      # two runs, a core each, that
    python -m xrl_alignment.make_student --out B --beside A --seed 2 --tokens 20        # share what they learn

    DIR/
        deeper.safetensors     with --deeper: what it starts from
        student.safetensors    language model and projection in bfloat16, for `model.pretrained`
        state.pt               the same in float32, with the optimiser: the command goes on from here
        progress.jsonl         a line for each pool: tokens, losses, success of the games that the student played

Each pool has new games of a mixture of levels (docs/levels.md), official training games (`labelled.py` plays and
labels them), and exercises (`drills.py`). A game is read as one row of text, or as a few rows if it is long, so every
token is computed once and every action of the row is learned:

    [image tokens][room and task][> action, feedback]…        as `build_prompt` writes it, at most `max_txt_len` tokens

Three things make one student for all levels. In many games invented words take the place of the objects' names, so a
name has to be copied (`alfworld_native/renaming.py`). The explorer's thoughts are notes of what was seen and of what is
left to do. In a prompt over its budget old steps lose their feedback, but not the notes.

The image in front of a row shows some moment of the game, or is black: the text tells what lies where. In single
moments of some games it does not (`environment.tell_objects=false`); there the image belongs to the moment. The vision
side stays as it is; projection and language model train.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from alfworld_native.household.mixture import read_mixture
from lavis.common.config import merged, plain, read_option
from lavis.common.errors import ConfigError
from lavis.common.program import read_first, run_program
from lavis.models.sections import check_section

MIXTURE = (  # of levels; the weights are shares of games, not of tokens
    "standard=0.24 cluttered=0.08 large=0.07 hidden=0.15 many=0.14 compound=0.2 house=0.08 hardest=0.04"
)
OFFICIAL = 0.2  # share of the games that are ALFWorld's own
POOL = 128  # games of a pool
UNTOLD = 0.8  # share of the games with old names that give moments whose text names no objects
BATCH_TOKENS = 2500  # small: a copy is learned after a number of steps rather than of tokens
DRILLS = 240  # exercises beside a pool of games


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line, with `levels` as a mixture and `options` as the `model:` section.

    Raises ConfigError, EnvironmentFault or MissingFileError for values that no run could use.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", required=True, type=Path, metavar="DIR")
    parser.add_argument("--tokens", type=float, default=20.0, metavar="MILLIONS", help="read in all, by all runs (20)")
    mixture = f"mixture of levels ({MIXTURE})"
    parser.add_argument("--levels", nargs="+", default=[MIXTURE], metavar="LEVEL=WEIGHT", help=mixture)
    parser.add_argument("--official", type=float, default=OFFICIAL, help=f"share of official games ({OFFICIAL})")
    parser.add_argument("--student-drives", type=float, default=0.0, help="share of games that the student plays (0)")
    parser.add_argument("--games", type=int, default=POOL, help=f"of a pool ({POOL})")
    parser.add_argument("--drills", type=int, default=DRILLS, help=f"exercises beside a pool ({DRILLS})")
    untold = f"share of the games that give moments in which only the image tells what lies where ({UNTOLD})"
    parser.add_argument("--untold", type=float, default=UNTOLD, help=untold)
    parser.add_argument("--lr", type=float, default=1.2e-3)
    parser.add_argument("--batch-tokens", type=int, default=BATCH_TOKENS, help=f"of a batch, about ({BATCH_TOKENS})")
    parser.add_argument("--threads", type=int, default=1, help="of torch; a tiny model is faster with one (1)")
    parser.add_argument("--seed", type=int, default=0)
    beside = "the --out of another run of this command: after each pool the mean of its newest weights and these"
    parser.add_argument("--beside", type=Path, metavar="DIR", help=beside)
    deeper = "layers (from 0) behind which the language model first gets a copy that changes nothing yet"
    parser.add_argument("--deeper", type=int, nargs="+", default=[], metavar="LAYER", help=deeper)
    parser.add_argument("--model-type", default="student", help="model type whose weights it starts from (student)")
    parser.add_argument(
        "--options", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="keys of the model: section"
    )
    parser.add_argument("--actions-only", action="store_true", help="the environment's tokens are read, not learned")
    arguments = parser.parse_args(argv)
    for name in ("official", "student_drives", "untold"):
        if not 0 <= getattr(arguments, name) <= 1:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name)} is no share: use 0 to 1")
    if min(arguments.games, arguments.drills) < 0 or not arguments.games + arguments.drills:
        raise ConfigError(f"--games {arguments.games} --drills {arguments.drills}: a pool needs at least one of these")
    if arguments.batch_tokens < 1 or not (math.isfinite(arguments.lr) and arguments.lr > 0):
        raise ConfigError(f"--batch-tokens {arguments.batch_tokens} --lr {arguments.lr}: use numbers above 0")
    if not (math.isfinite(arguments.tokens) and arguments.tokens > 0):
        raise ConfigError(f"--tokens {arguments.tokens}: use a number of millions above 0")
    arguments.levels = read_mixture(" ".join(arguments.levels))
    options = plain(merged({}, *(read_option(option) for option in arguments.options)))
    arguments.options = {**options, "model_type": arguments.model_type}
    check_section(arguments.options)
    return arguments


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from alfworld_native.drawing.frames import BLANK_FRAME, render
from alfworld_native.games import find_games
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import autocast
from lavis.common.files import locked, make_folder, write_atomically
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.text import IGNORE
from lavis.models.played import PlayedGames, games_of_weights, played_in
from lavis.training import Updater
from xrl_alignment.agents.language.prompt import build_prompt, token_counter
from xrl_alignment.agents.policies.in_process import InProcessPolicy
from xrl_alignment.builders.student import ImageProcessor, load_student, model_section, prompt_writer
from xrl_alignment.lab.pretraining.deeper import make_deeper
from xrl_alignment.lab.pretraining.descent import descend, rate_factor
from xrl_alignment.lab.pretraining.drills import any_exercise
from xrl_alignment.lab.pretraining.files import read_splits, write_weights
from xrl_alignment.lab.pretraining.labelled import DRILL, SEARCHING, Pools, Record, draw_jobs, played
from xrl_alignment.play.evaluation.actors import PolicyActor
from xrl_alignment.play.rollouts.sequential import SequentialExecutor

MOMENTS = 3  # that a game gives whose text names no objects
LONGEST_UNTOLD = 60  # steps; longer games give none
SHORT = 0.12  # share of the games that are read from the middle on, with a short prompt
BUDGETS = (450, 1000)  # tokens of a prompt with which a row begins in the middle of a game
ROWS = 5  # of a game, at most
# Weights of the environment's tokens in the loss; actions count 1. An answer without a list repeats names of the
# action, so predicting it is to copy; what lies on a table nobody can predict.
LISTED_WEIGHT, REPEATED_WEIGHT = 0.02, 0.3
TOGETHER = 32  # games that the student plays at once
WARMUP_STEPS, DECAY_SHARE = 60, 0.35  # the rate rises at the start of every run, and falls to zero at its end


@dataclass(frozen=True)
class Row:
    """A text as token ids; `targets[i]` is what should follow position i (IGNORE: anything). `frame` stands before.

    `kind` names the row in the figures of progress: its level, and what is special about it.
    """

    kind: str
    ids: list[int]
    targets: list[int]
    weights: list[float]
    frame: np.ndarray


# ---- rows ------------------------------------------------------------------------------------------------------------


class RowWriter:
    """Writes records down as rows for `model`."""

    def __init__(self, model: Blip2Emac, *, actions_only: bool = False, untold: float = UNTOLD) -> None:
        self.tokenizer = model.llm_tokenizer
        # Whether the environment's tokens are read and not learned: most of the loss's cost is the output layer.
        self.actions_only = actions_only
        self.untold = untold
        # Where the blank of the cue "> " stands: in the answer's first token, or in the prompt (`encode_output`).
        joins = self.tokenizer.joins_blank
        self.before_action, self.cue = (" ", ">") if joins else ("", "> ")
        self.limit = model.max_txt_len  # tokens of a prompt, BOS included
        self.count = token_counter(self.tokenizer.encode)

    def rows(self, record: Record, draw: random.Random) -> list[Row]:
        """Rows of the whole game, and of moments in which the image alone shows what lies where."""
        rows, at = [], 0
        if draw.random() < SHORT and len(record.steps) > 2:
            at = draw.randrange(1, len(record.steps))
        while at < len(record.steps):
            row, at = self.stretch(record, at, draw)
            rows.append(row)
        rows = draw.sample(rows, min(ROWS, len(rows)))
        if not record.renamed and len(record.steps) <= LONGEST_UNTOLD and draw.random() < self.untold:
            rows += [self.moment(record, at) for at in draw.choices(range(len(record.steps)), k=MOMENTS)]
        return rows

    def stretch(self, record: Record, start: int, draw: random.Random) -> tuple[Row, int]:
        """The steps from `start` on, as far as a prompt reaches, and the number of the step behind them."""
        encode, eos = self.tokenizer.encode, self.tokenizer.eos_id
        told = [(step.action, step.feedback) for step in record.steps]
        budget = draw.randint(*BUDGETS) if start else self.limit - 1
        prompt = build_prompt(record.text, record.memories, told[:start], budget=budget, count=self.count)
        ids = [self.tokenizer.bos_id, *encode(prompt.removesuffix(self.before_action))][-self.limit :]
        listed = 0.0 if self.actions_only else LISTED_WEIGHT
        targets, weights = [*ids[1:], IGNORE], [listed] * len(ids)
        at = start
        while at < len(record.steps) and (at == start or len(ids) <= self.limit):
            step = record.steps[at]
            said = encode(self.before_action + step.action)
            wanted = encode(self.before_action + step.label.rstrip())
            if step.label != SEARCHING:
                wanted.append(eos)
            begin = len(ids) - 1  # the last position of the prompt predicts the action's first token
            # What to say is known as long as what was said agrees with it.
            agreed = next((i for i, (a, b) in enumerate(zip(said, wanted, strict=False)) if a != b), len(said))
            known = wanted[: agreed + 1]
            targets[begin:] = known + [IGNORE] * (len(said) + 1 - len(known))
            weights[begin:] = [1.0] * (len(said) + 1)
            answer = encode(f"\n{step.feedback}\n{self.cue}")
            ids += said + answer
            targets += [*answer[1:], IGNORE]
            repeated = REPEATED_WEIGHT if record.source != DRILL else 1.0
            if self.actions_only:
                repeated = 0.0
            weights += [listed if "you see" in step.feedback else repeated] * len(answer)
            at += 1
        shown, which = draw.choice(record.steps[start:at]).state, draw.random()
        frame = BLANK_FRAME if shown is None or which < 0.4 else render(shown, show_ids=which < 0.7)
        kind = record.source + (", new names" if record.renamed else "")
        return Row(kind, ids, targets, weights, frame), at

    def moment(self, record: Record, at: int) -> Row:
        """One action, after a text that does not say what lies where; the image does."""
        encode, step = self.tokenizer.encode, record.steps[at]
        told = [(each.action, each.feedback) for each in record.steps[:at]]
        prompt = build_prompt(
            record.text, record.memories, told, budget=self.limit - 1, count=self.count, tell_objects=False
        )
        before = [self.tokenizer.bos_id, *encode(prompt.removesuffix(self.before_action))][-self.limit :]
        answer = [*encode(self.before_action + step.label), self.tokenizer.eos_id]
        unread = len(before) - 1
        targets = [IGNORE] * unread + answer
        weights = [0.0] * unread + [1.0] * len(answer)
        assert step.state is not None  # of a game
        return Row("untold", before + answer[:-1], targets, weights, render(step.state))


def batches(rows: Sequence[Row], draw: random.Random, tokens: int = BATCH_TOKENS) -> list[list[Row]]:
    """Rows of like length together, about `tokens` in a batch, batches in random order."""
    groups: list[list[Row]] = [[]]
    for row in sorted(rows, key=lambda row: len(row.ids)):
        if groups[-1] and (len(groups[-1]) + 1) * len(row.ids) > tokens:
            groups.append([])
        groups[-1].append(row)
    draw.shuffle(groups)
    return [group for group in groups if group]


def loss_of(model: Blip2Emac, vis_processor: ImageProcessor, rows: Sequence[Row]) -> tuple[Tensor, list[float]]:
    """Weighted mean cross-entropy of what follows, over all rows; and each row's, of its actions' tokens alone."""
    longest = max(len(row.ids) for row in rows)
    ids = torch.full(
        (len(rows), longest), model.llm_tokenizer.pad_id
    )  # (N, L); pads right, causal attention ends before
    targets, weights = torch.full_like(ids, IGNORE), torch.zeros(ids.shape)
    for i, row in enumerate(rows):
        ids[i, : len(row.ids)] = torch.tensor(row.ids)
        targets[i, : len(row.ids)] = torch.tensor(row.targets)
        weights[i, : len(row.ids)] = torch.tensor(row.weights)
    llm = model.llm_model
    with autocast(torch.device("cpu")):
        with torch.no_grad():
            images = torch.stack([vis_processor(row.frame) for row in rows])
            queries = model.vision.encode_queries(images, [""] * len(rows))  # (N, Q, width of the Q-Former)
        before = model.llm_proj(queries)  # (N, Q, H)
        embeds = torch.cat([before, llm.get_input_embeddings()(ids)], dim=1)
        hidden = llm.model(inputs_embeds=embeds).last_hidden_state[:, before.shape[1] :]
        scored = (targets != IGNORE) & (weights > 0)
        logits = llm.lm_head(hidden[scored])  # (scored positions, vocabulary)
    losses = functional.cross_entropy(logits.float(), targets[scored], reduction="none")
    of_rows = torch.zeros(2, len(rows))  # sum of the losses of actions' tokens, and their number
    action, number = weights[scored] == 1, scored.nonzero()[:, 0]
    of_rows[0].index_add_(0, number[action], losses.detach()[action])
    of_rows[1].index_add_(0, number[action], torch.ones(int(action.sum())))
    return (losses * weights[scored]).sum() / weights[scored].sum(), (of_rows[0] / of_rows[1]).tolist()


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass
class Trainer:
    """`model` and what training it needs; `pool` and `read` count pools and tokens over all runs into `out`."""

    model: Blip2Emac
    vis_processor: ImageProcessor
    out: Path
    seed: int
    played: PlayedGames  # what the file says of the games that it was trained on
    beside: Path | None = None  # the folder of a run whose weights are taken into account
    actions_only: bool = False
    untold: float = UNTOLD
    pool: int = 0
    read: int = 0
    taken: float = 0.0  # when the weights of `beside` were written that were taken last

    def __post_init__(self) -> None:
        """Take up what `out` holds."""
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=0.0, betas=(0.9, 0.98), weight_decay=0.02)
        self.updater = Updater(self.optimizer, trained, max_norm=1.0)
        if (self.out / "state.pt").is_file():
            state = torch.load(self.out / "state.pt", weights_only=True)
            self.model.load_trainable(state["weights"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.pool, self.read = state["pool"], state["read"]
            # What the weights have read before counts, whatever this call names.
            self.played = self.played.merged(played_in(state) or PlayedGames())

    def run(self, pools: Pools, *, tokens: int, lr: float, batch_tokens: int = BATCH_TOKENS) -> None:
        """Train until `tokens` were read in all."""
        if self.read >= tokens:
            print(f"{self.out} has read {self.read:,} tokens already: a larger --tokens goes on", flush=True)
        writer, first, step = RowWriter(self.model, actions_only=self.actions_only, untold=self.untold), self.read, 0
        begun = time.monotonic()
        policy = InProcessPolicy(
            model=self.model, vis_processor=self.vis_processor, num_beams=1, max_length=64, min_length=1,
            max_batch=TOGETHER,
        )  # fmt: skip
        actor = PolicyActor(policy=policy, write_prompt=prompt_writer(self.model), blank_frames=True)
        while self.read < tokens:
            started = time.monotonic()
            seed = f"{self.seed} {self.pool}"
            self.model.eval()
            folder = Path(tempfile.mkdtemp(dir=self.out, prefix=".games-"))
            try:
                jobs = draw_jobs(folder, pools, seed)
                with SequentialExecutor(TOGETHER) as executor:
                    records = [outcome.value for outcome in executor.run(played, jobs, answer=actor.answer)]
            finally:
                shutil.rmtree(folder, ignore_errors=True)
            draw = random.Random(f"rows {seed}")
            rows = [row for record in records for row in writer.rows(record, draw)]
            rows += [writer.stretch(any_exercise(draw), 0, draw)[0] for _ in range(pools.drills)]
            playing = time.monotonic() - started
            self.model.train()
            losses: dict[str, list[float]] = defaultdict(list)
            read = self.read
            for group in batches(rows, draw, batch_tokens):
                loss, of_rows = loss_of(self.model, self.vis_processor, group)
                left = (tokens - self.read) / (tokens - first)
                factor = rate_factor(step, left, warm_up=WARMUP_STEPS, decay=DECAY_SHARE)
                descend(self.updater, loss, lr * factor)
                for row, its in zip(group, of_rows, strict=True):
                    losses[row.kind].append(its)
                self.read += sum(len(row.ids) for row in group)
                step += 1
            self.pool += 1
            # By this run's own speed, playing and saving included.
            left_minutes = (tokens - self.read) * (time.monotonic() - begun) / (self.read - first) / 60
            self.note(records, losses, self.read - read, playing, time.monotonic() - started, max(0.0, left_minutes))
            if self.beside:
                self.average(self.beside / "state.pt")

    def average(self, other: Path) -> None:
        """Take the mean of these weights and those of `other`, if there are new ones.

        So two runs on two cores learn from each other's games (AD-PSGD: Lian et al. 2018, arXiv:1710.06952). Each keeps
        its own optimiser.
        """
        written = other.stat().st_mtime if other.is_file() else 0.0
        if written > self.taken:
            self.taken = written
            state = torch.load(other, weights_only=True)
            self.played = self.played.merged(played_in(state) or PlayedGames())
            theirs = state["weights"]
            ours = self.model.trainable_state_dict()
            self.model.load_trainable({name: weight.lerp(theirs[name], 0.5) for name, weight in ours.items()})

    def note(
        self,
        records: Sequence[Record],
        losses: Mapping[str, list[float]],
        read: int,
        playing: float,
        all_in: float,
        left_minutes: float,
    ) -> None:
        """Save the state, and write and print a line of progress."""
        won: dict[str, list[bool]] = defaultdict(list)
        for record in records:
            if record.own:
                won[record.source].append(record.won)
        line = {
            "pool": self.pool, "tokens": self.read,
            "loss": {kind: round(sum(its) / len(its), 3) for kind, its in sorted(losses.items())},
            "seconds": round(all_in, 1), "playing": round(playing, 1), "tokens_per_second": round(read / all_in),
            "minutes_left": round(left_minutes, 1),
            "lr": self.optimizer.param_groups[0]["lr"],
            "own": {source: [sum(games), len(games)] for source, games in sorted(won.items())},
        }  # fmt: skip
        state = {
            "weights": self.model.trainable_state_dict(), "optimizer": self.optimizer.state_dict(),
            "pool": self.pool, "read": self.read, "played": self.played.as_dict(),
        }  # fmt: skip
        write_atomically(self.out / "state.pt", lambda file: torch.save(state, file))
        write_weights(self.model.trainable_state_dict(), self.out / "student.safetensors", self.played)
        with open(self.out / "progress.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    bound_kernel_cache()
    keep_freed_memory()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    make_folder(arguments.out)
    lock = locked(arguments.out / ".lock", arguments.out)
    try:
        for left in arguments.out.glob(".games-*"):  # of a run that was killed
            shutil.rmtree(left, ignore_errors=True)
        options = arguments.options
        if arguments.deeper:
            options = make_deeper(options, set(arguments.deeper), arguments.out / "deeper.safetensors")
        model, vis_processor = load_student(options, torch.device("cpu"))
        assert isinstance(model, Blip2Emac)  # the only architecture with this tokenizer
        trainer = Trainer(
            model,
            vis_processor,
            arguments.out,
            arguments.seed,
            read_splits(official=arguments.official > 0).merged(games_of_weights(model_section(options))),
            beside=arguments.beside,
            actions_only=arguments.actions_only,
            untold=arguments.untold,
        )
        pools = Pools(
            number=arguments.games,
            mixture=arguments.levels,
            official=find_games("train") if arguments.official else [],
            official_share=arguments.official,
            own_share=arguments.student_drives,
            drills=arguments.drills,
        )
        trainer.run(pools, tokens=round(arguments.tokens * 1e6), lr=arguments.lr, batch_tokens=arguments.batch_tokens)
    finally:
        lock.close()


if __name__ == "__main__":
    run_program(main)
