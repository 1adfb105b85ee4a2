"""`alfworld_cap`: ALFWorld transitions from LAVIS annotation files with images, or from folders of shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lavis.common.errors import ConfigError
from lavis.common.registry import registry
from lavis.datasets.annotations import AnnotationError, AnnotationFile
from lavis.datasets.builders.base_dataset_builder import TRAIN_SPLIT, BaseDatasetBuilder
from lavis.datasets.builders.storage import located
from lavis.datasets.datasets.alfworld_dataset import AlfworldDataset
from lavis.datasets.records import Source, SourceChain
from lavis.datasets.shards import ShardFolder

ANNOTATION_NAME = "annotations.json"  # what `xrl_alignment.lab.collect --format lavis` writes


@registry.register_builder("alfworld_cap")
class AlfworldCapBuilder(BaseDatasetBuilder):
    """For each split `build_info.annotations.<split>.storage` is a JSON file, a folder that collect wrote, or a list.

    A list of files and folders is read as one sequence.

    With `…<split>.url` a JSON file is downloaded first (`storage.located`). Images of a JSON file lie under
    `build_info.images.storage`, by default beside the file.
    """

    train_dataset_cls: type[AlfworldDataset] = AlfworldDataset
    eval_dataset_cls: type[AlfworldDataset] = AlfworldDataset
    DATASET_CONFIG_DICT = {"default": "configs/datasets/alfworld/defaults_cap.yaml"}

    def build_split(self, split: str, info: Mapping[str, Any]) -> AlfworldDataset:
        """The dataset of one split; ConfigError if it is empty."""
        is_train = split == TRAIN_SPLIT
        phase = "train" if is_train else "eval"
        paths = located(info)
        try:
            sources = [self.open_source(path) for path in paths]
        except AnnotationError as error:
            if not info.get("url"):
                raise
            raise AnnotationError(f"{error}; delete it, and {info['url']} is downloaded again") from error
        source = sources[0] if len(sources) == 1 else SourceChain(sources)
        if not len(source):
            raise ConfigError(
                f"datasets.alfworld_cap: split {split} is empty: no sample in {', '.join(map(str, paths))}"
            )
        return (self.train_dataset_cls if is_train else self.eval_dataset_cls)(
            source=source,
            vis_processor=self.vis_processors[phase],
            text_processor=self.text_processors[phase],
            is_train=is_train,
            skip_bad=self.skip_bad,
            seed=self.seed,
        )

    def open_source(self, storage: Path) -> Source:
        """The records in a JSON file or in a folder."""
        blank = self.config.get("blank_images", False)
        if not isinstance(blank, bool):
            raise ConfigError(f"datasets.alfworld_cap.blank_images: {blank!r} is neither true nor false")
        # `collect` fills a folder either way; only the LAVIS format has the annotation file.
        if storage.is_dir() and not (storage / ANNOTATION_NAME).is_file():
            return ShardFolder(storage, blank_images=blank, skip_bad=self.skip_bad)
        path = storage / ANNOTATION_NAME if storage.is_dir() else storage
        images = self.images_folder("images") or path.parent
        return AnnotationFile(path, Path(images).expanduser(), skip_bad=self.skip_bad, blank_images=blank)
