"""Checkpoints that are cut short or of another kind, and which of a folder's is the newest."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from lavis.checkpoints import CheckpointError, write
from lavis.common.errors import ConfigError
from lavis.runners import checkpoint

CONTENT = {name: None if name == "scaler" else kind() for name, kind in checkpoint.TYPES.items()}  # type: ignore[operator]


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    write(path, CONTENT)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="a.pth cannot be read"):
        checkpoint.load(path)
    torch.save({"model": {}}, path)
    with pytest.raises(CheckpointError, match=r"lacks optimizer, scaler, config\. .*model.pretrained"):
        checkpoint.load(path)
    with pytest.raises(FileNotFoundError, match="run.resume_ckpt_path: no checkpoint"):
        checkpoint.load(tmp_path / "b.pth")


@pytest.mark.parametrize("name", checkpoint.TYPES)
def test_a_value_of_another_type_is_told_in_a_line(tmp_path: Path, name: str) -> None:
    torch.save({**CONTENT, name: 1.5}, tmp_path / "a.pth")
    with pytest.raises(CheckpointError, match=f"a.pth is damaged: {name} is float"):
        checkpoint.load(tmp_path / "a.pth")


def test_the_newest_is_the_one_with_the_most_batches(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    names = ("10", "stopped", "9", "best")  # in the order of their times, as `cp -r` may give them
    for name, batches in zip(names, (40, 38, 36, 99), strict=True):
        write(tmp_path / f"checkpoint_{name}.pth", {**CONTENT, "batches": batches})
    for age, name in enumerate(names):
        os.utime(tmp_path / f"checkpoint_{name}.pth", (time.time(), 1e9 + age))
    assert checkpoint.newest(tmp_path).name == "checkpoint_10.pth"
    for batches, newest in ((40, "10"), (41, "stopped")):
        write(tmp_path / "checkpoint_stopped.pth", {**CONTENT, "batches": batches})
        assert checkpoint.newest(tmp_path).name == f"checkpoint_{newest}.pth"
    (tmp_path / "checkpoint_10.pth").unlink()
    assert checkpoint.newest(tmp_path).name == "checkpoint_stopped.pth"


def test_the_best_weights_of_a_folder_are_those_that_lie_there(tmp_path: Path, monkeypatch, caplog) -> None:
    """A run that went on from an older checkpoint tested its last weights as the best."""
    best, later = {"agg_metrics": 0.9, "epoch": 1}, {"agg_metrics": 0.95, "epoch": 3}
    (tmp_path / "checkpoint_best.pth").touch()
    monkeypatch.setattr(checkpoint, "load", lambda path, mmap: {"best": later})
    assert checkpoint.bring_best(dict(later), tmp_path, tmp_path, write=True) == later
    assert checkpoint.bring_best(dict(best), tmp_path, tmp_path, write=True) == checkpoint.NOTHING_VALIDATED
    assert "lacks the best weights so far, those of epoch 1" in caplog.text


def test_of_equal_figures_the_lower_loss_is_the_better_one() -> None:
    first = checkpoint.best_of({"agg_metrics": 0.0, "loss": 3.0, "bleu": 1.0}, 0)
    assert first == {"agg_metrics": 0.0, "loss": 3.0, "epoch": 0}
    assert checkpoint.is_better({"agg_metrics": 0.0, "loss": 2.0}, first)
    assert not checkpoint.is_better({"agg_metrics": 0.0, "loss": 3.0}, first)
    assert not checkpoint.is_better({"agg_metrics": -1.0, "loss": 0.1}, first)
    # A task of somebody's own may give no loss; then, as in LAVIS, the first one stays.
    assert checkpoint.is_better({"agg_metrics": 0.0}, checkpoint.NOTHING_VALIDATED)
    assert not checkpoint.is_better({"agg_metrics": 0.0}, checkpoint.best_of({"agg_metrics": 0.0}, 1))


def test_a_copy_that_a_requeued_job_has_made_anew_is_the_same_data(caplog) -> None:
    """Else a job that the queue stops while the test splits are evaluated would end with an error when it goes on."""

    def differ(before: str, now: str) -> None:
        configs = [{"datasets": {"storage": storage}} for storage in (before, now)]
        checkpoint.compare_settings({"config": configs[0]}, configs[1], Path("c.pth"), left=0)

    differ("/scratch/7/emac-data-7.Xy1/train", "/scratch/8/emac-data-8.Ab2/train")
    assert not caplog.text
    with pytest.raises(ConfigError, match="with other settings"):
        differ("/scratch/7/emac-data-7.Xy1/train", "/scratch/8/emac-data-8.Ab2/other")


def test_other_starting_weights_are_another_experiment_and_a_moved_folder_is_not(caplog) -> None:
    def differ(before: dict, now: dict, left: int) -> None:
        checkpoint.compare_settings({"config": {"model": before}}, {"model": now}, Path("c.pth"), left=left)

    differ({"pretrained": "/a/run_1/best.pth"}, {"pretrained": "/b/run_1/best.pth"}, 0)
    assert not caplog.text
    with pytest.raises(ConfigError, match="is of a run that has ended, with other settings .model.pretrained /a/run_1"):
        differ({"pretrained": "/a/run_1/best.pth"}, {"pretrained": "/a/run_2/best.pth"}, 0)
    differ({"ref_pretrained": "run_1/best.pth"}, {"ref_pretrained": "run_2/best.pth"}, 1)
    assert "is of a run with other settings: model.ref_pretrained run_1/best.pth → run_2/best.pth" in caplog.text
