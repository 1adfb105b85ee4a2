"""Writing a checkpoint never harms the older one: not on a full disk, and not with numbers that are of no use."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lavis.checkpoints import CheckpointError, check_types, read, write

CONTENT = {"model": {"weight": torch.ones(3)}, "optimizer": None, "base_hash": "0", "config": {}}


@contextmanager
def disk_for(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: as on a full disk, the system refuses to write on."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write(tmp_path / "checkpoint_0.pth", CONTENT)
    return tmp_path / "checkpoint_0.pth"


def test_full_disk_leaves_the_old_file(path: Path) -> None:
    before = path.read_bytes()
    with disk_for(100_000), pytest.raises(OSError, match="checkpoint_0.pth could not be written: .* an older one"):
        write(path, {**CONTENT, "model": {"weight": torch.ones(100_000)}})
    assert path.read_bytes() == before and list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("model", {"good": torch.ones(2), "bad": torch.tensor([1.0, float("nan")])}, "bad"),
        ("optimizer", {"state": {0: {"step": torch.tensor(1.0), "exp_avg": torch.tensor([float("inf")])}}}, "the opt"),
    ],
)
def test_what_is_not_finite_is_named_and_not_written(path: Path, key: str, value: dict, named: str) -> None:
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match=f"checkpoint_0.pth was not written: {named}.* the older is kept"):
        write(path, {**CONTENT, key: value})
    assert path.read_bytes() == before


def test_a_mask_may_hold_infinities_and_no_other_number(path: Path) -> None:
    masked = {**CONTENT, "model": {"mask": torch.full((2, 2), -torch.inf).triu(1)}}
    with pytest.raises(CheckpointError, match="mask holds values that are not finite"):
        write(path, masked)
    write(path, masked, buffers=["mask"])
    assert read(path)["model"]["mask"][0, 1] == -torch.inf
    with pytest.raises(CheckpointError, match="mask holds values that are not finite"):
        write(path, {**CONTENT, "model": {"mask": torch.tensor([torch.nan])}}, buffers=["mask"])


def test_a_missing_file_is_told_with_the_setting_that_named_it(path: Path) -> None:
    assert read(path)["model"]["weight"].equal(torch.ones(3))
    with pytest.raises(FileNotFoundError, match=rf", which is a folder; the newest in it is {path}$"):
        read(path.parent)
    with pytest.raises(FileNotFoundError, match=r"^run.resume_ckpt_path: no checkpoint at .*x.pth"):
        read(path.with_name("x.pth"), setting="run.resume_ckpt_path")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({"model": {}}, "epoch is missing, not int"),
        ({"model": {}, "epoch": "1"}, "epoch is str, not int"),
        ({"model": {}, "epoch": 1, "scaler": 0}, r"scaler is int, not dict \| None"),
        ({"model": {}, "epoch": 1, "round": None}, "round is NoneType, not int"),
        ({"model": {"a": 1}, "epoch": 1}, "weight a is int"),
    ],
)
def test_a_value_of_another_type_is_named(content: dict, reason: str) -> None:
    required = {"model": dict, "epoch": int}
    if "scaler" in content:
        required["scaler"] = dict | None  # type: ignore[assignment]
    with pytest.raises(CheckpointError, match=f"x.pth is damaged: {reason}"):
        check_types(content, "x.pth", required=required, optional={"round": int})
    check_types({"model": {"a": torch.ones(1)}, "epoch": 1}, "x.pth", required={"epoch": int}, optional={"round": int})
