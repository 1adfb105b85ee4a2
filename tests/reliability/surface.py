"""What a surface is: something that reads what comes from elsewhere, and how an input for it is made."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.reliability import hostile

Errors = tuple[type[BaseException], ...]


class Surface:
    """`make(rng)` gives an input, `feed` reads it and may raise only `errors`."""

    errors: Errors = ()

    def __init__(self, folder: Path) -> None:
        """`folder` is where it may write, with generated games in `games`."""
        self.folder = folder
        self.prepare()

    def prepare(self) -> None:
        """What is made once."""

    def make(self, rng: random.Random) -> Any:
        """A new input."""
        raise NotImplementedError

    def feed(self, given: Any) -> None:
        """Read it as the project does."""
        raise NotImplementedError


class FileSurface(Surface):
    """Inputs are a file's bytes: `good` ones, damaged, unless the subclass makes others."""

    name = "input"
    good: list[bytes]

    def make(self, rng: random.Random) -> bytes:
        return hostile.damaged(rng, rng.choice(self.good), self.good)

    def feed(self, given: bytes) -> None:
        path = self.folder / self.name
        path.write_bytes(given)
        self.read(path)

    def read(self, path: Path) -> None:
        """Read the file."""
        raise NotImplementedError
