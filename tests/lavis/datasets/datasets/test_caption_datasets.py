"""Captioned images, from LAVIS's files by LAVIS's builder."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from PIL import Image

from lavis.common.errors import ConfigError
from lavis.common.registry import registry
from lavis.datasets.builders import COCOCapBuilder


@pytest.fixture
def built(tmp_path: Path) -> dict:
    """The datasets of two captions of one image and of one caption of another."""
    for name in ("a", "b"):
        Image.new("L", (6, 4), 200).save(tmp_path / f"{name}.png")
    rows = [{"image": f"{name}.png", "caption": "A Mug!", "image_id": f"coco_{name}"} for name in ("a", "a", "b")]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    processors = {"train": {"name": "blip_image_eval", "image_size": 8}, "eval": {"name": "blip_image_eval"}}
    section = {
        "build_info": {
            "annotations": {split: {"storage": str(tmp_path / "rows.json")} for split in ("train", "val")},
            "images": {"storage": str(tmp_path)},
        },
        "vis_processor": processors,
        "text_processor": {"train": {"name": "blip_caption", "prompt": "a picture of "}},
    }
    return COCOCapBuilder(OmegaConf.create(section)).build_datasets()


def test_training_and_evaluation(built: dict) -> None:
    assert registry.get_builder_class("coco_caption") is COCOCapBuilder
    batch = built["train"].collater([built["train"][number] for number in range(3)])
    assert batch["image"].shape == (3, 3, 8, 8) and batch["text_input"] == ["a picture of a mug"] * 3
    assert built["train"].img_ids == {"coco_a": 0, "coco_b": 1}
    one = built["val"][2]
    assert (one["image_id"], one["instance_id"], one["image"].shape) == ("coco_b", "2", (3, 384, 384))


def test_an_annotation_without_caption_image_or_its_id(built: dict) -> None:
    del built["train"].annotation[1]["caption"]
    with pytest.raises(ConfigError, match="annotation 1 has no text `caption`"):
        built["train"][1]
    del built["val"].annotation[1]["image"]
    with pytest.raises(ConfigError, match="annotation 1 has no text `image`, but None"):
        built["val"][1]
    del built["val"].annotation[2]["image_id"]
    with pytest.raises(ConfigError, match="annotation 2 has no `image_id`"):
        built["val"][2]


def test_an_image_that_is_not_there(built: dict, tmp_path: Path) -> None:
    (tmp_path / "a.png").unlink()
    with pytest.raises(ConfigError, match="image .*a.png cannot be read: .*No such file"):
        built["train"][0]
