"""The demo: both training phases and all evaluations with a small model, in minutes on two cores (`make demo`).

    python -m xrl_alignment.demo [--output output/demo]

It generates household games and evaluates the untrained policy on held-out rooms. It trains the policy by behavioural
cloning and evaluates it, then trains it by DPO against the first phase's frozen policy and evaluates it again: as it
is, with blank frames, and on ALFWorld's official `valid_seen` games if they are installed. In both phases a server
and a client process talk over HTTP. All programs compute on one thread, so a second process of this one evaluates
while the first trains. It writes `summary.json` and `report.html`, and prints a table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from lavis.common.config import as_option
from lavis.common.errors import ConfigError, FileError
from lavis.common.paths import REPO_ROOT
from lavis.common.program import read_first, run_program
from xrl_alignment.builders.named import check_named
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig


def parse_arguments() -> argparse.Namespace:
    """The command line; ConfigError if the settings of a phase are wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    output_help = "folder for all results; those of an earlier demo are deleted first"
    parser.add_argument("--output", type=Path, default=REPO_ROOT / "output" / "demo", help=output_help)
    parser.add_argument("--bc-config", type=Path, default=REPO_ROOT / "configs/dagger/demo_bc.yaml")
    parser.add_argument("--dpo-config", type=Path, default=REPO_ROOT / "configs/dagger/demo_dpo.yaml")
    parser.add_argument(
        "--options", nargs="+", action="extend", default=[], metavar="KEY=VALUE", help="settings for both phases"
    )
    arguments = parser.parse_args()
    for option in arguments.options:
        if (key := option.partition("=")[0]) in ("run.output_dir", "server.port"):
            raise ConfigError(f"{key}: a demo chooses it itself; --output names the folder for all results")
    for cfg_path in (arguments.bc_config, arguments.dpo_config):
        check_named(load_config(DaggerConfig, cfg_path, arguments.options))
    return arguments


if __name__ == "__main__":
    # Above the imports that take seconds: `--help` and mistakes in the settings are answered at once.
    read_first(parse_arguments)

import psutil
import torch

from alfworld_native.base import Game
from alfworld_native.errors import EnvironmentFault
from alfworld_native.games import find_games, games_hash
from lavis.common.allocator import bound_kernel_cache, keep_freed_memory
from lavis.common.devices import set_seed, set_threads
from lavis.common.files import locked, write_json
from xrl_alignment.agents.policies.uniform import RandomPolicy
from xrl_alignment.builders.environments import environment_factory, games_of
from xrl_alignment.builders.student import load_student, make_policy, prompt_writer
from xrl_alignment.common.progress import GameProgress
from xrl_alignment.common.versions import versions
from xrl_alignment.lab.ending import evaluate_command
from xrl_alignment.lab.pipeline import hand_off, handed_options, run_phase
from xrl_alignment.play.evaluation.actors import Actor, ExpertActor, PolicyActor, new_expert
from xrl_alignment.play.evaluation.metrics import summarise
from xrl_alignment.play.evaluation.trials import play_games
from xrl_alignment.play.rollouts.episode import STUCK_AFTER
from xrl_alignment.settings.schema import EnvironmentConfig
from xrl_alignment.show.report.page import write_report

HELDOUT_GAMES = 72  # twelve of each task type
HOPELESS_GAMES = 24  # for policies that solve nothing: each of their episodes lasts to the step limit
OFFICIAL_GAMES = 50  # of `valid_seen`'s 140, drawn by the run's seed
# The phases and how long each took of a whole run, in seconds (2 cores); only their ratios matter.
PHASES = {
    "behavioural cloning; beside it the baselines and the untrained policy": 18,
    "DPO; beside it the evaluation after cloning": 62,
    "evaluation after DPO": 20,
}


