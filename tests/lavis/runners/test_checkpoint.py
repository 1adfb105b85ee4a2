"""Checkpoints on a full disk, cut short, or of another kind."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lavis.runners import checkpoint

CONTENT = dict.fromkeys((*checkpoint.KEYS, *checkpoint.OWN_KEYS), 1)


@contextmanager
def disk_for(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: as on a full disk, the system refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint_0.pth"
    checkpoint.save(path, CONTENT)
    with (
        disk_for(100_000),
        pytest.raises(OSError, match="checkpoint_0.pth could not be written: .* an older one"),
    ):
        checkpoint.save(path, {**CONTENT, "model": {"weight": torch.ones(100_000)}})
    assert checkpoint.load(path) == CONTENT
    assert [entry.name for entry in tmp_path.iterdir()] == ["checkpoint_0.pth"]


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    checkpoint.save(path, CONTENT)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(checkpoint.RunCheckpointError, match="a.pth cannot be read"):
        checkpoint.load(path)
    torch.save({"model": {}}, path)
    with pytest.raises(checkpoint.RunCheckpointError, match=r"lacks optimizer, scaler, config\. .*model.pretrained"):
        checkpoint.load(path)
    with pytest.raises(FileNotFoundError, match="run.resume_ckpt_path: no checkpoint"):
        checkpoint.load(tmp_path / "b.pth")


def test_newest(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    for age, name in enumerate(("stopped", "3", "best")):
        (tmp_path / f"checkpoint_{name}.pth").touch()
        os.utime(tmp_path / f"checkpoint_{name}.pth", (time.time(), 1e9 + age))
    assert checkpoint.newest(tmp_path).name == "checkpoint_3.pth"
