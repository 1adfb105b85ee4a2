"""Transitions, and the shard of each finished episode that stores them (`lavis.datasets.shards`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from lavis.datasets import shards
from lavis.datasets.shards import open_shard

NO_IMAGE = np.zeros((0, 0, 3), np.uint8)


@dataclass(frozen=True)
class Transition:
    """One labelled step: what the model saw, what the expert would have done, what was done.

    `image` is uint8 (H, W, 3), `NO_IMAGE` where only texts are collected; `text_output_neg` is the policy's own answer,
    empty where it was not asked.
    """

    image: np.ndarray
    text_input: str
    text_output: str
    text_output_neg: str
    executed: str
    feedback: str


FIELDS = tuple(field.name for field in fields(Transition))


def shard_name(round: int, env: int, steps: int) -> str:
    """The file name of an episode's shard."""
    return f"round{round:03d}_env{env:04d}_steps{steps:03d}.h5"


def write_shard(path: Path, transitions: Sequence[Transition], attributes: Mapping[str, Any]) -> None:
    """Write an episode's transitions; the file appears under its name only when it is whole and on disk."""
    shards.write_shard(path, {field: [getattr(item, field) for item in transitions] for field in FIELDS}, attributes)


def read_transition(path: Path, index: int) -> Transition:
    """Read one transition of a shard; ShardError names a damaged or missing file."""
    return Transition(**open_shard(path).read(index, FIELDS))