class PeakMemory:
    """Samples the resident memory of this process and its children twice a second; `bytes` is the largest sum."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        """Begin to sample."""
        self._thread.start()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop sampling."""
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        this = psutil.Process()
        while not self._stop.wait(0.5):
            total = 0
            for process in (this, *this.children(recursive=True)):
                try:
                    total += process.memory_info().rss
                except psutil.NoSuchProcess:  # it has ended since it was listed
                    continue
            self.bytes = max(self.bytes, total)


class PhaseStatus:
    """One line for each phase, with the time that the whole will still take.

    The estimate is what the phases take on 2 idle cores, until phases of a tenth of that time have shown how fast this
    machine is; before that a start-up of a minute would be taken for an hour.
    """

    def __init__(self, phases: Mapping[str, float], clock: Callable[[], float] = time.monotonic) -> None:
        self._phases = dict(phases)
        self._clock = clock
        self._began = clock()
        self._begun = 0

    @property
    def name(self) -> str:
        """The phase in progress: `phase 3 of 4`."""
        return f"phase {self._begun} of {len(self._phases)}"

    def begin(self, name: str) -> None:
        """Say that phase `name`, the next one, begins."""
        names, shares = list(self._phases), list(self._phases.values())
        done, left = sum(shares[: self._begun]), sum(shares[self._begun :])
        assert names[self._begun] == name
        self._begun += 1
        so_far = self._clock() - self._began
        known = done >= 0.1 * (done + left)
        # The phases so far took `so_far` where their shares promise `done`: the others take as much longer or shorter.
        estimate = f"about {left * so_far / done:.0f} s left" if known else f"{left:.0f} s left on 2 idle cores"
        print(f"== {self.name}: {name}; {so_far:.0f} s so far, {estimate}", flush=True)


class Evaluator:
    """Evaluates checkpoints, in free text, for the summary."""

    def __init__(self, config: DaggerConfig) -> None:
        self.config = config
        self.play = partial(
            play_games,
            make_environment=environment_factory(config.environment, config.run.max_steps),
            max_steps=config.run.max_steps,
            enable_tc=config.run.enable_tc,
        )

    def baselines(self, games: list[Game]) -> dict[str, dict]:
        """The expert, and random choice among the admissible commands: figures to compare a policy with."""
        actors: dict[str, Actor] = {
            "expert": ExpertActor(partial(new_expert, "explorer", {})),
            "random": PolicyActor(policy=RandomPolicy(self.config.run.seed), blank_frames=True),  # it looks at none
        }
        figures = {name: summarise(self.play(actor, games)) for name, actor in actors.items()}
        # Random play chooses among the admissible commands: its success belongs to that column.
        for row in (figures["random"], *figures["random"]["per_task_type"].values()):
            row |= {"success_admissible": row["success"], "interval_admissible": row["interval"]}
            row |= {"success": None, "interval": None}
        return figures

    def entry(self, games: list[Game], pretrained: Path | None, *, name: str = "", blank_frames: bool = False) -> dict:
        """`success`, `games`, `won` by game, `mean_steps`, `per_task_type`: single trial, free text.

        Shows its progress under `name`; without a name nothing is shown.
        """
        # Of the run's settings those of the policy: the reference is for training only.
        settings = {key: value for key, value in self.config.model.items() if key != "ref_pretrained"}
        if pretrained:
            settings |= {"load_pretrained": True, "pretrained": str(pretrained)}
        set_seed(self.config.run.seed)
        model, vis_processor = load_student(settings, torch.device("cpu"))
        policy = make_policy(self.config.policy, model, vis_processor, self.config.run.max_batch)
        write_prompt = prompt_writer(model, tell_objects=self.config.environment.tell_objects)
        actor = PolicyActor(policy=policy, blank_frames=blank_frames, write_prompt=write_prompt)
        with GameProgress(len(games), quiet=not name) as progress:
            progress.say(name)
            results = self.play(
                actor,
                games,
                concurrency=self.config.run.max_batch,
                repeat_limit=STUCK_AFTER,
                on_result=lambda result, trace: progress.advance(result.won),
            )
        return {**summarise(results), "won": {result.game: result.won for result in results}}


