"""Checkpoints of runners: LAVIS's keys with what an exact resume needs; written atomically, read without unpickling.

model, optimizer, scaler, config, epoch      LAVIS's (`model` holds only what trains)
batches        micro-batches done since the run began: its place in the data
arch, base_hash      the model and the frozen weights that these belong to
global_batch, accum_grad_iters      what `batches` counts
random         torch's generator state of every process
best, averages      best validation so far; means of the epoch under way
references     what DPO's reference said of each transition, where that is remembered
"""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import torch

from lavis.common.errors import first_sentence

KEYS = ("model", "optimizer", "scaler", "config", "epoch")
OWN_KEYS = ("batches", "arch", "base_hash", "global_batch", "accum_grad_iters", "random", "best", "averages")
OWN_KEYS += ("references",)


class CheckpointError(ValueError):
    """A checkpoint that cannot be read or does not belong to this run; the text names both sides."""


def save(path: Path, content: dict[str, Any]) -> None:
    """Write `content`; where it fails (full disk) the old file stays, and the OSError names the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except (OSError, RuntimeError) as error:  # torch's zip writer reports a full disk as RuntimeError
        raise OSError(f"checkpoint {path} could not be written ({error}); an older one there is untouched") from error
    finally:
        temporary.unlink(missing_ok=True)


def load(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, on the CPU; FileNotFoundError, or CheckpointError for a damaged or foreign file."""
    if not path.is_file():
        raise FileNotFoundError(f"run.resume_ckpt_path: no checkpoint {path}")
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, KeyError, pickle.UnpicklingError) as error:
        raise CheckpointError(
            f"{path} cannot be read (truncated, or no checkpoint): {first_sentence(error)}"
        ) from error
    lacking = [key for key in (*KEYS, *OWN_KEYS) if not isinstance(content, dict) or key not in content]
    if lacking:
        raise CheckpointError(
            f"{path} is no checkpoint of a runner: it lacks {', '.join(lacking[:3])}. Weights alone are loaded with "
            "model.pretrained"
        )
    return content


def newest(folder: Path) -> Path | None:
    """The checkpoint written last in `folder`; None where there is none."""
    found = [path for path in folder.glob("checkpoint_*.pth") if path.name != "checkpoint_best.pth"]
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)
