"""LAVIS's base class of datasets: a list of annotations, read into memory, and processors of their images and texts.

The project's own transitions, which may be far larger than memory, are `record_dataset.RecordDataset`s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch.utils import data
from torch.utils.data import default_collate

from lavis.common.errors import ConfigError, MissingFileError


class Draw(int):
    """A sample's number with the epoch in which it is drawn: random changes to an image may depend on both.

    As a number it is what any dataset's `__getitem__` takes.
    """

    epoch: int

    def __new__(cls, sample: int, epoch: int = 0) -> Draw:
        """The sample numbered `sample`, in `epoch`."""
        draw = super().__new__(cls, sample)
        draw.epoch = epoch
        return draw


class BaseDataset(data.Dataset):
    """Annotations of JSON files (`ann_paths`) in `annotation`; subclasses say in `__getitem__` what a sample holds.

    A file holds a list of objects, an object of objects (their keys become `sample_id`), or one object a line
    (`.jsonl`). Every annotation gets an `instance_id`, its number as text. `vis_root` is the folder of images.
    """

    def __init__(
        self,
        vis_processor: Any = None,
        text_processor: Any = None,
        vis_root: str | None = None,
        ann_paths: Iterable[str] = (),
    ) -> None:
        self.vis_root = vis_root
        self.annotation: list[dict[str, Any]] = []
        for path in ann_paths:
            self.annotation.extend(read_annotations(Path(path)))
        self.vis_processor = vis_processor
        self.text_processor = text_processor
        self._add_instance_ids()

    def __len__(self) -> int:
        return len(self.annotation)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """What a batch holds of one annotation."""
        raise NotImplementedError(f"{type(self).__name__} does not say in __getitem__ what a sample is")

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch from samples, by torch's `default_collate`; a sample that is None is left out."""
        good = [sample for sample in samples if sample is not None]
        return default_collate(good) if good else {}

    def set_processors(self, vis_processor: Any, text_processor: Any) -> None:
        """Use these processors from now on."""
        self.vis_processor = vis_processor
        self.text_processor = text_processor

    def _add_instance_ids(self, key: str = "instance_id") -> None:
        for number, annotation in enumerate(self.annotation):
            annotation[key] = str(number)


class ConcatDataset(data.ConcatDataset):
    """Several datasets one after another; a batch holds the keys that all of its samples have, as in LAVIS."""

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """A batch, made by the first dataset's `collater`."""
        good = [sample for sample in samples if sample is not None]
        # `default_collate` takes the keys of the first sample and needs them in all others.
        shared = set.intersection(*(set(sample) for sample in good)) if good else set()
        first: Any = self.datasets[0]
        return first.collater([{key: sample[key] for key in sample if key in shared} for sample in good])


def read_annotations(path: Path) -> list[dict[str, Any]]:
    """The annotations of one file; MissingFileError, or ConfigError for a file that is not JSON of that form."""
    if not path.is_file():
        raise MissingFileError(f"no annotation file {path}: set build_info.annotations.<split>.storage (or .url)")
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            # `splitlines` would also cut at U+2028 and U+0085, which may stand in a JSON text as they are.
            found = [json.loads(line) for line in text.split("\n") if line.strip()]
        else:
            found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is no JSON file of annotations: {error}") from error
    if isinstance(found, dict):
        return [
            {"sample_id": key, **value} if isinstance(value, dict) else {"sample_id": key, "data": value}
            for key, value in found.items()
        ]
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise ConfigError(f"{path} is no list of annotations, each an object with keys such as `image` and `caption`")
    return found
