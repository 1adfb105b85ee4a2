"""What every checkpoint of a run has in common: how it is written and read, and when it is refused.

The offline runner (`lavis.runners.checkpoint`) and the online runs (`xrl_alignment.runs.checkpoint`) write files of
their own formats. Each is one dictionary of `torch.save`; in both, these keys have the same meaning:

    model        {name: tensor}, the part of the model that trains
    base_hash    hash of the frozen part that these weights belong to
    optimizer    state dictionary of the optimiser, or None
    config       the resolved configuration, plain containers
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import UnionType
from typing import Any

import torch
from torch import Tensor

from lavis.common.errors import FileError, MissingFileError, first_sentence, why_unreadable
from lavis.common.files import write_atomically
from lavis.models import BaseModel
from lavis.models.frozen_base import CheckpointError, require_base
from lavis.models.student import Student
from lavis.models.tensor_files import TensorFileError, load_tensors


def write(path: Path, content: Mapping[str, Any], *, buffers: Collection[str] = ()) -> None:
    """Write `content`; an older file stays until the new one is whole and on disk.

    FileError if it cannot be written, CheckpointError if a weight or a state of the optimiser is not finite: such a
    file is of no use to anyone, and the older one is. One of the `buffers` may hold infinities, as a mask does.
    """
    tensors: list[tuple[str, Tensor]] = list(content["model"].items())
    # Weights alone are written without an optimiser, as EMAC+'s loop does after a round.
    states = (content["optimizer"] or {}).get("state", {}).values()
    tensors += [("the optimiser", value) for state in states for value in state.values() if torch.is_tensor(value)]
    for name, value in tensors:
        value = value.detach()
        if not (~torch.isnan(value) if name in buffers else torch.isfinite(value)).all():
            raise CheckpointError(f"{path} was not written: {name} holds values that are not finite; the older is kept")
    save_whole(path, content)


def save_whole(path: Path, content: Any) -> None:
    """`torch.save` that is whole and on disk when it returns; FileError if it cannot be, and the older file stays."""
    try:
        write_atomically(path, lambda file: torch.save(content, file))
    except (OSError, RuntimeError) as error:
        # Closing its zip file, torch raises a RuntimeError of its own over what broke the writing off.
        first = error.__context__ or error
        if isinstance(first, KeyboardInterrupt):
            raise first from None
        reason = first_sentence(first)
        raise FileError(f"{path} could not be written: {reason}; an older one there is untouched") from error


def require_checkpoint(path: Path, *, setting: str = "") -> None:
    """MissingFileError, which begins with the `setting` that named it, unless `path` is a file."""
    if not path.is_file():
        inside = sorted(path.glob("*.pth"), key=lambda file: file.stat().st_mtime)
        newest = f", which is a folder; the newest in it is {inside[-1]}" if inside else ""
        raise MissingFileError(f"{setting}{': ' if setting else ''}no checkpoint at {path}{newest}")


def read(path: Path, *, setting: str = "", mmap: bool = False) -> Any:
    """What a file of `torch.save` holds, on the CPU; with `mmap` a tensor is read when it is used.

    MissingFileError, which begins with the `setting` that named the file; CheckpointError if the file is damaged.
    """
    require_checkpoint(path, setting=setting)
    try:
        return load_tensors(path, mmap=mmap)
    except (OSError, TensorFileError) as error:
        raise CheckpointError(f"{path} cannot be read as a checkpoint: {why_unreadable(path, error)}") from error


def check_types(
    content: Mapping[str, Any],
    path: Path | str,
    *,
    required: Mapping[str, type | UnionType],
    optional: Mapping[str, type] = {},
) -> None:
    """CheckpointError if `content` lacks what is `required`, or holds a value of another type under one of the keys.

    For example `required={"epoch": int}`. Below `model` every name must be a text and every value a tensor.
    """
    for name, kind in {**required, **optional}.items():
        # An optional key may be missing; if it is there, its type counts.
        if name in content:
            found, fits = type(content[name]).__name__, isinstance(content[name], kind)
        else:
            found, fits = "missing", name in optional
        if not fits:
            wanted = kind.__name__ if isinstance(kind, type) else kind
            raise CheckpointError(f"{path} is damaged: {name} is {found}, not {wanted}")
    for name, value in content["model"].items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            shown = name[:80] if isinstance(name, str) else f"named by a {type(name).__name__}"
            raise CheckpointError(f"{path} is damaged: weight {shown} is {type(value).__name__}")


def restore_model(
    model: BaseModel | Student,
    content: Mapping[str, Any],
    path: Path | str,
    load: Callable[[Mapping[str, Tensor]], None] | None = None,
) -> None:
    """Put a checkpoint's weights into `model`; CheckpointError when they belong to another frozen base or shape.

    `load` puts them into a model that is sharded over processes.
    """
    # The base first: adapters of the right shapes would load beside any base, and mean nothing there.
    require_base(model, content, path)
    try:
        (load or model.load_trainable)(content["model"])
    except (RuntimeError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} does not fit this model: {error}") from error
