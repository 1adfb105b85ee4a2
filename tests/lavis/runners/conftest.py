"""Runs of the tiny model on eleven stored transitions."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

import lavis
from lavis.runners.launch import build_runner
from lavis.runners.runner_base import RunnerBase

CONFIG = Path(lavis.__file__).parent / "projects/instructblip/finetuning/alfworld_ft.yaml"


def run_options(shards: Path, out: Path, job: str, **settings: object) -> list[str]:
    """Options of a short run in float32: two epochs of two updates of five samples."""
    storage = "datasets.alfworld_cap.build_info.annotations"
    options = {"run.job_id": job, "run.output_dir": out, "run.batch_size_train": 5, "run.max_epoch": 2}
    options |= {"run.num_workers": 0, "run.log_freq": 1, "run.amp": False, "run.warmup_steps": 0, "run.max_len": 6}
    options |= {f"{storage}.train.storage": shards, f"{storage}.val.storage": shards, "model.freeze_vit": True}
    options["model.allow_random"] = ["visual_encoder", "ln_vision"]
    return [f"{key}={value}" for key, value in {**options, **settings}.items()]


@pytest.fixture
def make_runner(shard_folder: Path, tmp_path: Path) -> Callable[..., RunnerBase]:
    """`make_runner("job", **{"run.key": value})`."""

    def make(job: str, **settings: object) -> RunnerBase:
        options = run_options(shard_folder, tmp_path, job, **settings)
        return build_runner(Namespace(cfg_path=str(CONFIG), options=options))

    return make
