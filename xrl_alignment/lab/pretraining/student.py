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

from alfworld_native.experts.explorer import ORDERS
from alfworld_native.household.mixture import read_mixture
from lavis.common.config import merged, plain, read_option
from lavis.common.errors import ConfigError
from lavis.common.files import writable
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
    untold = f"share of the games that give moments in which only the image tells what lies where ({UNTOLD}); 0: none"
    parser.add_argument("--untold", type=float, default=UNTOLD, help=untold)
    invented = "share of the games that have invented names (0.5; 0.8 of renamed games, 0.25 of official ones)"
    parser.add_argument("--invented", type=float, metavar="SHARE", help=invented)
    search = "order in which the explorer searches, in all games (default: as each level has it; docs/levels.md)"
    parser.add_argument("--search", choices=ORDERS, default="", help=search)
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
    plot = "draw success of the games that the student plays by hours of training, at the end"
    parser.add_argument("--plot", type=Path, metavar="SVG", help=plot)
    parser.add_argument("--actions-only", action="store_true", help="the environment's tokens are read, not learned")
    arguments = parser.parse_args(argv)
    for name in ("official", "student_drives", "untold", "invented"):
        if not 0 <= (getattr(arguments, name) or 0) <= 1:
            raise ConfigError(f"--{name.replace('_', '-')} {getattr(arguments, name)} is no share: use 0 to 1")
    if min(arguments.games, arguments.drills) < 0 or not arguments.games + arguments.drills:
        raise ConfigError(f"--games {arguments.games} --drills {arguments.drills}: a pool needs at least one of these")
    if arguments.batch_tokens < 1 or not (math.isfinite(arguments.lr) and arguments.lr > 0):
        raise ConfigError(f"--batch-tokens {arguments.batch_tokens} --lr {arguments.lr}: use numbers above 0")
    if arguments.threads < 1:
        raise ConfigError(f"--threads {arguments.threads}: use at least 1")
    if not (math.isfinite(arguments.tokens) and arguments.tokens > 0):
        raise ConfigError(f"--tokens {arguments.tokens}: use a number of millions above 0")
    if arguments.plot:
        writable("--plot", arguments.plot)  # it is drawn after hours of training
    arguments.levels = read_mixture(" ".join(arguments.levels))
    options = plain(merged({}, *(read_option(option) for option in arguments.options)))
    arguments.options = {**options, "model_type": arguments.model_type}
    check_section(arguments.options)
    return arguments


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes are answered at once.
    read_first(parse_arguments)

import torch

from alfworld_native.games import find_games
from lavis.checkpoints import save_whole
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.files import append_line, locked, make_folder, write_bytes
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.weights import require_match
from lavis.models.played import PlayedGames, games_of_weights, played_in
from lavis.training import Updater
from xrl_alignment.agents.policies.in_process import InProcessPolicy
from xrl_alignment.builders.student import ImageProcessor, load_student, model_section, prompt_writer
from xrl_alignment.lab.pretraining.deeper import make_deeper
from xrl_alignment.lab.pretraining.descent import descend, rate_factor
from xrl_alignment.lab.pretraining.drills import any_exercise
from xrl_alignment.lab.pretraining.files import read_splits, write_weights
from xrl_alignment.lab.pretraining.labelled import Pools, Record, draw_jobs, played
from xrl_alignment.lab.pretraining.progress import drawn, read_progress
from xrl_alignment.lab.pretraining.rows import RowWriter, batches, loss_of
from xrl_alignment.play.evaluation.actors import PolicyActor
from xrl_alignment.play.rollouts.sequential import SequentialExecutor

TOGETHER = 32  # games that the student plays at once
WARMUP_STEPS, DECAY_SHARE = 60, 0.35  # the rate rises at the start of every run, and falls to zero at its end


