"""Runs that are counted in batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lavis.checkpoints import CheckpointError
from lavis.common.errors import ConfigError


def test_inner_epochs(make_runner, tmp_path: Path) -> None:
    settings = {"run.runner": "runner_iter", "run.max_iters": 6, "run.iters_per_inner_epoch": 3}
    runner = make_runner("iter", **settings)
    runner.train()
    assert runner.batches == 6
    names = sorted(path.name for path in (tmp_path / "iter").glob("*.pth"))
    assert names == ["checkpoint_3.pth", "checkpoint_6.pth"]
    assert torch.load(tmp_path / "iter/checkpoint_3.pth", weights_only=True)["batches"] == 3


def test_the_last_inner_epoch_may_be_short_and_is_resumed(make_runner, tmp_path: Path) -> None:
    settings = {"run.runner": "runner_iter", "run.max_iters": 5, "run.iters_per_inner_epoch": 2}
    runner = make_runner("odd", **settings)
    runner.train()
    assert runner.batches == 5
    names = sorted(path.name for path in (tmp_path / "odd").glob("*.pth"))
    assert names == ["checkpoint_2.pth", "checkpoint_4.pth", "checkpoint_5.pth"]

    resumed = make_runner("again", **settings, **{"run.resume_ckpt_path": tmp_path / "odd/checkpoint_4.pth"})
    resumed.train()
    assert [path.name for path in (tmp_path / "again").glob("*.pth")] == ["checkpoint_5.pth"]
    whole, again = (
        torch.load(tmp_path / job / "checkpoint_5.pth", weights_only=True)["model"] for job in ("odd", "again")
    )
    assert all(torch.equal(whole[name], again[name]) for name in whole)

    ended = make_runner("ended", **settings, **{"run.resume_ckpt_path": tmp_path / "odd/checkpoint_5.pth"})
    ended.train()  # nothing is left to do
    assert ended.batches == 5 and not list((tmp_path / "ended").glob("*.pth"))


def test_a_longer_run_goes_on_in_what_was_its_last_and_shorter_inner_epoch(make_runner, tmp_path: Path) -> None:
    """It had ended at once, with 5 batches, as if it had 6."""
    settings = {"run.runner": "runner_iter", "run.iters_per_inner_epoch": 4}
    make_runner("short", **settings, **{"run.max_iters": 5}).train()
    resumed = {"run.resume_ckpt_path": tmp_path / "short/checkpoint_5.pth"}
    longer = make_runner("longer", **settings, **resumed, **{"run.max_iters": 6})
    longer.train()
    assert longer.batches == 6 and (tmp_path / "longer" / "checkpoint_6.pth").is_file()
    with pytest.raises(ConfigError, match="has 5 batches already, this run is to have 4"):
        make_runner("less", **settings, **resumed, **{"run.max_iters": 4}).train()


def test_a_resume_on_other_data_is_refused(make_runner, annotation_folder: Path, tmp_path: Path) -> None:
    """Its batches are a place in a permutation of the first data."""
    settings = {"run.runner": "runner_iter", "run.max_iters": 4, "run.iters_per_inner_epoch": 2}
    make_runner("a", **{**settings, "run.max_iters": 2}).train()
    resumed = {"run.resume_ckpt_path": tmp_path / "a/checkpoint_2.pth"}
    resumed["datasets.alfworld_cap.build_info.annotations.train.storage"] = annotation_folder / "annotations.json"
    with pytest.raises(CheckpointError, match="has batches_of_data 2, this run 1: resume with the same training data"):
        make_runner("b", **settings, **resumed).train()


def test_a_run_needs_its_two_counts(make_runner) -> None:
    with pytest.raises(ValueError, match="runner_iter needs run.max_iters"):
        make_runner("none", **{"run.runner": "runner_iter"})
    with pytest.raises(ConfigError, match="run.max_iters: 6 has no effect unless run.runner=runner_iter"):
        make_runner("none", **{"run.max_iters": 6})


def test_a_warm_up_that_the_first_inner_epoch_cuts_is_told(make_runner, capsys) -> None:
    settings = {"run.runner": "runner_iter", "run.max_iters": 4, "run.iters_per_inner_epoch": 2}
    make_runner("cut", **settings, **{"run.warmup_steps": 3}).train()
    assert "run.warmup_steps=3: the warm-up is cut at batch 2" in capsys.readouterr().err
