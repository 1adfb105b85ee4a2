"""Small helpers around batches and splits (LAVIS's names)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lavis.common.errors import ConfigError
from lavis.datasets.builders.base_dataset_builder import TRAIN_SPLIT
from lavis.datasets.datasets.base_dataset import ConcatDataset
from lavis.datasets.datasets.record_dataset import RecordDataset


def to_device(samples: Any, device: torch.device | str) -> Any:
    """`samples` with every tensor in it on `device`; tensors may lie in dictionaries and lists."""
    if isinstance(samples, torch.Tensor):
        # The copy goes on while the host does; it needs page-locked memory (`RunData.train_batches`), else it waits.
        return samples.to(device, non_blocking=True)
    if isinstance(samples, dict):
        return {key: to_device(value, device) for key, value in samples.items()}
    if isinstance(samples, list):
        return [to_device(value, device) for value in samples]
    return samples


def prepare_sample(samples: Any, cuda_enabled: bool = True) -> Any:
    """As LAVIS's tasks call it: the batch on this process's GPU, if that is wanted and there is one."""
    return to_device(samples, "cuda") if cuda_enabled and torch.cuda.is_available() else samples


def datasets_by_split(datasets: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """From {dataset: {split: …}} to {split: …}; training sets of several datasets are joined, as in LAVIS.

    ConfigError if another split comes from two datasets, or if a dataset in a join is one of stored transitions: such a
    dataset takes a list of storages itself, and says of each sample where it lies.
    """
    by_split: dict[str, Any] = {}
    for name, splits in datasets.items():
        for split, dataset in splits.items():
            known = by_split.get(split)
            if known is None:
                by_split[split] = dataset
                continue
            if split != TRAIN_SPLIT or isinstance(known, RecordDataset) or isinstance(dataset, RecordDataset):
                raise ConfigError(f"split {split} comes from two datasets, one of them {name}: keep one of them")
            parts = known.datasets if isinstance(known, ConcatDataset) else [known]
            by_split[split] = ConcatDataset([*parts, dataset])
    return by_split
