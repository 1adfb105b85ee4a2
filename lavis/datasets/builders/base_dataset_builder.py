"""The base class of dataset builders: from a `datasets.<name>` section to one dataset for each split."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig

from lavis.common.config import load_yaml, plain, require_section
from lavis.common.dist_utils import barrier, is_main_process
from lavis.common.errors import ConfigError, unknown
from lavis.common.utils import get_abs_path, get_cache_path
from lavis.datasets.builders.storage import below, check_annotations, located
from lavis.datasets.datasets.base_dataset import BaseDataset
from lavis.processors import BaseProcessor, processor_of

TRAIN_SPLIT = "train"


class BaseDatasetBuilder:
    """Builds the datasets of one section; a subclass names its classes, and the yaml of its defaults.

    `cfg` is the section, the path of a yaml with one, or None for the defaults. `run` is what a run adds (`configure`).
    ConfigError names a key of the section that has no meaning, and the nearest one that has.
    As in LAVIS, "train" processors go with the split `train` alone, and of a relative path that is not in the current
    folder the rest is below the cache.
    """

    train_dataset_cls: type[BaseDataset] | None = None
    eval_dataset_cls: type[BaseDataset] | None = None
    DATASET_CONFIG_DICT: Mapping[str, str] = {}

    def __init__(self, cfg: DictConfig | str | None = None, **run: Any) -> None:
        self.config = cfg if isinstance(cfg, DictConfig) else load_dataset_config(cfg or self.default_config_path())
        self.data_type = str(self.config.get("data_type", "images"))
        require_section("build_info", self.config.get("build_info"), "annotations.train.storage")
        if cfg is not None and self.DATASET_CONFIG_DICT:
            defaults = load_dataset_config(self.default_config_path(self.config.get("type", "default")))
            known = {
                "section": [*defaults, "type", "data_type", "vis_processor", "text_processor"],
                "build_info": [*(defaults.get("build_info") or {}), "annotations", self.data_type],
            }
            # A misspelt key would otherwise be ignored in silence.
            for where, given in (("section", self.config), ("build_info", self.config.get("build_info") or {})):
                for key in given:
                    if key not in known[where]:
                        raise ConfigError(unknown(f"key of a dataset's {where}", str(key), known[where]))
        self.configure(**run)

    def configure(
        self,
        *,
        splits: Collection[str] | None = None,
        vis_processors: Mapping[str, BaseProcessor] | None = None,
        skip_bad: int = 0,
        seed: int = 0,
    ) -> None:
        """What a run says of its datasets: the splits to open (None: all), processors, bad samples, seed.

        `vis_processors` ("train", "eval") serve if the section names none: the model's own.
        """
        self.splits = splits
        self.vis_processors = dict(vis_processors or {"train": BaseProcessor(), "eval": BaseProcessor()})
        self.text_processors = {"train": BaseProcessor(), "eval": BaseProcessor()}
        self.skip_bad = skip_bad
        self.seed = seed

    @classmethod
    def default_config_path(cls, type: str = "default") -> str:
        """Path of the defaults called `type`; ConfigError for an unknown one."""
        if type not in cls.DATASET_CONFIG_DICT:
            raise ConfigError(unknown(f"type of defaults of {cls.__name__}", type, cls.DATASET_CONFIG_DICT))
        return get_abs_path(cls.DATASET_CONFIG_DICT[type])

    def build_datasets(self) -> dict[str, BaseDataset]:
        """One dataset for each wanted split of `annotations`; rank 0 first, so that files are indexed once."""
        # The first process builds, and writes indices; the others wait, and then find these.
        datasets = {}
        if is_main_process():
            self._download_data()
            datasets = self.build()
        barrier()
        return datasets or self.build()

    def _download_data(self) -> None:
        """For builders that fetch files in a way of their own, on the first process; a `url` needs none of this."""

    def build_processors(self) -> None:
        """Processors that the section names itself."""
        # Over the model's own, which `configure` was given: a section may name one phase alone.
        for processors, key in ((self.vis_processors, "vis_processor"), (self.text_processors, "text_processor")):
            section = self.config.get(key)
            require_section(key, section, "train.name=blip_image_eval")
            for phase, settings in (section or {}).items():
                if phase not in ("train", "eval"):
                    raise ConfigError(unknown(f"phase of {key}", str(phase), ("train", "eval")))
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
        section = (self.config.get("build_info") or {}).get("annotations")
        require_section("build_info.annotations", section, "train.storage")
        given = plain(section or {})
        check_annotations(given)
        return {split: info for split, info in given.items() if info and (info.get("storage") or info.get("url"))}

    def images_folder(self, data_type: str) -> str:
        """`build_info.<data_type>.storage`; empty if the section names none."""
        key, section = f"build_info.{data_type}", self.config.build_info.get(data_type)
        require_section(key, section, "storage")
        storage = (section or {}).get("storage") or ""
        if not isinstance(storage, str):
            raise ConfigError(f"{key}.storage: {storage!r} is not a path")
        return storage

    def build_split(self, split: str, info: Mapping[str, Any]) -> BaseDataset:
        """The dataset of one split: its class with LAVIS's four arguments. ConfigError if there is no class for it."""
        phase, is_train = ("train", True) if split == TRAIN_SPLIT else ("eval", False)
        kind = self.train_dataset_cls if is_train else self.eval_dataset_cls
        if kind is None:
            raise ConfigError(f"{type(self).__name__} has no {phase}_dataset_cls, which the split {split} needs")
        # Images lie below one folder, which the annotations' own paths continue.
        storage = self.images_folder(self.data_type)
        return kind(
            vis_processor=self.vis_processors[phase],
            text_processor=self.text_processors[phase],
            ann_paths=[str(path) for path in located(info, Path(get_cache_path("")))],
            vis_root=str(below(storage, Path(get_cache_path("")))) if storage else "",
        )


def load_dataset_config(path: str) -> DictConfig:
    """The one section under `datasets:` in a yaml file; ConfigError if there is none."""
    sections = load_yaml(path).get("datasets")
    if not sections or not isinstance(sections, DictConfig):
        raise ConfigError(f"{path}: it has no section below datasets: (docs/offline.md)")
    return sections[next(iter(sections))]
