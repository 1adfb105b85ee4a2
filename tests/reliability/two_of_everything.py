"""Two of everything on one directory: the second is refused in one line, the first goes on as if nothing had happened.

    python -m tests.reliability.two_of_everything                    # all
    python -m tests.reliability.two_of_everything collects trains    # these

The first program is stopped (SIGSTOP) while it holds its directory, so that it cannot end before the second one has
tried. Afterwards it goes on, and its results must be those of one that was never disturbed. Exit code 0, or 1 with
what went wrong.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
import torch

from lavis.common.paths import REPO_ROOT
from lavis.runners import checkpoint
from tests.lavis.conftest import CONFIG, run_options
from tests.reliability.facts import differences, digest, facts, faults, shard
from tests.reliability.kills import HANG_S, ROUNDS, Failed, Harness, Run, play
from tests.reliability.pipelines import Pipeline
from tests.reliability.programs import Program

EMAC_PLUS = (
    "run.num_rounds=1 run.bc_rounds=1 run.num_envs=1 run.num_eval=1 run.updates=1 run.batch_size=2 run.max_steps=2 "
    "planner.max_replans=1 planner.max_answer_tokens=8 planner.epochs=1 environment.num_train=12 "
    "environment.num_heldout=6 run.num_threads=1"
).split()
RESULTS = [
    *("results.experiments=[shipped]", "results.heldout_games=2", "results.valid_games=1", "results.jobs=1"),
    *("results.second_trial_games=1", "results.remembered_games=1"),
]


def require(true: object, text: str) -> None:
    """Failed with `text` unless `true`."""
    if not true:
        raise Failed(text)


def wait_for(condition: Callable[[], object], log: Path) -> None:
    """Wait until `condition()` holds; Failed with the end of `log` if it never does."""
    deadline = time.monotonic() + HANG_S
    while not condition():
        require(time.monotonic() < deadline, f"waited in vain\n{said(log)}")
        time.sleep(0.005)


def said(log: Path) -> str:
    return log.read_text(errors="replace")[-3000:] if log.is_file() else ""


def holder(lock: Path) -> int:
    """The process whose number a lock file holds; 0 without one."""
    text = lock.read_text().strip() if lock.is_file() else ""
    return int(text or 0)


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP for a process, and SIGCONT at the end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@dataclass
class Scene:
    """What a scenario is given: a folder of its own, and runs of all kinds with undisturbed ones to compare with."""

    harness: Harness
    folder: Path
    running: list[Program] = field(default_factory=list)

    def start(self, name: str, *arguments: object, log: str) -> Program:
        """A program with its output in `log`; it does not outlive the scenario."""
        # One thread: two on a busy machine wait for each other most of the time.
        program = Program(name, *arguments, log=self.folder / log, setup=partial(torch.set_num_threads, 1))
        self.running.append(program)
        return program

    def close(self) -> None:
        for program in self.running:
            program.kill()

    def refused(self, lock: Path, named: Path, *command: object) -> None:
        """Failed unless `command` is refused in one line that names the process that holds `lock`, and `named`."""
        pid = holder(lock)
        with stopped(pid):
            second = self.start(str(command[0]), *command[1:], log=f"second-{len(self.running)}.log")
            code = second.wait(HANG_S)
        text = said(second.log)
        last = text.splitlines()[-1] if text else ""
        fits = last.startswith("error: ") and f"process {pid} is writing to {named}" in last
        require(code == 2 and fits and "Traceback" not in text, f"the second ended with code {code}:\n{text}")
        self.harness.say(f"  {command[0]}: {last[:170]}")

    def same(self, run: Path, undisturbed: Path) -> None:
        wrong = faults(run, rounds=ROUNDS) + differences(facts(run), facts(undisturbed))
        require(not wrong, f"the first differs from an undisturbed one: {wrong}")


# --- the scenarios ----------------------------------------------------------------------------------------------------


def servers(scene: Scene) -> None:
    """A server plays; another one, and a pipeline, are started on its directory."""
    run = scene.harness.make("bc", "two-servers")
    try:
        for name in run.names:
            run.start(name)
        lock, announcement = run.path / "state/lock", run.path / "state/server.json"
        wait_for(announcement.is_file, run.folder / "server.log")
        port = announcement.read_text()
        cfg = ["--cfg-path", run.folder / "settings.yaml"]
        scene.refused(lock, run.path, "dagger_server.py", "--resume", run.path, "--options", "server.port=0")
        scene.refused(lock, run.path, "xrl_alignment.lab.pipeline", *cfg, "--resume", run.path)
        require(announcement.read_text() == port, "the first server's port is gone")
        play(run, iter(()))
    finally:
        run.close()
    scene.same(run.path, scene.harness.reference("bc")[0].path)


def pipelines(scene: Scene) -> None:
    """A pipeline runs its first phase; a second one has the same file of jobs, a third one resumes its directory."""
    undisturbed, disturbed = (Pipeline(scene.folder / name, scene.harness.data) for name in ("alone", "two"))
    undisturbed.play(iter(()))
    first = disturbed.start()
    scene.running.append(first)
    job = disturbed.folder / "job"
    wait_for(lambda: list(disturbed.folder.glob("bc/*/state/episodes.jsonl")), disturbed.log)
    (run,) = disturbed.folder.glob("bc/*")
    cfg = ["--cfg-path", *disturbed.phases]
    scene.refused(disturbed.folder / ".job.lock", job, "xrl_alignment.lab.pipeline", *cfg, "--remember", job)
    scene.refused(run / "state/pipeline.lock", run, "xrl_alignment.lab.pipeline", *cfg, "--resume", run)
    require(first.wait(HANG_S) == 0, said(disturbed.log))
    require(len(job.read_text().splitlines()) == 2, f"{job} names {job.read_text()}")
    for one, other in zip(disturbed.done(), undisturbed.done(), strict=True):
        scene.same(one, other)


@dataclass
class Decoupled(Run):
    """A run whose learner is a process of its own."""

    def settings(self) -> dict[str, dict]:
        settings = super().settings()
        settings["run"] |= {"learner": "decoupled"}
        return settings


def learns(pid: int) -> bool:
    """Whether a process is a learner that its server has started."""
    return pid > 0 and psutil.pid_exists(pid) and "xrl_alignment.dagger.decoupled" in psutil.Process(pid).cmdline()


def learners(scene: Scene) -> None:
    """A second learner is started for a run."""
    run = Decoupled(scene.harness.make("bc", "unused").kind, scene.folder / "decoupled", scene.harness.data, None)
    try:
        for name in run.names:
            run.start(name)
        lock = run.path / "state/learner.lock"
        # The server takes the lock for a moment before it starts its learner: the number may be the server's.
        wait_for(lambda: run.journal.is_file() and learns(holder(lock)), run.folder / "server.log")
        scene.refused(lock, run.path, "xrl_alignment.dagger.decoupled", run.path)
        play(run, iter(()))
    finally:
        run.close()
    wrong = faults(run.path, rounds=ROUNDS)
    require(not wrong, f"{wrong}\n{run.log()}")


def collects(scene: Scene) -> None:
    """Two collections into one folder."""
    command = ["--data", scene.harness.data, "--split", "household_train", "--seed", 1, "--keep-failed"]
    alone, out = scene.folder / "alone", scene.folder / "collected"
    require(
        scene.start("xrl_alignment.lab.collect", *command, "--out", alone, log="alone.log").wait(HANG_S) == 0, "alone"
    )
    first = scene.start("xrl_alignment.lab.collect", *command, "--out", out, log="first.log")
    wait_for(lambda: holder(out / ".lock"), first.log)
    scene.refused(out / ".lock", out, "xrl_alignment.lab.collect", *command, "--out", out)
    require(first.wait(HANG_S) == 0, said(first.log))
    shards, wanted = ({path.name: shard(path) for path in folder.glob("*.h5")} for folder in (out, alone))
    require(shards == wanted and len(shards) > 0, f"{sorted(shards)} instead of {sorted(wanted)}")


def trains(scene: Scene) -> None:
    """Two trainings in one output directory."""
    shards = scene.harness.reference("bc")[0].path / "state/buffer"

    def command(job: str) -> list[object]:
        longer = {"run.max_epoch": 2, "run.device": "cpu"}
        return ["--cfg-path", CONFIG, "--options", *run_options(shards, scene.folder, job, **longer)]

    require(scene.start("train.py", *command("alone"), log="alone.log").wait(HANG_S) == 0, "alone")
    first = scene.start("train.py", *command("two"), log="first.log")
    folder = scene.folder / "two"
    wait_for(lambda: holder(folder / ".lock"), first.log)
    scene.refused(folder / ".lock", folder, "train.py", *command("two"))
    require(first.wait(HANG_S) == 0, said(first.log))
    last = [checkpoint.load(scene.folder / job / "checkpoint_1.pth") for job in ("two", "alone")]
    require(digest(last[0]["model"]) == digest(last[1]["model"]), "the weights differ from those of one alone")


def results(scene: Scene) -> None:
    """Two calls of the experiments with one output."""
    out = scene.folder / "results"
    command = ["--cfg-path", REPO_ROOT / "configs/results/quick.yaml", "--options", f"results.output={out}", *RESULTS]
    first = scene.start("xrl_alignment.lab.results", *command, log="first.log")
    wait_for(lambda: holder(out / ".lock"), first.log)
    scene.refused(out / ".lock", out, "xrl_alignment.lab.results", *command)
    require(first.wait(HANG_S) == 0, said(first.log))
    require((out / "results.json").is_file(), said(first.log))


def loops(scene: Scene) -> None:
    """Two EMAC+ loops in one folder."""
    demo, out = REPO_ROOT / "configs/emac_plus/demo.yaml", scene.folder / "loop"
    options = ["--options", *EMAC_PLUS, f"environment.data={scene.folder / 'games'}", f"run.output_dir={out}"]
    first = scene.start("xrl_alignment.lab.pipeline", "--cfg-path", demo, *options, log="first.log")
    wait_for(lambda: holder(out / ".lock") and (out / "config.yaml").is_file(), first.log)
    scene.refused(out / ".lock", out, "xrl_alignment.lab.pipeline", "--cfg-path", demo, "--resume", out, *options)
    require(first.wait(HANG_S) == 0, said(first.log))
    require((out / "summary.json").is_file(), said(first.log))


SCENARIOS: dict[str, Callable[[Scene], None]] = {
    scenario.__name__: scenario for scenario in (servers, pipelines, learners, collects, trains, results, loops)
}


def went_well(name: str, harness: Harness) -> bool:
    """Play a scenario; False if it failed."""
    print(name, flush=True)
    began = time.monotonic()
    scene = Scene(harness, harness.folder / f"two-{name}")
    scene.folder.mkdir()
    try:
        SCENARIOS[name](scene)
    except Failed as failure:
        print(f"  FAILED: {failure}", flush=True)
        return False
    finally:
        scene.close()
    print(f"  {time.monotonic() - began:.0f} s", flush=True)
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    names = parser.parse_args(argv).names or list(SCENARIOS)
    with tempfile.TemporaryDirectory(prefix="emac-two-") as folder:
        harness = Harness(Path(folder))
        failed = [name for name in names if not went_well(name, harness)]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
