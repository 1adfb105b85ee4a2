"""Collects training data: an expert plays games, and every state it meets becomes a labelled transition.

    python -m xrl_alignment.collect --env native --split train --expert explorer --num-games 200 --workers 2 --out DIR
    python -m xrl_alignment.collect --split train --no-frames --out DIR       # labels and texts only
    python -m xrl_alignment.collect --expert openai --expert-options model=gpt-4o max_cost_usd=5 … --workers 8 --out DIR

    DIR/
        README.md                          dataset card: counts, success, settings, versions
        collection.json                    the settings; a second run with the same ones goes on where the first stopped
        episodes.jsonl                     one line an episode, in the order of the games
        round000_env0012_steps013.h5       --format shards: one file for each stored episode
        annotations.json, images/          --format lavis: what LAVIS and the published ALFWorld data use

What is in a transition is what a model sees online: the same prompt (`history.build_prompt`), the same frame, the same
canonical commands. Episodes that the expert does not solve are left out unless --keep-failed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from PIL import Image

import lavis
from lavis.common.errors import ConfigError
from lavis.common.files import write_atomically
from xrl_alignment.builders.teacher import build_teacher
from xrl_alignment.common.choices import BACKENDS, CLIENT_EXPERTS, ENVIRONMENT_NAMES
from xrl_alignment.common.errors import EnvironmentFault
from xrl_alignment.common.intervals import wilson_interval
from xrl_alignment.common.program import run_program
from xrl_alignment.common.progress import GameProgress
from xrl_alignment.common.versions import versions
from xrl_alignment.config.resume import FREE_KEYS
from xrl_alignment.config.schema import ExpertConfig, ReflexionConfig
from xrl_alignment.dagger.replay import Transition, shard_name, write_shard
from xrl_alignment.environments import choose_games, make_environment
from xrl_alignment.environments.base import MAX_STEPS, Environment, Game
from xrl_alignment.environments.games import games_hash
from xrl_alignment.experts import Expert, Label, act_all, make_expert
from xrl_alignment.language.prompt import build_prompt, token_counter
from xrl_alignment.rollouts.executors import RolloutExecutor, SequentialExecutor, make_executor

LANGUAGE_MODEL = "openai"
EXPERTS = ("explorer", *CLIENT_EXPERTS, LANGUAGE_MODEL)
FORMATS = ("shards", "lavis")


@dataclass(frozen=True)
class Plan:
    """What is collected and how: the same plan gives the same data, whatever the number of workers.

    Prompts are shortened to `budget` tokens of `tokenizer` (`tiny`, or a folder with a language model's tokenizer), so
    that the model does not cut them. With probability `noise` an admissible command drawn at random is executed instead
    of the label (the states around the expert's path, as in DART, Laskey et al. 2017). `negatives` stores a random
    other admissible command as `text_output_neg`, for DPO without a policy. `expert_options` are
    the `openai` expert's settings, without those that only decide where, how fast and for how much it runs.
    """

    env: str = "native"
    split: str = "train"
    expert: str = "explorer"
    num_games: int = 0
    data: str = ""
    seed: int = 0
    max_steps: int = MAX_STEPS
    format: str = "shards"
    image_format: str = "png"
    frames: bool = True
    keep_failed: bool = False
    noise: float = 0.0
    negatives: bool = False
    tokenizer: str = "tiny"
    budget: int = 1023
    expert_options: dict[str, Any] = field(default_factory=dict)
    games: str = ""  # hash of the game list

    def __post_init__(self) -> None:
        """Check values and combinations."""
        if self.num_games < 0 or self.max_steps < 1 or self.budget < 1:
            raise ConfigError("--num-games must be 0 (all) or more, --max-steps and --budget at least 1")
        if not 0 <= self.noise <= 1:
            raise ConfigError(f"--noise {self.noise} is no probability")
        if not self.frames and self.format == "shards":
            raise ConfigError("--no-frames writes texts only: use it with --format lavis")
        if self.expert in CLIENT_EXPERTS and self.env not in ("textworld", "thor"):
            raise ConfigError(f"--expert {self.expert} reads the engine's state: use --env textworld")


@dataclass(frozen=True)
class Collected:
    """One episode: its line in `episodes.jsonl`, and for --format lavis its annotation entries."""

    env: int
    game: str
    task_type: str
    won: bool
    steps: int
    stored: int
    seconds: float


def play(
    environment: Environment,
    game: Game,
    plan: Plan,
    *,
    count: Callable[[str], int],
    expert_options: Mapping[str, Any] | None = None,
) -> Generator[Expert | None, Label | None, tuple[list[Transition], bool]]:
    """Play one game with the plan's expert; returns the labelled transitions and whether it was won.

    A generator as `rollouts` wants it: it yields None after each step, and the expert where that is a language model,
    so that those of several episodes are asked at once. A state for which the expert has no label is not stored; `look`
    is executed in it.
    """
    rng = random.Random(f"{plan.seed} {game.id}")
    expert = make_expert(plan.expert, environment=environment, **(expert_options or {}))
    now = environment.reset(game)
    opening_text = now.text
    expert.begin(opening_text, task_type=game.task_type)
    steps: list[tuple[str, str]] = []
    transitions = []
    while not now.done and len(steps) < plan.max_steps:
        label = ((yield expert) if plan.expert == LANGUAGE_MODEL else expert.act()).action
        others = [command for command in now.admissible_commands if command != label]
        rejected = rng.choice(others) if plan.negatives and others else ""
        action = rng.choice(others) if plan.noise and others and rng.random() < plan.noise else label or "look"
        seen = (environment.render() if plan.frames else None, _prompt(opening_text, steps, plan, count))
        now = environment.step(action)
        expert.observe(action, now.text)
        steps.append((action, now.text))
        if label is not None:
            transitions.append(Transition(*seen, label, rejected, action, now.text))
        yield None
    return transitions, now.won


def _prompt(opening_text: str, steps: Sequence[tuple[str, str]], plan: Plan, count: Callable[[str], int]) -> str:
    return build_prompt(opening_text, (), steps, budget=plan.budget, count=count)


@lru_cache(maxsize=1)
def counter(tokenizer: str) -> Callable[[str], int]:
    """Counts the tokens of a text as the model does."""
    path = Path(lavis.__file__).parent / "models" / tokenizer / "tokenizer.json"
    if path.is_file():
        from tokenizers import Tokenizer  # the package's own tokenizer needs neither torch nor transformers

        tokens = Tokenizer.from_file(str(path))
        return token_counter(lambda text: tokens.encode(text, add_special_tokens=False).ids)
    from lavis.models.blip2_models.text import load_llm_tokenizer

    return token_counter(load_llm_tokenizer(tokenizer).encode)


class Collector:
    """Plays games by a plan into `out`, for an executor: one of it in every worker."""

    def __init__(self, plan: Plan, out: Path, expert_options: Mapping[str, Any] | None = None) -> None:
        self.plan = plan
        self.out = out
        self.expert_options = dict(expert_options or {})
        self._idle: list[Environment] = []  # as many as there were episodes at the same time

    def __call__(
        self, job: tuple[int, Game]
    ) -> Generator[Expert | None, Label | None, tuple[Collected, list[dict[str, str]]]]:
        """Play and store one game; returns its line, and the annotation entries for --format lavis."""
        env, game = job
        began = time.perf_counter()
        count = counter(self.plan.tokenizer)
        with self._environment() as environment:
            transitions, won = yield from play(
                environment, game, self.plan, count=count, expert_options=self.expert_options
            )
        kept = transitions if won or self.plan.keep_failed else []
        entries: list[dict[str, str]] = []
        if kept and self.plan.format == "shards":
            self._write_shard(env, game, kept, won)
        elif kept:
            entries = [self._entry(env, step, game, item) for step, item in enumerate(kept)]
        seconds = round(time.perf_counter() - began, 3)
        return Collected(env, game.id, game.task_type, won, len(transitions), len(kept), seconds), entries

    @contextmanager
    def _environment(self) -> Iterator[Environment]:
        """An environment that no other episode of this worker uses."""
        if not self._idle:
            expert = self.plan.expert if self.plan.expert in CLIENT_EXPERTS else None
            self._idle.append(make_environment(self.plan.env, max_steps=self.plan.max_steps, expert=expert))
        environment = self._idle.pop()
        try:
            yield environment
        finally:
            self._idle.append(environment)

    def close(self) -> None:
        """Close the environments."""
        while self._idle:
            self._idle.pop().close()

    def _write_shard(self, env: int, game: Game, transitions: list[Transition], won: bool) -> None:
        facts = {"game": game.id, "won": won, "expert": self.plan.expert, "engine": self.plan.env}
        write_shard(self.out / shard_name(0, env, len(transitions)), transitions, facts)

    def _entry(self, env: int, step: int, game: Game, item: Transition) -> dict[str, str]:
        entry = annotation(item, game.id)
        if item.image is not None:
            name = f"images/env{env:04d}_step{step:03d}.{self.plan.image_format}"
            save_image(self.out / name, item)
            entry = {"image": name, **entry}
        return entry


def annotation(item: Transition, game: str) -> dict[str, str]:
    """A transition's texts as a LAVIS annotation entry; what is empty is left out."""
    entry = {"text_input": item.text_input, "text_output": item.text_output, "text_output_neg": item.text_output_neg}
    entry |= {"task_type": game.split("-", 1)[0], "game": game, "executed": item.executed, "feedback": item.feedback}
    return {key: value for key, value in entry.items() if value or key in ("text_input", "text_output")}


def save_image(path: Path, item: Transition) -> None:
    """Write a frame; the ending says whether as PNG (exact) or JPEG (quality 95)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"compress_level": 1} if path.suffix == ".png" else {"quality": 95}
    Image.fromarray(item.image).save(path, **options)


class Journal:
    """`episodes.jsonl` and the growing annotations: what is done, and where to go on after a crash.

    A line stands in `episodes.jsonl` only when its data is written; `at` in it is the length of the annotations then.
    """

    def __init__(self, out: Path) -> None:
        self._episodes = out / "episodes.jsonl"
        self._annotations = out / ".annotations.jsonl"
        self.done: list[Collected] = []
        whole, at = b"", 0
        if self._episodes.is_file():
            whole = self._episodes.read_bytes().rpartition(b"\n")[0]
            whole += b"\n" if whole else b""
            for line in whole.splitlines():
                content = json.loads(line)
                at = content.pop("at")
                self.done.append(Collected(**content))
        for path, length in ((self._episodes, len(whole)), (self._annotations, at)):
            with open(path, "ab") as file:
                file.truncate(length)

    @contextmanager
    def writing(self) -> Iterator[Callable[[Collected, list[dict[str, str]]], None]]:
        """A function that adds an episode."""
        with open(self._episodes, "a", encoding="utf-8") as episodes, open(self._annotations, "ab") as annotations:

            def add(episode: Collected, entries: list[dict[str, str]]) -> None:
                lines = "".join(json.dumps(entry, ensure_ascii=False) + "\n" for entry in entries)
                annotations.write(lines.encode())
                annotations.flush()
                self.done.append(episode)
                episodes.write(json.dumps({**asdict(episode), "at": annotations.tell()}) + "\n")
                episodes.flush()

            yield add

    def finish(self, out: Path) -> None:
        """Make `annotations.json`, one JSON list, of the lines; nothing where there are none."""
        if self._annotations.stat().st_size:
            with open(self._annotations, "rb") as lines:
                write_list(out / "annotations.json", (line.strip() for line in lines))
        self._annotations.unlink()


def write_list(path: Path, entries: Iterator[bytes]) -> None:
    """Write encoded JSON values as one list, a value a line."""

    def write(file: Any) -> None:
        separator = b"[\n"
        for entry in entries:
            file.write(separator + entry)
            separator = b",\n"
        file.write(b"\n]\n" if separator == b",\n" else b"[]\n")

    write_atomically(path, write)


def collect(
    plan: Plan,
    games: Sequence[Game],
    out: Path,
    executor: RolloutExecutor | None = None,
    expert_options: Mapping[str, Any] | None = None,
) -> list[Collected]:
    """Play what is not yet done of `games` with `executor` (None: in this process); all episodes, in the games' order.

    `expert_options` are `make_expert`'s: the teacher of the expert `openai`, which plays in this process only.
    Raises EnvironmentFault where a game was lost with its workers; what was collected before it is kept.
    """
    out.mkdir(parents=True, exist_ok=True)
    _claim(plan, out)
    if (out / "README.md").is_file() and not (out / ".annotations.jsonl").is_file():
        return _read_done(out)
    journal = Journal(out)
    known = {episode.env for episode in journal.done}
    jobs = [(env, game) for env, game in enumerate(games) if env not in known]
    play_all = (executor or SequentialExecutor()).run
    results = play_all(Collector(plan, out, expert_options), jobs, answer=_ask, key=lambda job: job[1].id)
    with GameProgress(len(jobs)) as progress, journal.writing() as add:
        for outcome in results:
            if outcome.fault:
                raise EnvironmentFault(
                    f"{outcome.job[1].id} cannot be played ({outcome.attempts} attempts): {outcome.fault}; "
                    "the same command goes on from there"
                )
            episode, entries = outcome.value
            add(episode, entries)
            progress.advance(episode.won)
    journal.finish(out)
    write_atomically(out / "README.md", lambda file: file.write(card(plan, journal.done).encode()))
    return journal.done


def _ask(experts: Sequence[Expert]) -> list[Label]:
    return act_all(experts, [None] * len(experts))


def _claim(plan: Plan, out: Path) -> None:
    """Write the plan into the folder, or check that it is the one there."""
    path = out / "collection.json"
    if path.is_file():
        there = json.loads(path.read_text(encoding="utf-8"))
        different = [key for key, value in asdict(plan).items() if there.get(key) != value]
        if different:
            key = different[0]
            raise ConfigError(
                f"{out} was begun with other settings ({key}: {there.get(key)!r} there, {getattr(plan, key)!r} now): "
                "use another --out"
            )
        return
    write_atomically(path, lambda file: file.write(json.dumps(asdict(plan), indent=1).encode()))


def _read_done(out: Path) -> list[Collected]:
    lines = (out / "episodes.jsonl").read_text(encoding="utf-8").splitlines()
    contents = [{key: value for key, value in json.loads(line).items() if key != "at"} for line in lines]
    return [Collected(**content) for content in contents]


def card(plan: Plan, episodes: Sequence[Collected]) -> str:
    """The dataset card (Markdown): counts and success by task type, settings, versions."""
    kinds = sorted({episode.task_type for episode in episodes})
    rows = [(kind, [episode for episode in episodes if episode.task_type == kind]) for kind in kinds]
    lines = [
        f"# {plan.split}: {plan.expert} on {plan.env}",
        "",
        f"{sum(e.stored for e in episodes)} transitions of {sum(e.stored > 0 for e in episodes)} episodes"
        f"{'' if plan.keep_failed else ' (solved ones only)'}; {'frames' if plan.frames else 'no frames'}, "
        f"format `{plan.format}`. Made with `python -m xrl_alignment.collect`.",
        "",
        "| task type | games | solved | success | 95 % interval | mean steps of solved | transitions |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
        *(_card_row(kind, group) for kind, group in [*rows, ("all", list(episodes))]),
        "",
        "| setting | value |",
        "| --- | --- |",
        *(f"| {key} | {value} |" for key, value in asdict(plan).items() if key not in ("data", "games")),
        f"| hash of the game list | {plan.games} |",
        *(f"| {name} | {version} |" for name, version in versions().items()),
        "",
        "`text_input` is the prompt, `text_output` the expert's command, `executed` what was done instead where it "
        "differs, `feedback` the engine's answer. The label is one right answer of several.",
    ]
    return "\n".join(lines) + "\n"


def _card_row(kind: str, episodes: Sequence[Collected]) -> str:
    won = [episode for episode in episodes if episode.won]
    low, high = wilson_interval(len(won), len(episodes))
    steps = f"{sum(e.steps for e in won) / len(won):.1f}" if won else "-"
    rate = len(won) / len(episodes) if episodes else 0.0
    stored = sum(episode.stored for episode in episodes)
    return f"| {kind} | {len(episodes)} | {len(won)} | {rate:.3f} | {low:.3f} to {high:.3f} | {steps} | {stored} |"


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--out", type=Path, required=True, help="folder for the data")
    add("--env", choices=ENVIRONMENT_NAMES, default="native")
    add("--split", default="train")
    add("--expert", choices=EXPERTS, default="explorer")
    add("--expert-options", nargs="*", default=[], metavar="KEY=VALUE", help="of --expert openai (docs/teacher.md)")
    add("--num-games", type=int, default=0, help="0: all of the split")
    add("--workers", type=int, default=1, help="processes, or Ray actors")
    add("--executor", choices=BACKENDS, help="default: local with several workers, else sequential (docs/rollouts.md)")
    add("--ray-address", default="", help="--executor ray: the cluster (default: Ray on this machine only)")
    add("--data", default="", help="folder with json_2.1.1 (default: $ALFWORLD_DATA)")
    add("--seed", type=int, default=0, help="which games, and all chance in them")
    add("--max-steps", type=int, default=MAX_STEPS)
    add("--format", choices=FORMATS, help="default: shards (lavis with --no-frames)")
    add("--image-format", choices=("png", "jpg"), default="png", help="of --format lavis")
    add("--no-frames", dest="frames", action="store_false", help="labels and texts only")
    add("--keep-failed", action="store_true", help="store episodes that the expert did not solve, too")
    add("--noise", type=float, default=0.0, help="probability of executing a random command instead of the label")
    add("--negatives", action="store_true", help="store a random other command as text_output_neg, for DPO")
    add("--tokenizer", default="tiny", help="whose tokens the prompts are measured in: tiny, or a model's folder")
    add("--budget", type=int, default=1023, help="longest prompt in tokens (the model's max_txt_len - 1)")
    return parser.parse_args(argv)


@contextmanager
def _teacher(expert: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What `make_expert` needs beside the expert's name: for `openai` a teacher, closed at the end."""
    if expert != LANGUAGE_MODEL:
        if options:
            raise ConfigError(f"--expert-options are for --expert {LANGUAGE_MODEL}, not for {expert}")
        yield {}
        return
    try:
        settings = ExpertConfig(**{**options, "name": LANGUAGE_MODEL})
    except TypeError as error:
        raise ConfigError(f"--expert-options: {error}") from error
    with closing(build_teacher(settings, ReflexionConfig(enabled=False))) as teacher:
        yield teacher.expert_options


def _executor(plan: Plan, backend: str, workers: int, address: str) -> RolloutExecutor:
    """Waiting for a network needs no processes: `workers` episodes of a language model take turns in this one."""
    if plan.expert == LANGUAGE_MODEL:
        return SequentialExecutor(interleave=workers)
    return make_executor(backend, workers=workers, address=address)


def main(argv: Sequence[str] | None = None) -> None:
    """Collect, and say what there is."""
    settings = vars(parse_arguments(argv))
    out, workers, address = settings.pop("out"), settings.pop("workers"), settings.pop("ray_address")
    backend = settings.pop("executor") or ("local" if workers > 1 else "sequential")
    settings["format"] = settings["format"] or ("shards" if settings["frames"] else "lavis")
    options = dict(OmegaConf.from_dotlist(settings["expert_options"]))
    settings["expert_options"] = {key: value for key, value in options.items() if f"expert.{key}" not in FREE_KEYS}
    Plan(**settings)  # refuse impossible settings before games are looked for
    games = choose_games(
        settings["env"], settings["split"], num=settings["num_games"], data=settings["data"] or None,
        seed=settings["seed"],
    )  # fmt: skip
    plan = Plan(
        **{**settings, "data": os.path.abspath(settings["data"]) if settings["data"] else ""}, games=games_hash(games)
    )
    began = time.monotonic()
    with _teacher(plan.expert, options) as teacher, _executor(plan, backend, workers, address) as executor:
        episodes = collect(plan, games, out.absolute(), executor, teacher)
    stored, won = sum(episode.stored for episode in episodes), sum(episode.won for episode in episodes)
    print(f"{stored} transitions of {won} solved of {len(episodes)} games, {time.monotonic() - began:.1f} s, in {out}")


if __name__ == "__main__":
    from xrl_alignment.collect import main  # so that workers find `Collector` in a module, not in `__main__`

    run_program(main)
