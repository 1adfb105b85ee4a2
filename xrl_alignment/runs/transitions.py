"""Transitions: an episode's in progress in a temporary file, a finished one's in a shard (`lavis.datasets.shards`)."""

from __future__ import annotations

import itertools
import json
import os
import struct
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import lz4.block
import numpy as np

from lavis.datasets import shards
from lavis.datasets.shards import IMAGE, STEP, open_shard

NO_IMAGE = np.zeros((0, 0, 3), np.uint8)


@dataclass(frozen=True)
class Transition:
    """One labelled step: what the model saw, what the expert would have done, what was done.

    `image` is uint8 (H, W, 3), or `NO_IMAGE` if only texts are collected. `text_output_neg` is the policy's own answer,
    and empty if the policy was not asked.
    """

    image: np.ndarray
    text_input: str
    text_output: str
    text_output_neg: str
    executed: str
    feedback: str


FIELDS = tuple(field.name for field in fields(Transition))
_TEXTS = tuple(name for name in FIELDS if name not in (IMAGE, "feedback"))
_NUMBERS = itertools.count()
_HEAD = struct.Struct("<III")  # bytes of the texts, height and width of the image; texts and packed image follow


def with_feedback(labelled: Mapping[int, Transition], steps: Sequence[tuple[str, str]]) -> list[Transition]:
    """The transitions of a finished episode, `labelled` by the number of their turn, with what was answered to each.

    Every turn, a thought or an action, adds one (action, feedback) to the episode's `steps`.
    """
    return [replace(transition, feedback=steps[turn][1]) for turn, transition in labelled.items()]


def shard_name(round: int, env: int, steps: int) -> str:
    """The file name of an episode's shard."""
    return f"round{round:03d}_env{env:04d}_steps{steps:03d}.h5"


class UnfinishedTransitions:
    """The transitions of an episode in progress, in a temporary file of `folder`: frames take no memory while it lasts.

    The file is removed with this object, or by `remove`; that of a killed process by the next `RunDirectory`. Feedback
    comes later than the rest of a transition, and is not kept here: the episode has it in its `steps`.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f".unfinished-{next(_NUMBERS)}.{os.getpid()}.tmp"
        self._path.touch(0o600, exist_ok=False)
        self._remove = weakref.finalize(self, self._path.unlink, missing_ok=True)
        self._ends: list[int] = []  # of each transition in the file

    def __len__(self) -> int:
        return len(self._ends)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._ends[-1] if self._ends else 0

    def append(self, transition: Transition) -> None:
        """Add a transition without its feedback."""
        # JSON with escapes: a text may hold half a surrogate pair, which UTF-8 cannot.
        texts = json.dumps([getattr(transition, name) for name in _TEXTS]).encode()
        height, width, _ = transition.image.shape
        with open(self._path, "r+b") as file:
            file.seek(self.size)  # a write that failed half-way is overwritten by the next one
            file.write(_HEAD.pack(len(texts), height, width) + texts)
            file.write(lz4.block.compress(np.ascontiguousarray(transition.image).data, store_size=False))
            self._ends.append(file.tell())

    def remove(self) -> None:
        """Remove the file: the episode has ended, and its transitions can no longer be read here."""
        self._remove()

    def __getitem__(self, index: int) -> Transition:
        # Negative indices count from the end, as those of a list; IndexError beyond it.
        end = self._ends[index]
        start = self._ends[index - 1] if index % len(self) else 0
        with open(self._path, "rb") as file:  # opened each time: thousands of episodes may be in progress
            file.seek(start)
            data = memoryview(file.read(end - start))
        length, height, width = _HEAD.unpack_from(data)
        texts, packed = data[_HEAD.size : _HEAD.size + length], data[_HEAD.size + length :]
        pixels = lz4.block.decompress(packed, uncompressed_size=height * width * 3)
        image = np.frombuffer(pixels, np.uint8).reshape(height, width, 3)
        return Transition(image, **dict(zip(_TEXTS, json.loads(bytes(texts)), strict=True)), feedback="")


@dataclass(frozen=True)
class _Images(Sequence[np.ndarray]):
    """The images of transitions, read one by one."""

    transitions: Sequence[Transition] | UnfinishedTransitions

    def __len__(self) -> int:
        return len(self.transitions)

    def __getitem__(self, index: Any) -> Any:
        return self.transitions[index].image


def write_shard(
    path: Path,
    transitions: Sequence[Transition] | UnfinishedTransitions,
    attributes: Mapping[str, Any],
    *,
    steps: Sequence[tuple[str, str]] = (),
    staleness: Sequence[int] = (),
    turns: Sequence[int] = (),
) -> None:
    """Write an episode's transitions; the file appears under its name only when it is whole and on disk.

    The (action, feedback) `steps` of an episode say what each of its `UnfinishedTransitions` was answered with; the
    last one may have no answer. `staleness` becomes a field of its own, unless it is empty: at each transition, the
    updates that the policy lacked. `turns` are the numbers of the transitions' states in the episode: they become the
    field `step` if some state has no transition, so that a reader knows which frames follow one another.
    """
    texts: dict[str, list[str]] = {name: [] for name in FIELDS if name != IMAGE}
    for index in range(len(transitions)):
        item = transitions[index]
        if index < len(steps):
            item = replace(item, feedback=steps[index][1])
        for name, rows in texts.items():
            rows.append(getattr(item, name))
    # Images are read once more, one by one, while the shard is written: an episode's frames do not fit into memory.
    numbers: dict[str, Sequence] = {"staleness": staleness} if staleness else {}
    if list(turns) != list(range(len(turns))):
        numbers[STEP] = turns
    shards.write_shard(path, {IMAGE: _Images(transitions), **texts, **numbers}, attributes)


def read_transition(path: Path, index: int) -> Transition:
    """Read one transition of a shard; ShardError names a damaged or missing file."""
    return Transition(**open_shard(path).read(index, FIELDS))
