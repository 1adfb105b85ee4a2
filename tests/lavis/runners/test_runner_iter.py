"""Runs that are counted in batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def test_inner_epochs(make_runner, tmp_path: Path) -> None:
    settings = {"run.runner": "runner_iter", "run.max_iters": 6, "run.iters_per_inner_epoch": 3}
    runner = make_runner("iter", **settings)
    runner.train()
    assert runner.batches == 6
    names = sorted(path.name for path in (tmp_path / "iter").glob("*.pth"))
    assert names == ["checkpoint_3.pth", "checkpoint_6.pth"]
    assert torch.load(tmp_path / "iter/checkpoint_3.pth", weights_only=True)["batches"] == 3


def test_what_does_not_divide(make_runner) -> None:
    with pytest.raises(ValueError, match=r"run.max_iters \(5\) is not a multiple"):
        make_runner("odd", **{"run.runner": "runner_iter", "run.max_iters": 5, "run.iters_per_inner_epoch": 2})
    with pytest.raises(ValueError, match="runner_iter needs run.max_iters"):
        make_runner("none", **{"run.runner": "runner_iter"})
