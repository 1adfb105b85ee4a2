"""Transitions that differ in every field, and shards of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from xrl_alignment.runs.transitions import Transition, shard_name, write_shard


def transition(number: int, side: int = 8) -> Transition:
    image = np.full((side, side, 3), number, np.uint8)
    return Transition(image, f"prompt {number}", f"label {number}", f"own ü {number}", f"done {number}", "heard")


def store(folder: Path, round: int, env: int, numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    name = shard_name(round, env, len(numbers))
    write_shard(folder / name, [transition(n) for n in numbers], {"game": f"pick/{env}", "won": True})
    return name
