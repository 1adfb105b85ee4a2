"""Checkpoints on a full disk, cut short, or of another kind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import torch

from lavis.runners import checkpoint

CONTENT = dict.fromkeys((*checkpoint.KEYS, *checkpoint.OWN_KEYS), 1)


def test_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint_0.pth"
    checkpoint.save(path, CONTENT)

    def full(content: object, file) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="checkpoint_0.pth could not be written .*No space left.* an older one"):
        checkpoint.save(path, CONTENT)
    assert checkpoint.load(path) == CONTENT
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint_0.pth"]


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    checkpoint.save(path, CONTENT)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(checkpoint.CheckpointError, match="a.pth cannot be read"):
        checkpoint.load(path)
    torch.save({"model": {}}, path)
    with pytest.raises(checkpoint.CheckpointError, match=r"lacks optimizer, scaler, config\. .*model.pretrained"):
        checkpoint.load(path)
    with pytest.raises(FileNotFoundError, match="run.resume_ckpt_path: no checkpoint"):
        checkpoint.load(tmp_path / "b.pth")


def test_newest(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    for age, name in enumerate(("stopped", "3", "best")):
        (tmp_path / f"checkpoint_{name}.pth").touch()
        os.utime(tmp_path / f"checkpoint_{name}.pth", (time.time(), 1e9 + age))
    assert checkpoint.newest(tmp_path).name == "checkpoint_3.pth"
