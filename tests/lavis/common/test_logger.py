"""What a run writes about itself: means, lines, curves."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lavis.common.logger import Averages, MetricLogger, RunLog, SmoothedValue


def test_means_survive_a_resume() -> None:
    averages = Averages()
    for loss in (1.0, 5.0, 6.0):
        averages.update(loss=loss)
    averages.update(lr=0.5, weight=3.0)  # once the name of an argument: such a figure was lost
    again = Averages()
    again.restore(json.loads(json.dumps(averages.state())))
    again.update(loss=4.0)
    assert averages.means() == {"loss": 4.0, "lr": 0.5, "weight": 3.0} and again.means()["loss"] == 4.0
    averages.update(loss=100.0)
    assert again.means()["loss"] == 4.0  # a copy


def test_lines_and_curves(tmp_path: Path) -> None:
    log = RunLog(tmp_path)
    log.close()
    assert list(tmp_path.iterdir()) == []  # nothing was said
    log.line(epoch=1, text="ä")
    log.line(epoch=2)
    log.curves("val", 7, {"loss": 0.5, "text": "no number", "per_task_type": {}})
    log.close()
    assert [json.loads(line) for line in (tmp_path / "log.txt").read_text().splitlines()] == [
        {"epoch": 1, "text": "ä"},
        {"epoch": 2},
    ]
    curves = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert curves.Tags()["scalars"] == ["val/loss"]
    assert [(point.step, point.value) for point in curves.Scalars("val/loss")] == [(7, 0.5)]


@pytest.mark.slow
def test_wandb_gets_the_same_curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real package, which writes what it would send to a file."""
    wandb = pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    log = RunLog(tmp_path / "finetune-seed3", wandb_project="emac", config={"run": {"init_lr": 0.125}})
    log.curves("train", 50, {"loss": 0.5, "text": "no number"})
    log.close()
    wandb.teardown()  # as at a program's end: only then is its service's file whole
    (written,) = tmp_path.glob("finetune-seed3/wandb/offline-run-*-finetune-seed3/run-finetune-seed3.wandb")
    content = written.read_bytes()
    for expected in (b"train/loss", b"init_lr", b"0.125"):
        assert expected in content
    assert b"no number" not in content


@pytest.mark.slow
def test_wandb_without_a_key_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("HOME", str(tmp_path))  # no .netrc
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    with pytest.raises(ValueError, match=r"run.wandb_project: .*; WANDB_MODE=offline writes a file instead"):
        RunLog(tmp_path / "run", wandb_project="emac").line(epoch=0)


def test_a_smoothed_value_is_lavis() -> None:
    series = SmoothedValue(window_size=4)
    for value in (9.0, 1.0, 2.0, 3.0, 6.0):
        series.update(value)
    assert (series.median, series.avg, series.max, series.value) == (2.0, 3.0, 6.0, 6.0)
    assert (series.global_avg, str(series)) == (4.2, "2.0000 (4.2000)")
    series.update(0.0, n=2)  # a value that stands for two
    assert series.global_avg == 3.0 and str(SmoothedValue(fmt="{value:.1f} {max:.1f} {avg:.1f}")) == "nan nan nan"
    assert math.isnan(SmoothedValue().global_avg)


def test_meters_by_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    meters = MetricLogger(delimiter="  ")
    meters.add_meter("lr", SmoothedValue(window_size=1, fmt="{value:.6f}"))
    for number in meters.log_every(range(5), 2, header="Train"):
        meters.update(loss=torch.tensor(float(number)), lr=0.5)
    assert meters.loss.global_avg == 2.0 and meters.meters["lr"].value == 0.5
    meters.synchronize_between_processes()
    assert meters.global_avg() == "lr: 0.5000  loss: 2.0000" and str(meters).startswith("lr: 0.500000  loss: ")
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split("  ")[1] for line in lines] == ["[0/5]", "[2/5]", "[4/5]"] and "loss: " in lines[0]
    with pytest.raises(AttributeError, match="'MetricLogger' object has no attribute 'accuracy'"):
        meters.accuracy  # noqa: B018
