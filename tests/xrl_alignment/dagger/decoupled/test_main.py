"""Server, client and learner as three processes: the same end as inline, and what kills leave."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest
import torch
import yaml

from lavis.common.devices import set_seed
from lavis.datasets.shards import open_shard
from tests import warm
from tests.xrl_alignment.dagger.decoupled.stored import copy_stored, wait_until
from xrl_alignment.builders.student import load_student
from xrl_alignment.dagger.building import build_training
from xrl_alignment.dagger.decoupled.directory import LearnerDirectory
from xrl_alignment.dagger.decoupled.follower import Follower
from xrl_alignment.dagger.decoupled.process import LearnerProcess
from xrl_alignment.dagger.decoupled.published import read_published
from xrl_alignment.runs.checkpoint import load_checkpoint
from xrl_alignment.runs.directory import RunPaths
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig

SMALL = {
    "run": {
        "num_rounds": 2, "num_envs": 3, "batch_size": 2, "accum_grad_steps": 1, "train_iters_per_epoch": 2,
        "warmup_steps": 2, "init_lr": 1e-2, "max_steps": 4, "beta": [0.5, 0.0], "num_threads": 1, "device": "cpu",
    },
    "environment": {"split": "household_train"},
    "policy": {"num_beams": 1, "max_length": 8},
    "server": {"session_timeout_s": 600.0, "port": 0},
}  # fmt: skip


class Processes:
    """A server and a client of one run directory; `log` is what the server printed."""

    def __init__(self, folder: Path, data: Path, student: dict[str, object], **run: object) -> None:
        self.paths = RunPaths(folder / "run")
        self.log = folder / "server.log"
        settings = folder / "settings.yaml"
        settings.write_text(yaml.safe_dump(SMALL | {"run": SMALL["run"] | run, "model": student}))
        self.data = f"environment.data={data}"
        self.begin = ["--cfg-path", settings, "--run-dir", self.paths.path]
        self.started: list[warm.Program] = []

    def start(self, program: str, *arguments: object) -> warm.Program:
        with open(self.log, "a") as log:
            self.started.append(warm.Program([program, *arguments], stdout=log, stderr=subprocess.STDOUT))
        return self.started[-1]

    def serve(self, *arguments: object) -> warm.Program:
        return self.start("dagger_server.py", *(arguments or self.begin), "--options", self.data)

    def play(self, server: warm.Program, workers: int = 1) -> warm.Program:
        announced = self.paths.state / "server.json"
        wait_until(lambda: announced.exists() and json.loads(announced.read_text())["pid"] == server.pid)
        games = ["--split", "household_train", "--data", self.data.partition("=")[2], "--num-envs", 3]
        port = json.loads(announced.read_text())["port"]
        return self.start("alfworld_client.py", "--port", port, "--max-steps", 4, "--num-workers", workers, *games)

    def journal(self) -> list[dict]:
        return [json.loads(line) for line in self.paths.journal.read_text().splitlines()]

    def learner(self) -> int:
        """The learner's process id, once it follows the journal."""
        lock = self.paths.state / "learner.lock"
        wait_until(lambda: lock.exists() and lock.read_text().strip() and self.paths.learned.exists())
        return int(lock.read_text())


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


@pytest.fixture
def processes(tmp_path, household_data, students):
    made: list[Processes] = []

    def make(name: str, student: str = "own", **run: object) -> Processes:
        (tmp_path / name).mkdir()
        made.append(Processes(tmp_path / name, household_data, students(student), **run))
        return made[-1]

    yield make
    for process in (process for one in made for process in one.started):
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.parametrize("student", ["own", "hub"])
def test_its_process_learns_what_a_run_has_stored(finished_run, make_run, scripted, students, tmp_path, student):
    """The program itself, with the settings of `conftest.make_learner`: the weights of the inline learner."""
    inline_run = finished_run
    if student == "hub":
        inline_run = make_run("inline", student=students("hub"), policy=scripted("look", "inventory"), max_steps=3)
        inline_run.play()
    stored = copy_stored(inline_run.directory, tmp_path / "run")
    run = SMALL["run"] | {"num_envs": 2, "train_iters_per_epoch": 1, "init_lr": 1e-3, "learner": "decoupled"}
    stored.learner_settings.write_text(yaml.safe_dump({"run": run, "model": students(student)}))
    process = LearnerProcess(stored.path)
    process.start()
    wait_until(lambda: process.check(0) or process.finished)
    process.stop()
    for round in range(2):
        inline, beside = (load_checkpoint(p.checkpoint(round))["model"] for p in (inline_run.directory, stored))
        assert all(torch.equal(beside[name], value) for name, value in inline.items())
    assert read_published(stored.published)[0] == (4, 4)


@pytest.mark.slow
def test_with_no_staleness_allowed_a_run_equals_an_inline_one(processes):
    runs = [processes("inline"), processes("decoupled", learner="decoupled", max_staleness=0)]
    for run in runs:
        server = run.serve()
        assert run.play(server).wait(200) == 0 and server.wait(100) == 0, run.log.read_text()
    journals = [[{key: value for key, value in line.items() if key != "seconds"} for line in r.journal()] for r in runs]
    assert journals[0] == journals[1] and len(journals[0]) == 6
    for round in range(2):
        inline, decoupled = (load_checkpoint(run.paths.checkpoint(round))["model"] for run in runs)
        assert all(torch.equal(inline[name], decoupled[name]) for name in inline)
    worlds = [(run.paths.results / "world.log").read_text() for run in runs]
    assert "STALENESS: 0.0 updates on average, at most 0 (run.max_staleness=0)" in worlds[1]
    assert "STALENESS" not in worlds[0]
    shards = [open_shard(run.paths.buffer / run.journal()[0]["shard"]) for run in runs]
    assert "staleness" not in shards[0] and shards[1].read(0, ("staleness",))["staleness"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("student", ["own", "hub"])
def test_a_killed_learner_and_a_killed_server_lose_and_repeat_nothing(processes, tmp_path, student):
    run = processes("killed", student, learner="decoupled", num_rounds=3, state_interval_s=1e6)
    server = run.serve()
    client = run.play(server, workers=2)
    wait_until(lambda: run.paths.published.exists() and run.paths.journal.exists())
    first = run.learner()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: "the learner was killed by SIGKILL" in run.log.read_text())
    wait_until(lambda: run.learner() != first or (run.paths.path / "DONE").exists())
    second = run.learner()
    server.kill()
    server.wait()
    wait_until(lambda: gone(second), 30)
    again = run.serve("--resume", run.paths.path)
    client.kill()
    if not (run.paths.path / "DONE").exists():
        run.play(again, workers=2)
    assert again.wait(200) == 0, run.log.read_text()
    played = [(line["round"], line["env"]) for line in run.journal()]
    assert sorted(played) == [(round, env) for round in range(3) for env in range(3)]
    assert load_checkpoint(run.paths.trainer)["training_step"] == 9 * 2
    replayed = replay(run, tmp_path / "replayed")
    for round in range(3):
        ends = [load_checkpoint(paths.checkpoint(round))["model"] for paths in (run.paths, replayed)]
        assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def replay(run: Processes, path: Path) -> RunPaths:
    """Learn from the journal of `run` without any interruption, in this process."""
    copy_stored(run.paths, path, "learner.yaml")
    directory = LearnerDirectory(path)
    config = load_config(DaggerConfig, directory.learner_settings, [])
    set_seed(config.run.seed)
    model, vis_processor = load_student(config.model, torch.device("cpu"))
    Follower(build_training(config, directory, model, vis_processor), directory, num_rounds=3).run()
    directory.close()
    return directory
