"""Small helpers around batches and splits (LAVIS's names)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from lavis.common.errors import ConfigError
from lavis.datasets.datasets.base_dataset import BaseDataset


def prepare_sample(samples: dict[str, Any], device: torch.device | str) -> dict[str, Any]:
    """The batch with its tensors on `device`."""
    return {
        key: value.to(device, non_blocking=True) if isinstance(value, torch.Tensor) else value
        for key, value in samples.items()
    }


def datasets_by_split(datasets: Mapping[str, Mapping[str, BaseDataset]]) -> dict[str, BaseDataset]:
    """From {dataset: {split: …}} to {split: …}; ConfigError where a split comes from two datasets."""
    by_split: dict[str, BaseDataset] = {}
    for name, splits in datasets.items():
        for split, dataset in splits.items():
            if split in by_split:
                raise ConfigError(f"split {split} comes from two datasets, one of them {name}: keep one of them")
            by_split[split] = dataset
    return by_split
