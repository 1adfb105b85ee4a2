"""The base class of dataset builders: from a `datasets.<name>` section to one dataset for each split."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lavis.common.config import load_yaml, plain
from lavis.common.dist_utils import barrier, is_main_process
from lavis.common.errors import ConfigError, unknown
from lavis.common.registry import registry
from lavis.datasets.builders.storage import check_annotations
from lavis.datasets.datasets.base_dataset import BaseDataset
from lavis.processors import BaseProcessor, processor_of

TRAIN_SPLIT = "train"


class BaseDatasetBuilder:
    """Builds the datasets of one section; subclasses name their classes and defaults and open their sources.

    `splits` are those to open, None: all. `vis_processors` and `text_processors` ("train", "eval") serve where the
    section names none: the model's own. As in LAVIS, "train" processors go with the split `train` alone.
    """

    train_dataset_cls: type[BaseDataset]
    eval_dataset_cls: type[BaseDataset]
    DATASET_CONFIG_DICT: Mapping[str, str] = {}

    def __init__(
        self,
        cfg: DictConfig | None = None,
        *,
        splits: Collection[str] | None = None,
        vis_processors: Mapping[str, BaseProcessor] | None = None,
        text_processors: Mapping[str, BaseProcessor] | None = None,
        skip_bad: int = 0,
        seed: int = 0,
    ) -> None:
        self.config = load_dataset_config(self.default_config_path()) if cfg is None else cfg
        if cfg is not None and self.DATASET_CONFIG_DICT:
            defaults = load_dataset_config(self.default_config_path(cfg.get("type", "default")))
            refuse_unknown_keys(cfg, [*defaults, "type", "vis_processor", "text_processor"])
        self.splits = splits
        self.vis_processors = dict(vis_processors or {"train": BaseProcessor(), "eval": BaseProcessor()})
        self.text_processors = dict(text_processors or {"train": BaseProcessor(), "eval": BaseProcessor()})
        self.skip_bad = skip_bad
        self.seed = seed

    @classmethod
    def default_config_path(cls, type: str = "default") -> str:
        """Path of the defaults called `type`; ConfigError for an unknown one."""
        if type not in cls.DATASET_CONFIG_DICT:
            raise ConfigError(unknown(f"type of defaults of {cls.__name__}", type, cls.DATASET_CONFIG_DICT))
        return str(Path(registry.get_path("library_root")) / cls.DATASET_CONFIG_DICT[type])

    def build_datasets(self) -> dict[str, BaseDataset]:
        """One dataset for each wanted split of `annotations`; rank 0 first, so that files are indexed once."""
        datasets = self.build() if is_main_process() else {}
        barrier()
        return datasets or self.build()

    def build_processors(self) -> None:
        """Processors that the section names itself."""
        for processors, key in ((self.vis_processors, "vis_processor"), (self.text_processors, "text_processor")):
            for phase, settings in (self.config.get(key) or {}).items():
                processors[phase] = processor_of(settings, f"{key}.{phase}")

    def build(self) -> dict[str, BaseDataset]:
        """The datasets, in this process."""
        self.build_processors()
        wanted = {
            split: info for split, info in self.annotations().items() if self.splits is None or split in self.splits
        }
        return {split: self.build_split(split, info) for split, info in wanted.items()}

    def annotations(self) -> dict[str, Any]:
        """`build_info.annotations`: what to open for each split, those with neither storage nor url left out."""
        given = plain((self.config.get("build_info") or {}).get("annotations") or {})
        check_annotations(given)
        return {split: info for split, info in given.items() if info and (info.get("storage") or info.get("url"))}

    def build_split(self, split: str, info: Mapping[str, Any]) -> BaseDataset:
        """The dataset of one split."""
        raise NotImplementedError


def refuse_unknown_keys(config: DictConfig, known: Sequence[str]) -> None:
    """ConfigError names a key of a dataset's section that has no meaning, and the nearest one."""
    for key in config:
        if key not in known:
            raise ConfigError(unknown("key of a dataset's section", str(key), known))


def load_dataset_config(path: str) -> DictConfig:
    """The one section under `datasets:` in a yaml file."""
    sections = load_yaml(path).datasets
    return sections[next(iter(sections))]
