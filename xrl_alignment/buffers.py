"""Replay buffers over immutable HDF5 shards, one shard per finished episode.

    <directory>/
        round000_env0012_steps013.h5     written to a temporary name, synced, renamed

A shard's name tells its round, environment and number of transitions, so a buffer opens by listing the folder: it
holds names and counts, never pictures. 100,000 transitions are a few megabytes of index.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

SHARD_VERSION = 1
_SHARD_NAME = re.compile(r"round(\d+)_env(\d+)_steps(\d+)\.h5")
_TEXT = h5py.string_dtype("utf-8")


class ShardError(ValueError):
    """A shard that cannot be read; the text names the file."""


@dataclass(frozen=True)
class Transition:
    """One labelled step: what the model saw, what the expert would have done, what was done.

    `image` is uint8 (H, W, 3); `text_output_neg` is the policy's own answer, empty where it was not asked.
    """

    image: np.ndarray
    text_input: str
    text_output: str
    text_output_neg: str
    executed: str
    feedback: str


def shard_name(round: int, env: int, steps: int) -> str:
    """The file name of an episode's shard."""
    return f"round{round:03d}_env{env:04d}_steps{steps:03d}.h5"


def write_shard(path: Path, transitions: Sequence[Transition], attributes: dict[str, Any]) -> None:
    """Write an episode's transitions; the file appears under its name only when it is whole and on disk."""
    if not transitions:
        raise ValueError(f"an episode without transitions cannot become the shard {path.name}")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with h5py.File(temporary, "w") as file:
            file.attrs.update({"version": SHARD_VERSION, **attributes})
            images = np.stack([t.image for t in transitions])
            # One chunk per picture, so that a sample reads one; lzf because reading is as frequent as training.
            file.create_dataset("images", data=images, chunks=(1, *images.shape[1:]), compression="lzf")
            for field in ("text_input", "text_output", "text_output_neg", "executed", "feedback"):
                file.create_dataset(field, data=[getattr(t, field) for t in transitions], dtype=_TEXT)
        descriptor = os.open(temporary, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_transition(path: Path, index: int) -> Transition:
    """Read one transition of a shard; ShardError names a damaged file."""
    try:
        with h5py.File(path, "r") as file:
            texts = {
                field: file[field][index].decode("utf-8")
                for field in ("text_input", "text_output", "text_output_neg", "executed", "feedback")
            }
            return Transition(image=file["images"][index], **texts)
    except (OSError, KeyError, IndexError) as error:
        raise ShardError(f"shard {path} is damaged at transition {index}: {error}") from error


class ReplayBuffer:
    """Uniform sampling, with replacement, over all transitions of the newest shards (behavioural cloning).

    `capacity` is counted in transitions: the oldest shards leave the index (not the disk) when it is exceeded.
    Samples are drawn from a generator of its own, whose state a checkpoint keeps.
    """

    def __init__(self, directory: Path | str, *, capacity: int = 100_000, seed: int = 42) -> None:
        self.directory = Path(directory)
        self.capacity = capacity
        self.random = np.random.default_rng(seed)
        self._shards: list[tuple[Path, int]] = []
        self._ends = np.zeros(0, dtype=np.int64)

    def __len__(self) -> int:
        """Number of transitions that can be drawn."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def add_shard(self, name: str) -> None:
        """Take a written shard of this directory into the index."""
        match = _SHARD_NAME.fullmatch(name)
        if not match:
            raise ValueError(f"{name} is not a shard's name (round000_env0000_steps000.h5)")
        self._shards.append((self.directory / name, int(match.group(3))))
        while len(self._shards) > 1 and sum(count for _, count in self._shards) > self.capacity:
            self._shards.pop(0)
        self._ends = np.cumsum([count for _, count in self._shards])

    def sample(self, batch_size: int) -> dict[str, list]:
        """Draw a batch: {"image": list of uint8 (H, W, 3), "text_input": [...], "text_output": [...]}."""
        if not len(self):
            raise ValueError(f"the buffer {self.directory} is empty: no episode has been stored yet")
        return self._collate([self._read(int(i)) for i in self.random.integers(len(self), size=batch_size)])

    def _read(self, position: int) -> Transition:
        shard = int(np.searchsorted(self._ends, position, side="right"))
        start = int(self._ends[shard - 1]) if shard else 0
        return read_transition(self._shards[shard][0], position - start)

    def _collate(self, transitions: list[Transition]) -> dict[str, list]:
        return {
            "image": [t.image for t in transitions],
            "text_input": [t.text_input for t in transitions],
            "text_output": [t.text_output for t in transitions],
        }


class DPOReplayBuffer(ReplayBuffer):
    """The same transitions as preference pairs: the expert's action is chosen, the policy's own is rejected."""

    def _collate(self, transitions: list[Transition]) -> dict[str, list]:
        return {
            "image": [t.image for t in transitions],
            "text_input": [t.text_input for t in transitions],
            "text_output_pos": [t.text_output for t in transitions],
            "text_output_neg": [t.text_output_neg for t in transitions],
        }
