"""Checkpoints: only what trains, written atomically, read with a clear error when they do not fit.

A checkpoint file (`emma_checkpoint_<round>.pth`, `state/trainer.pth`) is one dictionary:

    format        "emac+ checkpoint"
    version       1
    model         {name: tensor}, the trainable part of the model, LAVIS names
    base_hash     hash of the frozen part that these weights belong to
    adapter_scaling    lora_alpha / lora_rank; None without adapters; older files lack it
    optimizer, scaler    their state dictionaries, or None
    round, training_step, episodes    how far the run was
    random        states of the random generators that the run draws from
    config        the resolved configuration, plain containers
    played        the games that the weights have trained on, an earlier phase included (`lavis.models.played`)
    cut_from      of a resume that cuts its journal: the journal before, and how many of it were learned (trainer.pth)
    references    what DPO's reference policy said of the transitions drawn so far (trainer.pth, phase 2)
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lavis.checkpoints import CheckpointError, check_types, read, restore_model, write
from lavis.models.frozen_base import base_of
from lavis.models.student import Student

__all__ = ["CheckpointError", "load_checkpoint", "restore_model", "save_checkpoint"]

FORMAT = "emac+ checkpoint"
VERSION = 1
_REQUIRED: dict[str, type] = {"version": int, "model": dict, "base_hash": str}
_OPTIONAL: dict[str, type] = {  # an older file may lack these
    **dict.fromkeys(("round", "training_step", "episodes"), int),
    **dict.fromkeys(("random", "config", "references", "played", "cut_from"), dict),
}


def save_checkpoint(
    path: Path | str,
    *,
    model: Student,
    weights: Mapping[str, Tensor] | None = None,
    optimizer: torch.optim.Optimizer | Mapping[str, Any] | None = None,
    scaler: torch.amp.GradScaler | None = None,
    round: int = 0,
    training_step: int = 0,
    episodes: int = 0,
    random: dict[str, Any] | None = None,
    config: dict[str, Any] | None = None,
    references: dict[str, Any] | None = None,
    cut_from: dict[str, Any] | None = None,
    played: dict[str, Any] | None = None,
) -> Path:
    """Write a checkpoint of `model.trainable_state_dict()` and what a resume needs; returns the path.

    Of a model that is sharded over processes take `weights`, and the optimiser's state dictionary, with whole tensors.
    FileError if it cannot be written, CheckpointError if a weight or a state of the optimiser is not finite; an
    older file there is untouched.
    """
    path = Path(path)
    weights = model.trainable_state_dict() if weights is None else weights
    state = optimizer.state_dict() if isinstance(optimizer, torch.optim.Optimizer) else optimizer
    content = {
        "format": FORMAT,
        "version": VERSION,
        "model": weights,
        **base_of(model),
        "optimizer": state,
        "scaler": scaler.state_dict() if scaler else None,
        "round": round,
        "training_step": training_step,
        "episodes": episodes,
        "random": random or {},
        "config": config or {},
        "references": references or {},
        "cut_from": cut_from or {},
        # Left out if nobody knows: an absent key reads as unknown.
        **({"played": played} if played is not None else {}),
    }
    write(path, content)
    return path


def load_checkpoint(path: Path | str) -> dict[str, Any]:
    """Read a checkpoint file as written by `save_checkpoint`, to the CPU.

    Raises MissingFileError, or CheckpointError when the file is truncated, is not a checkpoint of ours or comes from
    a newer version of the format.
    """
    content = read(Path(path))
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        # What it holds instead, for whoever has named the wrong file.
        keys = [key[:40] for key in content if isinstance(key, str)][:5] if isinstance(content, dict) else []
        held = ", ".join(keys) or type(content).__name__
        raise CheckpointError(f"{path} is not an EMAC+ run checkpoint; it holds: {held}")
    check_types(content, path, required=_REQUIRED, optional=_OPTIONAL)
    if content["version"] > VERSION:
        raise CheckpointError(f"{path} has format version {content['version']}, this program reads up to {VERSION}")
    return content
