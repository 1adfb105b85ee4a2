"""The learner as a group of two real processes (Gloo): the run of one, and what becomes of it when one is killed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch
import yaml
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from lavis.common.errors import ConfigError
from tests.xrl_alignment.dagger.decoupled.stored import copy_stored, wait_until
from xrl_alignment.dagger.decoupled import group
from xrl_alignment.dagger.decoupled.process import LearnerProcess
from xrl_alignment.dagger.decoupled.published import read_published
from xrl_alignment.runs.checkpoint import load_checkpoint
from xrl_alignment.runs.directory import RunPaths
from xrl_alignment.settings.loading import load_config
from xrl_alignment.settings.schema import DaggerConfig

RUN = {
    "num_rounds": 2, "num_envs": 2, "batch_size": 2, "accum_grad_steps": 1, "train_iters_per_epoch": 1,
    "warmup_steps": 2, "init_lr": 1e-3, "num_threads": 1, "device": "cpu", "learner": "decoupled",
    "state_interval_s": 0.0, "learner_processes": 2,
}  # fmt: skip


@pytest.fixture
def paths(finished_run, tmp_path):
    """The journal and shards of a finished run, for a learner of its own."""
    paths = copy_stored(finished_run.directory, tmp_path / "run")
    paths.learner_settings.write_text(yaml.safe_dump({"run": RUN}))
    return paths


def members(process: LearnerProcess) -> list[int]:
    """The processes of the group, by their launcher."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            command = (entry / "cmdline").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent == process._process.pid and b"xrl_alignment.learner" in command:
            found.append(int(entry.name))
    return found


@pytest.fixture
def process(paths):
    process = LearnerProcess(paths.path)
    yield process
    process.stop()


@pytest.mark.parametrize(
    ("first", "then", "killed"),
    [(-signal.SIGSEGV, 1, True), (130, -signal.SIGTERM, True), (1, -signal.SIGABRT, False), (1, -signal.SIGKILL, True)],
)
def test_a_signal_to_one_process_is_a_kill_of_the_group(first, then, killed, monkeypatch, tmp_path):
    """Every signal but SIGKILL was a fault, for which the run ended; a single learner is started again."""
    failures = {
        rank: ProcessFailure(local_rank=rank, pid=rank, exitcode=int(code), error_file="")
        for rank, code in enumerate((first, then))
    }
    for rank, failure in failures.items():
        failure.timestamp = 100 + rank

    def launcher(*_):
        raise ChildFailedError("learner", failures)

    monkeypatch.setattr(group, "elastic_launch", lambda *_: launcher)
    told = []
    monkeypatch.setattr(group.os, "kill", lambda *sent: told.append(sent))
    assert group.launch(2, tmp_path) == 1
    assert told == ([(os.getpid(), signal.SIGKILL)] if killed else [])


@pytest.mark.slow
@pytest.mark.parametrize("fsdp", [False, True])
def test_a_group_learns_as_one_process_also_after_a_kill(process, paths, finished_run, fsdp):
    """bf16 on both sides, so the tolerance is wider than that of `dagger/test_learner.py`, which is float32's."""
    paths.learner_settings.write_text(yaml.safe_dump({"run": {**RUN, "learner_fsdp": fsdp}}))
    process.start()
    wait_until(lambda: len(members(process)) == 2 and paths.published.exists())
    os.kill(members(process)[-1], signal.SIGKILL)
    news: list[str] = []
    wait_until(lambda: news.append(process.check(0)) or process.finished)
    assert any("was killed by SIGKILL" in text for text in news)
    assert read_published(paths.published)[0] == (4, 4)
    for round in range(2):
        inline, group = (load_checkpoint(p.checkpoint(round)) for p in (finished_run.directory, paths))
        assert group["training_step"] == inline["training_step"] and group["episodes"] == inline["episodes"]
        for name, value in inline["model"].items():
            torch.testing.assert_close(group["model"][name], value, rtol=0, atol=4e-3)  # four steps of at most 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_its_launcher(tmp_path, how):
    """Also not one that the launcher has only just started."""
    (tmp_path / "state").mkdir()
    RunPaths(tmp_path).learner_settings.write_text(yaml.safe_dump({"run": RUN}))
    process = LearnerProcess(tmp_path)
    process.start()
    wait_until(lambda: len(members(process)) == 2)
    group = members(process)
    process._process.send_signal(how)
    process._process.wait(60)
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in group), 120)
    process.stop()


def test_a_group_needs_a_batch_and_a_device_for_each_process():
    decoupled = ["run.learner=decoupled", "run.device=cpu"]
    for options, reason in [
        (["run.learner_processes=2"], "run.learner_processes: 2 has no effect unless run.learner=decoupled"),
        ([*decoupled, "run.learner_fsdp=True"], "learner_fsdp: True has no effect unless run.learner=decoupled and"),
        (["run.learner_fsdp=True"], "run.learner_fsdp: True has no effect unless .* run.learner_processes above 1"),
        ([*decoupled, "run.learner_processes=3", "run.batch_size=2"], r"3 is not at most run.batch_size \(2\)"),
        ([*decoupled, "run.learner_processes=2", "run.learner_device=cuda:1"], "2 is not 1 with one device"),
    ]:
        with pytest.raises(ConfigError, match=reason):
            load_config(DaggerConfig, None, options)
