"""Replay buffers over the shards of finished episodes (`runs.transitions`).

A shard's name states its round, environment and number of transitions, so a buffer holds names and counts, never
images: the index of 100,000 transitions takes a few megabytes.
"""

from __future__ import annotations

import logging
import re
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from lavis.datasets.shards import IMAGE, ShardError, open_shard
from lavis.models.references import Place

logger = logging.getLogger(__name__)

NAMED = 4  # samples of a batch that a message names
_SHARD_NAME = re.compile(r"round(\d+)_env(\d+)_steps(\d+)\.h5")


class ReplayBuffer:
    """Uniform sampling, with replacement, over all transitions of the newest shards (behavioural cloning).

    `capacity` is counted in transitions: the oldest shards leave the index (not the disk) when it is exceeded. With
    `disagreements` only transitions whose label differs from the policy's own action count and are drawn.
    Samples are drawn from a generator of its own, whose state a checkpoint keeps. With `frames` above 1 an image is a
    tuple: the frames of the states right before the transition, as many as there are, and its own last.
    """

    # The name in a batch, and the stored field; only these are read.
    batch_fields = {"image": "image", "text_input": "text_input", "text_output": "text_output"}

    def __init__(
        self,
        directory: Path | str,
        *,
        capacity: int = 100_000,
        seed: int = 42,
        disagreements: bool = False,
        frames: int = 1,
    ) -> None:
        self.directory = Path(directory)
        self.disagreements = disagreements
        self.capacity = capacity
        self.frames = frames
        self.random = np.random.default_rng(seed)
        self.drawn: list[Place] = []  # the last batch: shard and transition of each sample
        self.refused: set[str] = set()  # shards that cannot be learned from; a checkpoint keeps them
        # The index holds the shards that can be drawn from alone: a run may write millions of them.
        self._names: list[str] = []  # the oldest first
        self._ends: list[int] = []  # transitions up to and including each shard, those that have left included
        self._rows: dict[str, list[int]] = {}  # with `disagreements`: which of a shard's transitions count
        self._left = 0  # transitions of the shards that have left the index

    def __len__(self) -> int:
        """Number of transitions that can be drawn."""
        return self._ends[-1] - self._left if self._ends else 0

    def add_shard(self, name: str) -> set[str]:
        """Take a written shard of this directory into the index; with `disagreements` its texts are read.

        Returns the shards that leave the index for it.
        """
        match = _SHARD_NAME.fullmatch(name)
        if not match:
            raise ValueError(f"{name} is not a shard's name (round000_env0000_steps000.h5)")
        steps = int(match.group(3))
        if self.disagreements:
            # The steps whose label is not the policy's own action; none of a shard that cannot be read.
            try:
                shard = open_shard(self.directory / name)
                texts = [shard.read(step, ("text_output", "text_output_neg")) for step in range(steps)]
            except ShardError as error:
                logger.error("nothing is learned from %s: %s", name, error)
                texts = []
            rows = [i for i, row in enumerate(texts) if row["text_output_neg"] not in ("", row["text_output"])]
            if not rows:
                return set()  # nothing of it can be drawn
            self._rows[name], steps = rows, len(rows)
        # `_ends` are running totals, so that the shard of the n-th transition is found by bisection, in O(log shards).
        self._names.append(name)
        self._ends.append((self._ends[-1] if self._ends else self._left) + steps)
        # The oldest shards go as a whole, and the newest one stays even if it alone is larger than the capacity.
        gone = 0
        while len(self) > self.capacity and gone < len(self._names) - 1:
            self._left = self._ends[gone]
            self._rows.pop(self._names[gone], None)
            gone += 1
        left = set(self._names[:gone])
        del self._names[:gone], self._ends[:gone]
        return left

    def sample(self, batch_size: int) -> dict[str, list]:
        """Draw a batch, and read it."""
        return self.read(self.draw(batch_size))

    def draw(self, batch_size: int) -> list[Place]:
        """The places of a new batch; `drawn` keeps them."""
        if not len(self):
            raise ValueError(f"the buffer {self.directory} is empty: no episode has been stored yet")
        if self.refused and not self._learnable():
            raise ValueError(f"no shard of {self.directory} can be learned from")
        # Uniform over transitions and with replacement, so a long episode counts for more than a short one.
        self.drawn = []
        for position in self.random.integers(len(self), size=batch_size):
            place = self._place(int(position))
            while place[0] in self.refused:  # another one, so that a batch keeps its size
                place = self._place(int(self.random.integers(len(self))))
            self.drawn.append(place)
        return self.drawn

    def read(self, places: Sequence[Place]) -> dict[str, list]:
        """The transitions at `places`: {"image": list of uint8 (H, W, 3), "text_input": [...], "text_output": [...]}.

        ShardError names a shard that cannot be read.
        """
        fields = tuple(self.batch_fields.values())
        stored = []
        for name, index in places:
            shard = open_shard(self.directory / name)
            row = shard.read(index, fields)
            if self.frames > 1:
                row[IMAGE] = (*shard.earlier_images(index, self.frames - 1), row[IMAGE])
            stored.append(row)
        return {key: [row[field] for row in stored] for key, field in self.batch_fields.items()}

    def refuse(self, name: str) -> bool:
        """Draw no more from a shard; False if no other is left to draw from."""
        self.refused.add(name)
        return self._learnable()

    def _learnable(self) -> bool:
        return any(name not in self.refused for name in self._names)

    def describe_drawn(self) -> str:
        """The last batch in words: shard, step and game of its first samples."""
        named = []
        for name, index in self.drawn[:NAMED]:
            try:
                game = open_shard(self.directory / name).game or "a game unknown"
            except ShardError:  # this text explains an error: it must not raise another one
                game = "a shard that cannot be read"
            named.append(f"{name} step {index} ({game})")
        more = len(self.drawn) - NAMED
        return ", ".join(named) + (f" and {more} more" if more > 0 else "")

    def _place(self, position: int) -> Place:
        """Shard and index in it of the `position`-th transition that can be drawn."""
        position += self._left
        shard = bisect_right(self._ends, position)
        name, row = self._names[shard], position - (self._ends[shard - 1] if shard else self._left)
        return name, self._rows[name][row] if self.disagreements else row


class DPOReplayBuffer(ReplayBuffer):
    """The same transitions as preference pairs: the expert's action is chosen, the policy's own is rejected.

    A transition in which the policy was not asked is a pair of the expert's action with itself: only the cloning term
    of DPO's loss learns from it.
    """

    batch_fields = {
        "image": "image",
        "text_input": "text_input",
        "text_output_pos": "text_output",
        "text_output_neg": "text_output_neg",
    }

    def read(self, places: Sequence[Place]) -> dict[str, list]:
        """See `ReplayBuffer.read`."""
        batch = super().read(places)
        pairs = zip(batch["text_output_neg"], batch["text_output_pos"], strict=True)
        batch["text_output_neg"] = [own or label for own, label in pairs]
        return batch
