"""From settings to a runner: what is refused before a model is built."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from lavis.common.errors import ConfigError, EmacError
from lavis.runners.runner_base import RunnerBase
from lavis.tasks.base_task import BaseTask


def test_several_processes_are_refused_if_the_settings_ask_for_one(
    make_runner: Callable[..., RunnerBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="run.distributed=False, but 2 processes were started"):
        make_runner("alone", **{"run.distributed": False})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"run.lr_sched": "cosin"}, "cosin"),
        ({"run.runner": "runner_itr"}, "did you mean 'runner_iter'"),
        ({"run.resume_ckpt_path": "elsewhere.pth"}, "run.resume_ckpt_path: no checkpoint at elsewhere.pth"),
        ({"run.wandb_project": "emac"}, "run.wandb_project needs the extra 'wandb'"),
    ],
)
def test_what_no_run_could_use_is_told_before_data_and_weights_are_read(
    make_runner: Callable[..., RunnerBase], monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], message: str
) -> None:
    def build(*_: object) -> None:
        raise AssertionError("data and model were not to be built")

    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr(BaseTask, "build_datasets", build)
    monkeypatch.setattr(BaseTask, "build_model", build)
    with pytest.raises(EmacError, match=message):
        make_runner("early", **settings)
    for usable in ({}, {"run.resume_ckpt_path": "null"}, {"run.resume_ckpt_path": "latest"}):
        with pytest.raises(AssertionError, match="data and model were not to be built"):
            make_runner("early", **usable)