def _begin_second_process(threads: int) -> None:
    # A function of the module: a spawned process is told its name and imports it. Nothing that this process has set
    # reaches that one, so it sets the same.
    bound_kernel_cache()
    keep_freed_memory()
    set_threads(threads)


@contextmanager
def second_process(threads: int) -> Iterator[ProcessPoolExecutor]:
    """A process for evaluations beside the first one's work; an error or Ctrl-C ends it at once."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, initializer=_begin_second_process, initargs=(threads,)) as pool:
        # A process inherits what is blocked when it starts: Ctrl-C is for the first one to handle.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        pool.submit(int)  # a call of no use: the pool starts its process at the first one
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        try:
            yield pool
        except BaseException:
            for process in multiprocessing.active_children():
                process.kill()
            raise


def run_demo(output: Path, bc_config: Path, dpo_config: Path, options: list[str]) -> dict[str, Any]:
    """Train and evaluate; returns what `summary.json` holds."""
    options = [*options, "server.port=0"]  # any free port: a demo must not collide with a run
    bc_options = [*options, as_option("run.output_dir", output / "bc")]
    config = load_config(DaggerConfig, bc_config, bc_options)
    set_threads(config.run.num_threads)
    started = time.monotonic()
    environment = EnvironmentConfig(**{**vars(config.environment), "split": "household_heldout"})
    heldout, fewer = games_of(environment, HELDOUT_GAMES), games_of(environment, HOPELESS_GAMES)
    try:
        official = find_games("valid_seen", num=OFFICIAL_GAMES, seed=config.run.seed)
    except EnvironmentFault:  # not installed: the demo needs nothing but generated games
        official = []
    status = PhaseStatus(PHASES)
    evaluator = Evaluator(config)
    # The second process evaluates what there is while this one trains: first what needs no training, then the cloned
    # policy, on held-out and on official games.
    with second_process(config.run.num_threads) as second:
        status.begin("behavioural cloning; beside it the baselines and the untrained policy")
        baselines = second.submit(evaluator.baselines, heldout)
        beside = {"untrained": second.submit(evaluator.entry, fewer, None)}
        reference = hand_off(run_phase(bc_config, bc_options, phase=status.name))
        status.begin("DPO; beside it the evaluation after cloning")
        beside["bc"] = second.submit(evaluator.entry, heldout, reference)
        if official:
            beside["bc_valid_seen"] = second.submit(evaluator.entry, official, reference)
        dpo_options = [*options, as_option("run.output_dir", output / "dpo"), *handed_options(reference, reference)]
        final = hand_off(run_phase(dpo_config, dpo_options, phase=status.name))
        status.begin("evaluation after DPO")
        blank = second.submit(evaluator.entry, fewer, final, blank_frames=True)
        if official:
            beside["dpo_valid_seen"] = second.submit(evaluator.entry, official, final)
        here = {"dpo": evaluator.entry(heldout, final, name="after DPO"), "dpo_blank_frames": blank.result()}
        first = ("untrained", "bc")
        summary: dict[str, Any] = baselines.result() | {name: beside.pop(name).result() for name in first} | here
        summary |= {name: evaluation.result() for name, evaluation in beside.items()}
    return summary | {
        "wall_seconds": round(time.monotonic() - started, 1),
        "seed": config.run.seed,
        "heldout_games_hash": games_hash(heldout),
        "valid_seen_games_hash": games_hash(official) if official else "not installed",
        "checkpoints": {"bc": str(reference), "dpo": str(final)},
        "machine": f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads",
        "versions": versions(),
    }


def table(summary: dict[str, Any]) -> str:
    """The evaluations as text; random play is shown with the success that it has among the admissible commands."""
    lines = [f"{'':25} {'games':>6} {'success':>8} {'95 % interval':>15} {'steps':>6}"]
    for name, row in summary.items():
        if isinstance(row, dict) and "success" in row:
            steps = f"{row['mean_steps']:.1f}" if row["mean_steps"] is not None else "-"
            shown, success, interval = name, row["success"], row["interval"]
            if success is None:
                shown = f"{name} (admissible)"
                success, interval = row["success_admissible"], row["interval_admissible"]
            between = f"{interval[0]:.2f} to {interval[1]:.2f}" if interval else "-"
            lines.append(f"{shown:25} {row['games']:6d} {success:8.3f} {between:>15} {steps:>6}")
    return "\n".join(lines)


def gain(summary: dict[str, Any]) -> str:
    """What phase 2 changed, game by game, in a sentence."""
    # On the same held-out games, by id.
    before, after = summary["bc"]["won"], summary["dpo"]["won"]
    gained = sum(after[game] and not before[game] for game in after)
    lost = sum(before[game] and not after[game] for game in after)
    return f"of {len(after)} held-out games, DPO solves {gained} that cloning failed, and fails {lost} that it solved"


def what_next(summary: dict[str, Any], report: Path, config: DaggerConfig) -> list[str]:
    """What came out, where it lies, and two commands that go on from there; `config` is phase 2's."""
    checkpoint, rows = Path(summary["checkpoints"]["dpo"]), [summary[name] for name in ("untrained", "bc", "dpo")]
    untrained, cloned, final = (row["success"] for row in rows)
    return [
        f"success on held-out games: {untrained:.3f} untrained, {cloned:.3f} after cloning, {final:.3f} after DPO",
        f"checkpoint: {checkpoint}",
        f"report: {report} (open it in a browser)",
        f"next, watch it: python -m xrl_alignment.play --player policy --checkpoint {shlex.quote(str(checkpoint))}",
        f"or evaluate it: {evaluate_command(config, checkpoint)}",
    ]


