"""Small stored data for the tests of datasets, tasks and runners, and runs on it."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import lavis
from lavis.datasets import annotations
from lavis.runners.launch import build_runner
from lavis.runners.runner_base import RunnerBase
from xrl_alignment.runs.transitions import Transition, shard_name, write_shard

GAME = "pick_heat_then_place_in_recep-Apple-None-Fridge-{}/trial_T1"
CONFIG = Path(lavis.__file__).parent / "projects/instructblip/finetuning/alfworld_ft.yaml"
COMMANDS = ("go to fridge 1", "open fridge 1", "take apple 1 from fridge 1", "heat apple 1 with microwave 1")


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr(annotations, "cache_folder", lambda: folder)


def transition(number: int) -> Transition:
    """A transition whose image and prompt tell its number."""
    image = np.full((112, 112, 3), number, np.uint8)
    label, rejected = COMMANDS[number % 4], COMMANDS[(number + 1) % 4]
    return Transition(image, f"Task {number % 4}.\n> ", label, rejected, label, "Nothing happens.")


@pytest.fixture(scope="session")
def shard_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards of four, three and four transitions, numbered 0 to 10."""
    folder = tmp_path_factory.mktemp("shards")
    number = 0
    for env, steps in enumerate((4, 3, 4)):
        items = [transition(number + i) for i in range(steps)]
        write_shard(folder / shard_name(0, env, steps), items, {"game": GAME.format(env)})
        number += steps
    return folder


@pytest.fixture
def annotation_folder(tmp_path: Path) -> Path:
    """`annotations.json` of five entries and their images, with the published data's `./` before the paths."""
    entries = []
    for number in range(5):
        item = transition(number)
        Image.fromarray(item.image).save(tmp_path / f"{number}.png")
        texts = {"text_input": item.text_input, "text_output": item.text_output}
        entries.append({"image": f"./{number}.png", **texts, "game": GAME.format(number)})
    (tmp_path / "annotations.json").write_text(json.dumps(entries))
    return tmp_path


def run_options(shards: Path, out: Path, job: str, **settings: object) -> list[str]:
    """Options of a short run in float32: two epochs of two updates of five samples, on eleven stored transitions."""
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
