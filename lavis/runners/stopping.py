"""Stopping a run on SIGTERM (a queue's time limit): all processes stop at the same batch, with a checkpoint."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import takewhile
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader

from lavis.common.dist_utils import summed


class Stopped(Exception):
    """SIGTERM came and a checkpoint was written; the text says how to resume."""


class StopSignal:
    """`asked`: this process got SIGTERM. `agreed`: the processes know that one of them did, and stop together."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.asked = self.agreed = False

    @contextmanager
    def on_sigterm(self) -> Iterator[None]:
        """While the block runs, SIGTERM only sets `asked`; the old handler comes back after it."""

        def ask(number: int, frame: FrameType | None) -> None:
            # Nothing but a flag: other processes know nothing yet, and a process that left alone would let them wait
            # for it.
            self.asked = True

        old = signal.signal(signal.SIGTERM, ask)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, old)

    def agree(self) -> bool:
        """Whether any process was asked to stop; every process must call it at the same batch."""
        # A sum of 0s and 1s is above 0 in every process as soon as one was asked.
        self.agreed = summed([float(self.asked)], self._device)[0] > 0
        return self.agreed


class UntilStopped:
    """A loader's batches, until `stop` says that they are to end."""

    def __init__(self, loader: DataLoader, stop: Callable[[], bool]) -> None:
        self._loader = loader
        self._stop = stop
        self.dataset = loader.dataset  # LAVIS's tasks read it

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return takewhile(lambda batch: not self._stop(), self._loader)