def prepare_output(output: Path) -> TextIO:
    """Make the folder `output` and lock it; one that an earlier demo made is emptied. Returns the lock.

    Raises FileError if the folder cannot be made or holds what is not a demo's, and LockedError if another demo writes
    to it.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:  # now, not minutes later
        raise FileError(f"--output {output} cannot be made: {error.strerror}") from error
    lock = locked(output / ".lock", output)
    mark = output / ".demo"  # a demo that was killed has left it, too
    try:  # before 0.2.0 there was none; a demo's summary names its two checkpoints
        summary = output / "summary.json"
        of_a_demo = mark.exists() or {"bc", "dpo"} <= set(json.loads(summary.read_bytes())["checkpoints"])
    except (OSError, ValueError, KeyError, TypeError):
        of_a_demo = False
    entries = [entry for entry in output.iterdir() if entry.name != ".lock"]
    if entries and not of_a_demo:
        lock.close()
        raise FileError(f"--output {output} holds what is no demo's, {entries[0].name}: give another folder")
    for entry in entries:  # the lock stays: whoever locks a new file of its name locks out nobody
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink()
    mark.touch()
    return lock


def main() -> None:
    """Command line."""
    arguments = parse_arguments()
    bound_kernel_cache()
    keep_freed_memory()
    with prepare_output(arguments.output):
        with PeakMemory() as memory:
            summary = run_demo(arguments.output, arguments.bc_config, arguments.dpo_config, arguments.options)
        summary["peak_resident_bytes"] = memory.bytes
        write_json(arguments.output / "summary.json", summary)
        report = write_report(arguments.output, summary)
    print(table(summary))
    print(gain(summary))
    print(f"{summary['wall_seconds']:.0f} s, peak memory {memory.bytes / 2**30:.2f} GiB")
    print("\n".join(what_next(summary, report, load_config(DaggerConfig, arguments.dpo_config, arguments.options))))


if __name__ == "__main__":
    run_program(main)
