"""train.py as a program: a queue's SIGTERM, two local "nodes", errors on one line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from lavis.models import load_model
from lavis.models.hf_vlm import tiny
from tests import warm
from tests.ports import free_port
from xrl_alignment.runs.transitions import Transition, shard_name, write_shard

CONFIG = "lavis/projects/instructblip/finetuning/alfworld_ft.yaml"


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_shards(tmp_path_factory.mktemp("shards"))


def write_shards(folder: Path, rejected: str = "") -> Path:
    frame = np.zeros((112, 112, 3), np.uint8)
    items = [Transition(frame, f"{i}\n> ", "look", rejected, "look", "") for i in range(8)]
    write_shard(folder / shard_name(0, 0, 8), items, {"game": "look_at_obj_in_light-CD/t"})
    return folder


def command(*launcher: str, shards: Path, out: Path, **settings: object) -> list[str]:
    options = {"run.output_dir": out, "run.job_id": "a", "run.num_workers": 0, "run.log_freq": 1, "run.num_threads": 1}
    options |= {"datasets.alfworld_cap.build_info.annotations.train.storage": shards, "run.batch_size_train": 2}
    options = [f"{key}={value}" for key, value in {**options, **settings}.items()]
    return [*launcher, "train.py", "--cfg-path", CONFIG, "--options", *options]


def start(arguments: list[str], home: Path) -> warm.Program:
    more = {"HOME": str(home), "CUDA_VISIBLE_DEVICES": ""}
    return warm.Program(arguments, more=more, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def batches(out: Path) -> int:
    log = out / "a/log.txt"
    return sum("train_batches" in line for line in log.read_text().splitlines()) if log.is_file() else 0


def workers(launcher: warm.Program) -> list[int]:
    """The processes that a running `torch.distributed.run` started, in any of its threads."""
    lists = Path(f"/proc/{launcher.pid}/task").glob("*/children")
    return sorted(int(child) for text in lists for child in text.read_text().split())


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_sigterm_writes_a_checkpoint_and_ends_well(shards: Path, tmp_path: Path, processes: int) -> None:
    """Of two processes one is told, and both stop at the same batch; of one, its data workers are told first."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"] if processes == 2 else []
    settings = {"run.max_epoch": 10000, "run.num_workers": 2 if processes == 1 else 0}
    process = start(command(*launcher, shards=shards, out=tmp_path, **settings), tmp_path)
    deadline = time.monotonic() + 200
    while batches(tmp_path) < 2 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.2)
    for told in [workers(process)[-1]] if processes == 2 else [*workers(process), process.pid]:
        os.kill(told, signal.SIGTERM)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors
    path = tmp_path / "a/checkpoint_stopped.pth"
    assert f"resume with run.resume_ckpt_path={path}" in out
    assert path.is_file()


@pytest.mark.slow
def test_two_nodes(shards: Path, tmp_path: Path) -> None:
    port = free_port()
    launcher = ["-m", "torch.distributed.run", "--nnodes=2", "--nproc_per_node=1", "--rdzv_backend=c10d"]
    launcher += ["--rdzv_id=test", f"--rdzv_endpoint=127.0.0.1:{port}", "--local_addr=127.0.0.1"]
    arguments = command(*launcher, shards=shards, out=tmp_path, **{"run.max_epoch": 1, "run.world_size": 2})
    nodes = [start(arguments, tmp_path) for _ in range(2)]
    for node in nodes:
        _, errors = node.communicate(timeout=200)
        assert node.returncode == 0, errors[-2000:]
    config = json.loads((tmp_path / "a/log.txt").read_text().splitlines()[0])["config"]
    assert config["run"]["world_size"] == 2
    assert batches(tmp_path) == 2  # eight samples, two nodes, two samples each


def test_errors_are_one_line(shards: Path, tmp_path: Path) -> None:
    process = start(command(shards=tmp_path / "none", out=tmp_path), tmp_path)
    out, errors = process.communicate(timeout=200)
    assert process.returncode == 2
    assert errors.splitlines()[-1].startswith("error: no annotation file")


@pytest.mark.parametrize("objective", [pytest.param("bc", marks=pytest.mark.slow), "dpo"])
def test_a_model_of_the_hub_trains_on_stored_transitions(tmp_path: Path, objective: str) -> None:
    pytest.importorskip("peft")
    (tmp_path / "shards").mkdir()
    shards = write_shards(tmp_path / "shards", rejected="inventory")
    vlm = tiny.make("qwen2_5_vl", tmp_path / "vlm")
    settings = {"model.arch": "hf_vlm", "model.path": vlm, "model.lora_rank": 8, "model.images": 2, "run.max_epoch": 1}
    settings |= {"run.batch_size_eval": 2, "run.valid_splits": "[val]", "run.objective": objective}
    settings |= {"datasets.alfworld_cap.build_info.annotations.val.storage": shards}
    if objective == "dpo":
        load_model("hf_vlm", "default", options={"path": str(vlm), "lora_rank": 8}).save_adapter(tmp_path / "phase1")
        settings |= {"model.ref_pretrained": tmp_path / "phase1"}
    process = start(command(shards=shards, out=tmp_path, **settings), tmp_path)
    _, errors = process.communicate(timeout=200)
    assert process.returncode == 0, errors[-3000:]
    stored = torch.load(tmp_path / "a/checkpoint_best.pth", weights_only=True)["model"]
    assert stored and all(".lora_" in name for name in stored)
