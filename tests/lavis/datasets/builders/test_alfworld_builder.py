"""From a yaml section to datasets."""

from __future__ import annotations

from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lavis.common.registry import registry
from lavis.datasets.builders import AlfworldCapBuilder, dataset_zoo, load_dataset


def build(**storages: object):
    config = OmegaConf.load(AlfworldCapBuilder.default_config_path()).datasets.alfworld_cap
    for split, storage in storages.items():
        config.build_info.annotations[split].storage = (
            [str(s) for s in storage] if isinstance(storage, list) else str(storage)
        )
    return AlfworldCapBuilder(config).build_datasets()


def test_splits_from_shards_and_from_json(shard_folder: Path, annotation_folder: Path) -> None:
    built = build(train=shard_folder, val=annotation_folder, test=annotation_folder / "annotations.json")
    assert {split: len(data) for split, data in built.items()} == {"train": 11, "val": 5, "test": 5}
    assert [data.is_train for data in built.values()] == [True, False, False]
    assert built["val"][2]["text_output"] == "take apple 1 from fridge 1"


def test_several_storages_are_one_sequence(shard_folder: Path, annotation_folder: Path) -> None:
    built = build(train=[shard_folder, annotation_folder], val=shard_folder)["train"]
    assert len(built) == 16
    assert built[3]["text_input"] == build(train=shard_folder)["train"][3]["text_input"]
    assert [built.source.part(index) for index in (10, 11)] == [0, 1]
    assert built[13]["text_output"] == "take apple 1 from fridge 1"
    assert built.source.place(10)[0].startswith(str(shard_folder)) and built.source.where(11).startswith(
        str(annotation_folder)
    )


def test_empty_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split val is empty: no sample in"):
        build(val=tmp_path)


def test_a_key_that_nobody_reads_is_named() -> None:
    config = OmegaConf.load(AlfworldCapBuilder.default_config_path()).datasets.alfworld_cap
    with pytest.raises(ValueError, match="unknown key .* 'blank_image': did you mean 'blank_images'"):
        AlfworldCapBuilder(OmegaConf.merge(config, {"blank_image": True}))


def test_by_name_as_in_lavis(annotation_folder: Path, tmp_path: Path) -> None:
    assert registry.get_builder_class("alfworld_cap") is AlfworldCapBuilder
    assert "alfworld_cap" in dataset_zoo.get_names()
    path = tmp_path / "own.yaml"
    storage = annotation_folder / "annotations.json"
    path.write_text(f"datasets: {{alfworld_cap: {{build_info: {{annotations: {{train: {{storage: {storage}}}}}}}}}}}")
    assert len(load_dataset("alfworld_cap", str(path))["train"]) == 5


def test_unknown_defaults() -> None:
    with pytest.raises(ValueError, match="AlfworldCapBuilder 'caption': choose one of default"):
        AlfworldCapBuilder.default_config_path(type="caption")
