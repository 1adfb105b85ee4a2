"""Transitions, and the shard of a finished episode (`lavis.datasets.shards`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

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


def with_feedback(labelled: Mapping[int, Transition], steps: Sequence[tuple[str, str]]) -> list[Transition]:
    """The transitions of a finished episode, `labelled` by the number of their turn, with what was answered to each.

    Every turn, a thought or an action, adds one (action, feedback) to the episode's `steps`.
    """
    return [replace(transition, feedback=steps[turn][1]) for turn, transition in labelled.items()]


def shard_name(round: int, env: int, steps: int) -> str:
    """The file name of an episode's shard."""
    # Numbers of one length: sorted names are in the order of rounds, then of games.
    return f"round{round:03d}_env{env:04d}_steps{steps:03d}.h5"


@dataclass(frozen=True)
class _Images(Sequence[np.ndarray]):
    """The images of transitions, read one by one."""

    transitions: Sequence[Transition]

    def __len__(self) -> int:
        return len(self.transitions)

    def __getitem__(self, index: Any) -> Any:
        return self.transitions[index].image


def write_shard(
    path: Path,
    transitions: Sequence[Transition],
    attributes: Mapping[str, Any],
    *,
    steps: Sequence[tuple[str, str]] = (),
    staleness: Sequence[int] = (),
    turns: Sequence[int] = (),
) -> None:
    """Write an episode's transitions; the file appears under its name only when it is whole and on disk.

    The (action, feedback) `steps` of an episode say what each of its transitions was answered with, if these do not
    know it themselves (`dagger.episode.UnfinishedTransitions`); the last one may have no answer. `staleness` becomes a
    field of its own, unless it is empty: at each transition, the updates that the policy lacked. `turns` are the
    numbers of the transitions' states in the episode: they become the field `step` if some state has no transition, so
    that a reader knows which frames follow one another.
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


def write_episode(
    folder: Path, round: int, env: int, transitions: Sequence[Transition], attributes: Mapping[str, Any], **more: Any
) -> str:
    """Write an episode's shard (`write_shard`) to `folder`, instead of one of an earlier try; returns its name.

    A game is played again if a kill came between its shard and the record that says it was played. The second try may
    have another length, and so another name: with both, offline training would read the game twice.
    """
    name = shard_name(round, env, len(transitions))
    for earlier in folder.glob(f"{name.partition('steps')[0]}*.h5"):
        if earlier.name != name:  # that one is replaced in one go
            earlier.unlink()
    write_shard(folder / name, transitions, attributes, **more)
    return name


def read_transition(path: Path, index: int) -> Transition:
    """Read one transition of a shard; ShardError names a damaged or missing file."""
    return Transition(**open_shard(path).read(index, FIELDS))
