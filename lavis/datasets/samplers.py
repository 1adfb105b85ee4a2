"""Which samples make which batch, for every process of a run.

Training is one endless stream of global batches. Batch k depends on (seed, k) alone, not on the number of processes: a
run can resume at any k, and two processes with half the batch each read the same samples as one.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

from lavis.common.errors import ConfigError
from lavis.datasets.datasets.base_dataset import Draw


class TrainStream(Sampler[list[Draw]]):
    """This process's part of the global batches `start` to `stop` of `batch_size * world_size` samples.

    Each epoch is a new permutation of the data, from which whole batches are taken; what is left over at its end is
    dropped (LAVIS's drop_last). ConfigError if the data does not fill one batch.
    """

    def __init__(self, length: int, *, batch_size: int, rank: int = 0, world_size: int = 1, seed: int = 0) -> None:
        self.global_batch = batch_size * world_size
        if length < self.global_batch:
            raise ConfigError(
                f"the training split has {length} samples, fewer than one global batch of {self.global_batch} "
                f"(run.batch_size_train {batch_size} × {world_size} processes)"
            )
        self.length = length
        self.batch_size = batch_size
        self.rank = rank
        self.seed = seed
        self.start = self.stop = 0  # of the next pass over the stream

    @property
    def batches_per_epoch(self) -> int:
        """Global batches in one pass over the data."""
        return self.length // self.global_batch

    def __len__(self) -> int:
        return self.stop - self.start

    def __iter__(self) -> Iterator[list[Draw]]:
        epoch, order = -1, torch.empty(0, dtype=torch.long)
        for number in range(self.start, self.stop):
            if number // self.batches_per_epoch != epoch:
                epoch = number // self.batches_per_epoch
                # A Mersenne twister takes any 64-bit seed; neighbouring seeds give unrelated streams.
                generator = torch.Generator().manual_seed((self.seed << 20) + epoch)
                order = torch.randperm(self.length, generator=generator)
            # Rank r has the r-th part of a global batch, so that all parts together are the same for any world size.
            first = number % self.batches_per_epoch * self.global_batch + self.rank * self.batch_size
            yield [Draw(int(index), epoch) for index in order[first : first + self.batch_size]]


class EvalSampler(Sampler[int]):
    """Every `world_size`-th index from `rank` on; all processes get equally many.

    If the length does not divide, the last ones are padded with early indices: results are merged by index
    (`StudentTask.after_evaluation`), so every sample counts once, and processes that must compute in step (FSDP) do.
    """

    def __init__(self, length: int, *, rank: int = 0, world_size: int = 1) -> None:
        self.length = length
        self.rank = rank
        self.world_size = world_size

    def __len__(self) -> int:
        return -(-self.length // self.world_size)

    def __iter__(self) -> Iterator[int]:
        for turn in range(len(self)):
            yield (turn * self.world_size + self.rank) % self.length
