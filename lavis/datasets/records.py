"""What every source of samples returns: a `Record`, or a `BadSampleError` that names the file and the index."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Protocol

import numpy as np
from PIL import Image

from lavis.common.errors import EmacError

# What Pillow's decoders raise for images that are damaged, or say that they are larger than memory.
UNREADABLE = (OSError, ValueError, SyntaxError, RuntimeError, Image.DecompressionBombError)


class BadSampleError(EmacError, ValueError):
    """A sample that cannot be used; the text names its file, its index and what is wrong."""


@dataclass(frozen=True)
class Record:
    """One transition as stored.

    `image` is a PIL image or uint8 (H, W, 3); `text_output_neg` is empty if nothing was rejected; `task_type` and
    `game` are empty if the data lacks them. `earlier` has the images of the states right before, oldest first, if
    the source was asked for them.
    """

    image: Image.Image | np.ndarray
    text_input: str
    text_output: str
    text_output_neg: str = ""
    task_type: str = ""
    game: str = ""
    earlier: Sequence[Image.Image | np.ndarray] = ()


class Source(Protocol):
    """A sequence of records that is read one at a time."""

    frames: int  # images that a record has, at most: the current one, and those of the states right before it

    @property
    def skipped(self) -> Sequence[str]:
        """Entries that were left out when it was opened, and why."""
        ...

    def __len__(self) -> int:
        """Number of records."""
        ...

    def read(self, index: int) -> Record:
        """The record at `index`; BadSampleError if it cannot be used."""
        ...

    def place(self, index: int) -> tuple[str, int]:
        """The path of the file that holds the record, and its number there."""
        ...

    def where(self, index: int) -> str:
        """File and place of the record, for messages."""
        ...

    def games(self) -> set[str]:
        """The ids of all games; one is empty if a record does not name its game."""
        ...


class SourceChain:
    """Several sources as one sequence, one after the other."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = tuple(sources)
        self._ends = list(accumulate(map(len, sources)))

    @property
    def frames(self) -> int:
        """Images that a record has, at most; setting it sets it for all sources."""
        return self.sources[0].frames

    @frames.setter
    def frames(self, number: int) -> None:
        for source in self.sources:
            source.frames = number

    @property
    def skipped(self) -> Sequence[str]:
        """Entries that any of them left out."""
        return [message for source in self.sources for message in source.skipped]

    def __len__(self) -> int:
        """Number of records of all."""
        return self._ends[-1]

    def part(self, index: int) -> int:
        """Number of the source that holds the record."""
        # The first running sum above the index; `right`, because a sum is the first index of the next source.
        return bisect_right(self._ends, index)

    def read(self, index: int) -> Record:
        """The record at `index`; BadSampleError if it cannot be used."""
        source, index = self._find(index)
        return source.read(index)

    def place(self, index: int) -> tuple[str, int]:
        """The path of the file that holds the record, and its number there."""
        source, index = self._find(index)
        return source.place(index)

    def where(self, index: int) -> str:
        """File and place of the record, for messages."""
        source, index = self._find(index)
        return source.where(index)

    def games(self) -> set[str]:
        """The games of all."""
        return set().union(*[source.games() for source in self.sources])

    def _find(self, index: int) -> tuple[Source, int]:
        # `_ends` are the running sums of the lengths: source k holds the records from `_ends[k - 1]` to below
        # `_ends[k]`.
        number = self.part(index)
        return self.sources[number], index - (self._ends[number - 1] if number else 0)


def task_type_of(game: str) -> str:
    """The task type that an ALFWorld game id begins with (`pick_heat_then_place_in_recep-Tomato-…/trial_…`)."""
    return game.split("-", 1)[0] if "-" in game else ""


@lru_cache(maxsize=1)
def blank_image() -> np.ndarray:
    """A black image, uint8 (224, 224, 3), in place of one that was not stored; one for all, so it is read-only."""
    image = np.zeros((224, 224, 3), np.uint8)
    image.setflags(write=False)
    return image
