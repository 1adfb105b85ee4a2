"""Weights that the learner publishes for the policy: one file, replaced atomically, with its version and its hash."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from lavis.common.errors import EmacError, FileError
from lavis.common.files import replaced

_LENGTH = struct.Struct("<Q")  # of the JSON header, with which a safetensors file begins


class PublishedError(EmacError, ValueError):
    """Published weights that cannot be used; the text names the file and the reason."""


class Version(NamedTuple):
    """How much a model has learned: from so many episodes of the journal, in so many batches."""

    episodes: int = 0
    training_step: int = 0


def publish(path: Path, weights: Mapping[str, Tensor], version: Version) -> None:
    """Write `weights` for the policy; a reader finds this file or the one before, never a part of one.

    Raises FileError if it cannot be written.
    """
    # Copies: safetensors refuses tied weights, which are two tensors of one storage.
    tensors = {name: value.detach().cpu().clone().contiguous() for name, value in weights.items()}
    # A safetensors file's metadata are texts.
    facts = {name: str(number) for name, number in version._asdict().items()}
    try:
        with replaced(path) as temporary:
            safetensors.torch.save_file(tensors, temporary, metadata={**facts, "sha256": _digest(tensors, version)})
    except (OSError, SafetensorError) as error:
        raise FileError(f"{path} could not be written: {error}") from error


def read_published(path: Path) -> tuple[Version, dict[str, Tensor]]:
    """The version and the weights of a published file.

    Raises FileError if it cannot be read, and PublishedError if it is not what was written.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        (length,) = _LENGTH.unpack_from(content)
        facts = json.loads(content[_LENGTH.size : _LENGTH.size + length])["__metadata__"]
        version = Version(int(facts["episodes"]), int(facts["training_step"]))
        weights = safetensors.torch.load(content)
        whole = _digest(weights, version) == facts["sha256"]
    except Exception as error:  # there is no error that a damaged file cannot cause
        raise PublishedError(f"{path} is damaged: {type(error).__name__}: {error}"[:300]) from error
    if not whole:
        raise PublishedError(f"{path} is damaged: its hash is not that of what was written")
    return version, weights


def _digest(tensors: Mapping[str, Tensor], version: Version) -> str:
    """SHA-256 of names, types, shapes and bytes of the tensors, and of their version."""
    digest = hashlib.sha256(str(tuple(version)).encode())
    for name, value in sorted(tensors.items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