@dataclass
class Trainer:
    """`model` and what training it needs; `pool` and `read` count pools and tokens over all runs into `out`.

    The run in progress goes from `first` tokens to `aim`, and has made `step` updates.
    """

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
    aim: int = 0
    first: int = 0
    step: int = 0
    taken: float = 0.0  # when the weights of `beside` were written that were taken last

    def __post_init__(self) -> None:
        """Take up what `out` holds."""
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        if not trained:
            raise ConfigError("nothing trains: every part of the model is frozen (--options freeze_…)")
        self.optimizer = torch.optim.AdamW(trained, lr=0.0, betas=(0.9, 0.98), weight_decay=0.02)
        self.updater = Updater(self.optimizer, trained, max_norm=1.0)
        if (self.out / "state.pt").is_file():
            state = torch.load(self.out / "state.pt", weights_only=True)
            self.model.load_trainable(state["weights"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.pool, self.read = state["pool"], state["read"]
            self.aim, self.first, self.step = state.get("run", (0, 0, 0))
            # What the weights have read before counts, whatever this call names.
            self.played = self.played.merged(played_in(state) or PlayedGames())

    def run(self, pools: Pools, *, tokens: int, lr: float, batch_tokens: int = BATCH_TOKENS) -> None:
        """Train until `tokens` were read in all."""
        if self.read >= tokens:
            print(f"{self.out} has read {self.read:,} tokens already: a larger --tokens goes on", flush=True)
        if tokens != self.aim:  # else one that was killed goes on, at the rate that it had
            self.aim, self.first, self.step = tokens, self.read, 0
        writer = RowWriter(self.model, actions_only=self.actions_only, untold=self.untold)
        begun, found = time.monotonic(), self.read
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
                if self.read >= tokens:  # the rate has come down to zero
                    break
                loss, of_rows = loss_of(self.model, self.vis_processor, group)
                left = (tokens - self.read) / (tokens - self.first)
                factor = rate_factor(self.step, left, warm_up=WARMUP_STEPS, decay=DECAY_SHARE)
                descend(self.updater, loss, lr * factor)
                for row, its in zip(group, of_rows, strict=True):
                    losses[row.kind].append(its)
                self.read += sum(len(row.ids) for row in group)
                self.step += 1
            self.pool += 1
            # By this run's own speed, playing and saving included.
            left_minutes = (tokens - self.read) * (time.monotonic() - begun) / (self.read - found) / 60
            self.note(records, losses, self.read - read, playing, time.monotonic() - started, max(0.0, left_minutes))
            if self.beside:
                self.average(self.beside / "state.pt")

    def average(self, other: Path) -> None:
        """Take the mean of these weights and those of `other`, if there are new ones.

        So two runs on two cores learn from each other's games (AD-PSGD: Lian et al. 2018, arXiv:1710.06952). Each keeps
        its own optimiser.
        """
        if not other.is_file():
            print(f"{other.parent} holds no weights yet: its run has ended no pool, or --beside names another folder")
        elif (written := other.stat().st_mtime) > self.taken:
            self.taken = written
            state = torch.load(other, weights_only=True)
            self.played = self.played.merged(played_in(state) or PlayedGames())
            theirs = state["weights"]
            ours = self.model.trainable_state_dict()
            require_match(ours, theirs, f"--beside {other}")
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
                won[record.source + ", untold" * record.untold].append(record.won)
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
            "run": (self.aim, self.first, self.step),
        }  # fmt: skip
        # The state last: a run that was killed before it repeats the pool, one that was killed after it may be over.
        append_line(self.out / "progress.jsonl", json.dumps(line))
        write_weights(self.model.trainable_state_dict(), self.out / "student.safetensors", self.played)
        save_whole(self.out / "state.pt", state)
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
        if not isinstance(model, Blip2Emac):
            raise ConfigError(f"model type {arguments.model_type} is no Blip2Emac, the architecture that this trains")
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
            renamed=arguments.invented,
            untold=arguments.untold > 0,  # 0: the student reads no frames
            order=arguments.search,
        )
        trainer.run(pools, tokens=round(arguments.tokens * 1e6), lr=arguments.lr, batch_tokens=arguments.batch_tokens)
        if arguments.plot:
            write_bytes(arguments.plot, drawn(read_progress(arguments.out / "progress.jsonl")))
    finally:
        lock.close()


if __name__ == "__main__":
    run_program(main)
