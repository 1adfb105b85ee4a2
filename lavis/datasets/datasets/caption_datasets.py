"""LAVIS's datasets of captioned images: annotations with `image` (a path below `vis_root`), `caption`, `image_id`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from PIL import Image

from lavis.common.errors import ConfigError
from lavis.datasets.datasets.base_dataset import BaseDataset
from lavis.datasets.records import UNREADABLE


class CaptionDataset(BaseDataset):
    """For training: `image` and `text_input`, the caption. `img_ids` numbers the images."""

    def __init__(self, vis_processor: Any, text_processor: Any, vis_root: str, ann_paths: Iterable[str]) -> None:
        super().__init__(vis_processor, text_processor, vis_root, ann_paths)
        # Several captions may belong to one image; numbers go by its first appearance, as in LAVIS.
        self.img_ids: dict[Any, int] = {}
        for annotation in self.annotation:
            self.img_ids.setdefault(annotation.get("image_id"), len(self.img_ids))

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One caption and its image."""
        caption = self.annotation[index].get("caption")
        if not isinstance(caption, str):
            raise ConfigError(f"annotation {index} has no text `caption`, but {caption!r}")
        return {"image": self.image(index), "text_input": self.text_processor(caption)}

    def image(self, index: int) -> Any:
        """The image of an annotation, processed; ConfigError names the file if it cannot be read."""
        name = self.annotation[index].get("image")
        if not isinstance(name, str):
            raise ConfigError(f"annotation {index} has no text `image`, but {name!r}")
        path = Path(self.vis_root or "", name)
        try:
            with Image.open(path) as file:
                image = file.convert("RGB")
        except UNREADABLE as error:
            raise ConfigError(f"image {path} cannot be read: {error}") from error
        return self.vis_processor(image)


class CaptionEvalDataset(CaptionDataset):
    """For evaluation: `image`, `image_id` and `instance_id`."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One image and what it is called; ConfigError for an annotation without `image_id`."""
        annotation = self.annotation[index]
        if annotation.get("image_id") is None:
            raise ConfigError(f"annotation {index} has no `image_id`, by which a caption is compared with its image's")
        return {
            "image": self.image(index),
            "image_id": annotation["image_id"],
            "instance_id": annotation["instance_id"],
        }
