"""The data of a run: its splits, the batches of training and evaluation, and samples that were skipped."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from lavis.common.dist_utils import gathered, get_rank, get_world_size
from lavis.common.errors import ConfigError
from lavis.common.run_settings import RunSettings
from lavis.datasets.annotations import too_many
from lavis.datasets.data_utils import datasets_by_split, to_device
from lavis.datasets.datasets.record_dataset import RecordDataset
from lavis.datasets.records import BadSampleError, SourceChain
from lavis.datasets.samplers import EvalSampler, TrainStream
from lavis.models.played import STORED, PlayedGames

NAMED = 4  # samples of a batch that a message names
logger = logging.getLogger(__name__)


class EpochBatches:
    """The batches of one epoch on the run's device, for a task with a loop of its own: counted, read one after another.

    LAVIS's loops call `next` on it; a `for` goes over what is left. `skipped` tells of samples that were left out.
    """

    def __init__(self, batches: Iterator[dict[str, Any]], number: int, device: torch.device) -> None:
        self._batches = batches
        self._number = number
        self._device = device
        self.skipped: list[str] = []

    def __len__(self) -> int:
        return self._number

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self

    def __next__(self) -> dict[str, Any]:
        batch = next(self._batches)
        if isinstance(batch, Mapping):  # a collater of somebody's own may make any batch
            self.skipped += batch.get("skipped", ())
        return to_device(batch, self._device)


class RunData:
    """The datasets by split, checked against the splits that the settings name.

    They are a task's `build_datasets`: {dataset: {split: …}}. Of a `RecordDataset` more is known than of another: where
    each sample lies, of which game it is, and what was skipped.

    Raises ConfigError if a run names a split that there is not (unless none is `required`: a task may bring its own
    games), or more than one to train on.
    """

    def __init__(self, datasets: Mapping[str, Mapping[str, Any]], settings: RunSettings, *, required: bool) -> None:
        self.splits = datasets_by_split(datasets)
        self.settings = settings
        self.skipped: set[str] = set()
        if len(settings.train_splits) > 1:
            raise ConfigError(f"run.train_splits: one split at most, not {settings.train_splits}")
        if not settings.evaluate and not settings.train_splits:
            raise ConfigError("run.train_splits is empty: name one, or set run.evaluate=True")
        if required:
            settings.require_splits(self.splits)
        elif not settings.evaluate and settings.train_splits[0] not in self.splits:
            raise ConfigError(
                f"run.train_splits={settings.train_splits}: this task has no such data: set run.evaluate=True"
            )
        for split, dataset in self.splits.items():
            if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__"):
                raise ConfigError(
                    f"split {split}: a {type(dataset).__name__} is a stream; a run that resumes at any batch needs "
                    "numbered samples (docs/lavis.md)"
                )

        # The builder takes the split `train` for the one that is trained on; a run may name another.
        if not settings.evaluate and settings.train_splits and isinstance(self.train_set, RecordDataset):
            self.train_set.is_train = True

    @property
    def train_set(self) -> Any:
        """The split that is trained on."""
        return self.splits[self.settings.train_splits[0]]

    def train_stream(self) -> TrainStream:
        """Which samples make which batch of this process; ConfigError if the data does not fill one batch."""
        return TrainStream(
            len(self.train_set),
            batch_size=self.settings.batch_size_train,
            rank=get_rank(),
            world_size=get_world_size(),
            seed=self.settings.seed,
        )

    def train_batches(self, stream: TrainStream, device: torch.device) -> Iterator[dict[str, Any]]:
        """The batches from `stream.start` to `stream.stop`."""
        loader = DataLoader(
            self.train_set,
            batch_sampler=stream,
            collate_fn=getattr(self.train_set, "collater", None),
            pin_memory=device.type == "cuda",  # page-locked memory is copied to a GPU while the host goes on
            **self._processes(),
        )
        return iter(loader)

    def eval_loader(self, split: str) -> DataLoader:
        """This process's batches of one pass over a split."""
        dataset = self.splits[split]
        return DataLoader(
            dataset,
            batch_size=self.settings.batch_size_eval,
            sampler=EvalSampler(len(dataset), rank=get_rank(), world_size=get_world_size()),
            collate_fn=getattr(dataset, "collater", None),
            **self._processes(),
        )

    def _processes(self) -> dict[str, Any]:
        """How a loader's processes are made, and what it draws their seeds from."""
        number = self.settings.num_workers
        return {
            "num_workers": number,
            # A queue's time limit signals all processes of a job. The workers must outlive it: the run's own process
            # finishes its batch and writes a checkpoint.
            "worker_init_fn": _ignore_first_sigterm,
            # Since Python 3.14 the default is to send them the data set, and with its check of labels the whole model.
            "multiprocessing_context": "fork" if number else None,
            # A generator of its own: from torch's it would draw once when it is made, and a resumed run makes one more.
            # Then dropout would draw other numbers than in a run that was never stopped.
            "generator": torch.Generator().manual_seed(self.settings.seed),
        }

    def games(self) -> PlayedGames:
        """The games in the split that is trained on; unknown ones if the dataset is no `RecordDataset`."""
        if isinstance(self.train_set, RecordDataset):
            return PlayedGames(tuple(self.train_set.source.games()), (STORED,))
        return PlayedGames(unknown=(f"data of {type(self.train_set).__name__}",))

    def skipped_in(self, split: str) -> list[str]:
        """What a split left out when it was opened."""
        dataset = self.splits[split]
        return list(dataset.source.skipped) if isinstance(dataset, RecordDataset) else []

    def count_skipped(self, messages: Iterable[str]) -> None:
        """Log what any process skipped, once; BadSampleError if it is more than the settings allow.

        Every process must call it.
        """
        # A sample is drawn again in every epoch, but counts once.
        # Sorted below: a set's order of texts differs between processes and runs.
        new = {message for part in gathered(list(messages)) for message in part} - self.skipped
        self.skipped |= new
        for message in sorted(new):
            logger.warning("skipped: %s", message)
        if len(self.skipped) > self.settings.skip_bad_samples:
            raise BadSampleError(too_many(sorted(self.skipped), self.settings.skip_bad_samples))

    def described(self, samples: Mapping[str, Any]) -> str:
        """The first samples of a training batch, for messages: file, step or entry, game; else their ids."""
        if not isinstance(self.train_set, RecordDataset):
            return f"samples {list(samples['instance_id'])[:NAMED]}" if "instance_id" in samples else "the batch"
        pairs = zip(samples["instance_id"], samples["game"], strict=True)
        named = [f"{self.train_set.source.where(number)} ({game or 'a game unknown'})" for number, game in pairs]
        more = len(named) - NAMED
        return "; ".join(named[:NAMED]) + (f" and {more} more" if more > 0 else "")

    def places(self, samples: Mapping[str, Any]) -> list[tuple[str, int]]:
        """The place of each sample of a training batch: its file's name in the data's folder, and its number there.

        Of several storages the number of the storage comes before the name.
        """
        # File name and number, not the index: a cache of references stays valid if the storage grows.
        source = self.train_set.source
        places = []
        for index in samples["instance_id"]:
            path, number = source.place(index)
            # Files of two storages may have the same name.
            part = f"{source.part(index)}/" if isinstance(source, SourceChain) else ""
            places.append((part + Path(path).name, number))
        return places


def _ignore_first_sigterm(worker: int) -> None:
    # The second one is torch's or Python's own, for a worker that hangs at the end of the program.
    signal.signal(signal.SIGTERM, lambda number, frame: signal.signal(signal.SIGTERM, signal.SIG_DFL))
