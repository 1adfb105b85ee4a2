"""Dataset builders by name, as in LAVIS: `load_dataset("alfworld_cap")`."""

from __future__ import annotations

from collections.abc import Iterator

from omegaconf import OmegaConf

from lavis.common.registry import registry
from lavis.datasets.builders.alfworld_builder import AlfworldCapBuilder
from lavis.datasets.builders.base_dataset_builder import BaseDatasetBuilder, load_dataset_config
from lavis.datasets.builders.caption_builder import COCOCapBuilder
from lavis.datasets.datasets.base_dataset import BaseDataset

__all__ = [
    "AlfworldCapBuilder",
    "BaseDatasetBuilder",
    "COCOCapBuilder",
    "dataset_zoo",
    "load_dataset",
    "load_dataset_config",
]


def load_dataset(name: str, cfg_path: str | None = None, vis_path: str | None = None) -> dict[str, BaseDataset]:
    """The datasets of the builder `name`, by split, with its defaults or those of a yaml; `vis_path`: the images."""
    builder_class = registry.get_builder_class(name)
    config = load_dataset_config(cfg_path or builder_class.default_config_path())
    if vis_path is not None:
        OmegaConf.update(config, "build_info.images.storage", vis_path)
    return builder_class(config).build_datasets()


class DatasetZoo:
    """Which datasets there are, with the types of their defaults."""

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        for name in registry.list_datasets():
            yield name, list(registry.get_builder_class(name).DATASET_CONFIG_DICT)

    def get_names(self) -> list[str]:
        """Names of all datasets."""
        return registry.list_datasets()


dataset_zoo = DatasetZoo()
