"""Datasets of stored transitions: a source of records, processors, and what to do with samples that cannot be used."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from lavis.datasets.datasets.base_dataset import BaseDataset, Draw
from lavis.datasets.records import BadSampleError, Record, Source
from lavis.processors import BaseProcessor

_MOST_NEIGHBOURS = 100  # tried in place of a bad sample before the data counts as bad


class RecordDataset(BaseDataset):
    """Samples of `source` as dicts; subclasses say in `sample` what is in them.

    With `skip_bad` a bad sample does not stop the run: in training (`is_train`) the next good one takes its place, so
    that batches keep their size; in evaluation it is left out. Either way the message travels in `"skipped"`. `check`
    gives a reason why a record cannot be used, or "" (the task sets it).
    """

    def __init__(
        self,
        *,
        source: Source,
        vis_processor: BaseProcessor,
        text_processor: BaseProcessor,
        is_train: bool = False,
        skip_bad: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(vis_processor, text_processor)
        self.source = source
        self.is_train = is_train
        self.skip_bad = skip_bad
        self.seed = seed
        self.check: Callable[[Record], str] = lambda record: ""

    def __len__(self) -> int:
        return len(self.source)

    def always_same(self) -> bool:
        """Whether a record gives the same sample in every epoch."""
        return self.vis_processor.always_same() and self.text_processor.always_same()

    def __getitem__(self, draw: int) -> dict[str, Any]:
        """The sample at an index; BadSampleError unless bad samples are to be skipped."""
        index, epoch = int(draw), draw.epoch if isinstance(draw, Draw) else 0
        skipped: list[str] = []
        for offset in range(min(_MOST_NEIGHBOURS, len(self))):
            place = (index + offset) % len(self)
            try:
                record = self.source.read(place)
                if reason := self.check(record):
                    raise BadSampleError(f"{self.source.where(place)}: {reason}")
                return {**self.sample(record, place, epoch), "skipped": skipped}
            except BadSampleError as error:
                if not self.skip_bad:
                    raise
                skipped.append(str(error))
            # In an evaluation a neighbour would count twice.
            if not self.is_train:
                return {"skipped": skipped}
        raise BadSampleError(f"{len(skipped)} samples in a row are bad, the first: {skipped[0]}")

    def sample(self, record: Record, index: int, epoch: int) -> dict[str, Any]:
        """What a batch holds of one record."""
        raise NotImplementedError

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch from samples."""
        raise NotImplementedError

    def process_image(self, record: Record, index: int, epoch: int) -> Any:
        """The processed image; random changes depend on (seed, epoch, index) alone, not on the process.

        A tuple, this image last, if the record has earlier ones.
        """
        # The loader's workers share out the samples in ways that depend on their number, so no generator may run on
        # from one sample to the next.
        generator = getattr(self.vis_processor, "random", None)
        if isinstance(generator, random.Random):
            generator.seed(f"{self.seed} {epoch} {index}")
        images = [self.vis_processor(image) for image in (record.image, *record.earlier)]
        # Of a processor that changes nothing these are views into a file, which torch warns of.
        image, *earlier = [each.copy() if isinstance(each, np.ndarray) else each for each in images]
        return (*earlier, image) if earlier else image
