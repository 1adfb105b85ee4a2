"""Kills a run's processes again and again with SIGKILL, and compares what comes out with a run that nobody disturbed.

    python -m tests.reliability.kills --kills 200                         # all kinds in turn, a fresh seed
    python -m tests.reliability.kills --runs 1 --kind dpo --seed 17       # one run again
    python -m tests.reliability.kills --kills 100 --kind decoupled decoupled-dpo decoupled-adapters

Server, client, learner and teacher's endpoint are processes of their own; which dies, and when, comes from the seed. A
run with one worker must equal an undisturbed one bit by bit. Several workers play in an order of their own, and so does
a client after a kill, whose game the server gives out again only later: there the weights must equal those that a
resume computes from nothing but the journal. Every game is played once in a round. An endpoint never bills more than is
booked. Exit code 0, or 1 with the seed of the run that differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import torch
import yaml

from alfworld_native.household.generator import generate
from lavis.models.blip2_models.emac_config import PARTS
from tests.ports import free_port
from tests.reliability.billing import bill_every_attempt
from tests.reliability.facts import differences, facts, faults, weights
from tests.reliability.programs import Program, Serving
from xrl_alignment.agents.experts.llm.accounting import read_calls
from xrl_alignment.builders.student import load_student

ROUNDS, GAMES, HANG_S = 2, 4, 900.0  # seconds: the machine may be busy
FROZEN = {"freeze_vit": True, "freeze_qformer": True, "freeze_llm": True, "allow_random": list(PARTS)}
ADAPTERS = {**FROZEN, "lora_rank": 2}  # of the frozen language model; they train beside the projection
EXPECTED_END = "no answer in 3 attempts: no connection"  # of a server whose teacher's endpoint is down
LEARNER_GIVEN_UP = "times in a row after"  # of a server whose learner was killed again and again at one episode


@dataclass(frozen=True)
class Kind:
    """A kind of run: how many games at once, which phase, which teacher and learner; `most` kills in one run."""

    workers: int = 1
    preferences: bool = False
    teacher: bool = False
    model: dict[str, Any] = field(default_factory=lambda: FROZEN)
    decoupled: bool = False  # the learner is a process of its own, whose weights the policy waits for
    most: int = 7


KINDS = {
    "bc": Kind(),
    "dpo": Kind(preferences=True),
    "whole": Kind(model={}),
    "workers": Kind(workers=3),
    "dpo-workers": Kind(workers=3, preferences=True),
    "teacher": Kind(teacher=True),
    "teacher-workers": Kind(teacher=True, workers=3, preferences=True),
    "decoupled": Kind(decoupled=True),
    "decoupled-dpo": Kind(decoupled=True, preferences=True),
    "decoupled-adapters": Kind(decoupled=True, model=ADAPTERS),
}


class Failed(Exception):
    """A run that did not survive; the text says how."""


@dataclass
class Run:
    """One run in `folder`: its settings, its processes, its directory `folder/run`."""

    kind: Kind
    folder: Path
    data: Path
    reference: Path | None
    state_interval_s: float = 0.0
    setup: Callable[[], None] | None = None  # what its programs do before they begin
    client_options: tuple[object, ...] = ()
    processes: dict[str, Program | Serving] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.path, self.bill = self.folder / "run", self.folder / "bill"
        self.journal = self.path / "state/episodes.jsonl"
        self.port, self.endpoint = free_port(), free_port()
        self.folder.mkdir(parents=True)
        (self.folder / "settings.yaml").write_text(yaml.safe_dump(self.settings()))

    def settings(self) -> dict[str, dict]:
        kind, model = self.kind, dict(self.kind.model)
        if kind.preferences:
            model |= {"pretrained": str(self.reference), "ref_pretrained": str(self.reference)}
        teacher = {"name": "openai", "model": "m", "base_url": f"http://127.0.0.1:{self.endpoint}/v1", "cache": ""}
        run = {
            "num_rounds": ROUNDS,
            "num_envs": GAMES,
            "enable_dpo": kind.preferences,
            "batch_size": 2,
            "num_threads": 1,
            "accum_grad_steps": 1,
            "train_iters_per_epoch": 1,
            "init_lr": 1e-2,
            "warmup_steps": 1,
            "max_steps": 5,
            "beta": [1.0, 0.0],
            "device": "cpu",
            "state_interval_s": self.state_interval_s,
        }
        if kind.decoupled:
            run |= {"learner": "decoupled", "max_staleness": 0}  # an older policy's actions would depend on time
        return {
            "run": run,
            "model": model,
            "environment": {"name": "native", "split": "household_train", "data": str(self.data)},
            "expert": {**teacher, "timeout_s": 20.0} if kind.teacher else {"name": "explorer"},
            "policy": {"num_beams": 1, "max_length": 6},
            "server": {"port": self.port, "session_timeout_s": 2.0, "dashboard": False},
        }

    @property
    def done(self) -> bool:
        return (self.path / "DONE").exists()

    def start(self, name: str) -> None:
        """Start the process `name` unless it runs."""
        if name in self.processes and self.processes[name].running:
            return
        self.processes[name] = getattr(self, f"_{name}")()

    def _server(self) -> Program:
        begun = (self.path / "config.yaml").exists()
        settings = ["--resume", self.path] if begun else ["--cfg-path", self.folder / "settings.yaml"]
        settings += [] if begun else ["--run-dir", self.path]
        options = ["--options", f"server.port={self.port}"]
        return Program("dagger_server.py", *settings, *options, log=self.folder / "server.log", setup=self.setup)

    def _client(self) -> Program:
        arguments = self.client_arguments()
        return Program("alfworld_client.py", *arguments, log=self.folder / "client.log", setup=self.setup)

    def client_arguments(self) -> list[object]:
        """The client's command line."""
        games = ["--env", "native", "--data", self.data, "--split", "household_train", "--num-envs", GAMES]
        play = ["--port", self.port, "--num-workers", self.kind.workers, "--max-steps", 5, "--patience", 60]
        return [*games, *play, *self.client_options]

    def _endpoint(self) -> Serving:
        return Serving(bill_every_attempt, self.endpoint, self.bill)

    @property
    def programs(self) -> tuple[str, ...]:
        """What is started here; the server starts the learner."""
        return ("server", "client", "endpoint") if self.kind.teacher else ("server", "client")

    @property
    def names(self) -> tuple[str, ...]:
        """What can be killed."""
        return (*self.programs, "learner") if self.kind.decoupled else self.programs

    def kill(self, name: str) -> bool:
        """SIGKILL; whether that is what ended it."""
        if name != "learner":
            return self.processes[name].kill()
        server = self.processes["server"]
        assert isinstance(server, Program)
        for child in server.family():
            with contextlib.suppress(psutil.Error):  # it has ended, or has not yet become the learner
                if "xrl_alignment.dagger.decoupled" in child.cmdline():
                    child.kill()
                    return True
        return False

    def close(self) -> None:
        for process in self.processes.values():
            process.kill()

    def log(self) -> str:
        texts = [path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log"))]
        return "\n---\n".join(texts)


def play(run: Run, moments: Iterator[tuple[float, list[str]]]) -> list[str]:
    """Play `run` to its end; at each of `moments` (seconds after the last, names) these processes are killed.

    Returns the names of what was killed.
    """
    killed, deadline = [], time.monotonic() + HANG_S
    (delay, victims), at = next(moments, (HANG_S, [])), time.monotonic()
    while not run.done:
        for name in run.programs:
            check(run, name)
            run.start(name)
        if time.monotonic() - at >= delay:
            killed += [name for name in victims if run.kill(name)]
            (delay, victims), at = next(moments, (HANG_S, [])), time.monotonic()
        if time.monotonic() > deadline:
            raise Failed("it hangs")
        time.sleep(0.01)
    if run.processes["server"].wait(60) not in (0, -9):
        raise Failed("the server did not end well")
    run.processes["client"].wait(1)
    run.close()
    return killed


def check(run: Run, name: str) -> None:
    """Failed where a process has ended by itself before the run was over."""
    process = run.processes.get(name)
    if process is None or process.running or (code := process.wait()) in (-9, 0):
        return
    if run.kind.teacher and code == 2 and EXPECTED_END in run.log() and name == "server":
        return
    if run.kind.decoupled and code == 2 and LEARNER_GIVEN_UP in run.log() and name == "server":
        return
    raise Failed(f"the {name} ended with code {code}")


def moments(rng: random.Random, names: tuple[str, ...], seconds: float, most: int) -> Iterator[tuple[float, list[str]]]:
    """Random moments within the time that an undisturbed run takes, and who is killed then: one, or several at once."""
    for _ in range(most):
        delay = seconds * rng.choice((rng.random(), rng.random() ** 3))
        yield delay, rng.sample(names, rng.choice((1, 1, 1, len(names))))


def compared_with_undisturbed(run: Run, killed: Sequence[str]) -> bool:
    """Whether the order of the games is that of an undisturbed run, so that every bit must be."""
    return run.kind.workers == 1 and "client" not in killed


def compare(run: Run, undisturbed: Run, killed: Sequence[str]) -> None:
    """Failed where `run`, in which `killed` were killed, is not what it must be."""
    wrong = faults(run.path, rounds=ROUNDS)
    if compared_with_undisturbed(run, killed):
        wrong += differences(facts(run.path), facts(undisturbed.path))
    else:
        wrong += differences(weights(run.path / "state/trainer.pth"), replayed(run))
    if run.kind.teacher:
        usage, _ = read_calls(run.path / "state/expert_calls.jsonl")
        booked, billed = sum(spent.calls for spent in usage.values()), len(run.bill.read_bytes())
        wrong += [f"{billed} attempts were billed, {booked} booked"] if billed > booked else []
    if wrong:
        raise Failed("; ".join(wrong))


def replayed(run: Run) -> dict[str, str]:
    """The weights that a resume computes from journal and shards alone."""
    copy = run.folder / "replay"
    shutil.copytree(run.path, copy)
    (copy / "DONE").unlink()
    (copy / "state/trainer.pth").unlink()
    options = ["--options", "server.port=0"]
    server = Program("dagger_server.py", "--resume", copy, *options, log=run.folder / "replay.log")
    if server.wait(HANG_S) != 0:
        server.kill()
        raise Failed("the replay does not end")
    return weights(copy / "state/trainer.pth")


class Harness:
    """Runs of all kinds in one folder; each kind is played once undisturbed, for the comparison and for its time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, folder / "data"
        generate(self.data, num_train=GAMES, num_heldout=1, seed=0)
        load_student(FROZEN, torch.device("cpu"))  # imports what the forks need
        self.undisturbed: dict[str, tuple[Run, float]] = {}

    @staticmethod
    def say(text: str) -> None:
        """A line of progress."""
        print(text, flush=True)

    def make(self, name: str, label: str, **options: Any) -> Run:
        kind = KINDS[name]
        reference = self.reference("bc")[0].path / f"emma_checkpoint_{ROUNDS - 1}.pth" if kind.preferences else None
        return Run(kind, self.folder / f"{name}-{label}", self.data, reference, **options)

    def reference(self, name: str) -> tuple[Run, float]:
        """The undisturbed run of a kind, and its seconds."""
        if name not in self.undisturbed:
            run, began = self.make(name, "undisturbed"), time.monotonic()
            try:
                play(run, iter(()))
            finally:
                run.close()
            self.undisturbed[name] = run, time.monotonic() - began
        return self.undisturbed[name]

    def disturb(self, name: str, seed: int) -> int:
        """One run with kills; returns their number. Failed names what differs, and how to run it again."""
        rng = random.Random(seed)
        undisturbed, seconds = self.reference(name)
        run, began = self.make(name, str(seed), state_interval_s=rng.choice((0.0, 0.5, 30.0))), time.monotonic()
        try:
            # Without a killed client a run with one worker is compared bit by bit: so is at least every second one.
            spared = "client" if run.kind.workers == 1 and rng.random() < 0.5 else ""
            victims = tuple(victim for victim in run.names if victim != spared)
            killed = play(run, moments(rng, victims, seconds, rng.randint(2, run.kind.most)))
            compare(run, undisturbed, killed)
        except Exception as error:
            again = f"python -m tests.reliability.kills --runs 1 --kind {name} --seed {seed}"
            raise Failed(f"{error}\nin {run.folder}; again: {again}\n{run.log()}") from error
        finally:
            run.close()
        if left := psutil.Process().children(recursive=True):
            raise Failed(f"{name} seed {seed}: processes were left behind: {left}")
        shutil.rmtree(run.folder)
        counted = {victim: killed.count(victim) for victim in run.names if victim in killed}
        how = "bit by bit" if compared_with_undisturbed(run, killed) else "with its own journal"
        seconds = time.monotonic() - began
        self.say(f"{name} seed {seed}: {len(killed)} kills {json.dumps(counted)}, {seconds:.1f} s, compared {how}")
        return len(killed)


def kill_arguments(text: str | None, kills: int) -> argparse.ArgumentParser:
    """The command line of a program that kills until enough was killed."""
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=kills, help=f"SIGKILLs in all, at least ({kills})")
    parser.add_argument("--runs", type=int, help="so many runs instead")
    parser.add_argument("--seed", type=int, help="of the first run; the next has the next number")
    return parser


def until_enough(arguments: argparse.Namespace, prepare: Callable[[Path], Callable[[int, int], int]]) -> int:
    """Run what `prepare` returns for a new folder, with number and seed of the run, until enough was killed."""
    seed = secrets.randbelow(1 << 31) if arguments.seed is None else arguments.seed
    folder, kills, runs = Path(tempfile.mkdtemp(prefix="emac-kills-")), 0, 0
    print(f"seed {seed}, in {folder}", flush=True)
    disturb = prepare(folder)
    while runs < arguments.runs if arguments.runs else kills < arguments.kills:
        kills += disturb(runs, seed + runs)
        runs += 1
        print(f"{kills} kills survived in {runs} runs", flush=True)
    shutil.rmtree(folder)
    return 0


def main() -> int:
    """Kinds in turn."""
    parser = kill_arguments(__doc__, 200)
    parser.add_argument("--kind", choices=sorted(KINDS), nargs="+", default=list(KINDS))
    arguments = parser.parse_args()

    def prepare(folder: Path) -> Callable[[int, int], int]:
        harness, kinds = Harness(folder), arguments.kind
        return lambda number, seed: harness.disturb(kinds[number % len(kinds)], seed)

    return until_enough(arguments, prepare)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as error:
        sys.exit(f"a run did not survive: {error}")
