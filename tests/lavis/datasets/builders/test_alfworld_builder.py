"""From a yaml section to datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from lavis.common.errors import ConfigError
from lavis.common.registry import registry
from lavis.datasets.builders import AlfworldCapBuilder, dataset_zoo, load_dataset
from tests.file_server import FileServer


@pytest.fixture
def server() -> Iterator[FileServer]:
    with FileServer() as running:
        yield running


def storage(given: object):
    return [str(part) for part in given] if isinstance(given, list) else str(given)


def section(**annotations: object):
    config = OmegaConf.load(AlfworldCapBuilder.default_config_path()).datasets.alfworld_cap
    for split, given in annotations.items():
        config.build_info.annotations[split] = given if isinstance(given, dict) else {"storage": storage(given)}
    return config


def build(**annotations: object):
    return AlfworldCapBuilder(section(**annotations)).build_datasets()


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


def test_a_section_without_a_storage_has_no_splits() -> None:
    assert AlfworldCapBuilder(OmegaConf.create({"build_info": None})).build_datasets() == {}


def test_empty_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="split val is empty: no sample in"):
        build(val=tmp_path)


def test_a_key_that_nobody_reads_is_named() -> None:
    config = OmegaConf.load(AlfworldCapBuilder.default_config_path()).datasets.alfworld_cap
    with pytest.raises(ValueError, match="unknown key .* 'blank_image': did you mean 'blank_images'"):
        AlfworldCapBuilder(OmegaConf.merge(config, {"blank_image": True}))
    for given, message in (
        ({"build_info": {"annotation": {}}}, "build_info 'annotation': did you mean 'annotations'"),
        ({"build_info": {"image": {"storage": "x"}}}, "build_info 'image': did you mean 'images'"),
    ):
        with pytest.raises(ConfigError, match=message):
            AlfworldCapBuilder(OmegaConf.merge(config, given))
    wrong = AlfworldCapBuilder(OmegaConf.merge(config, {"vis_processor": {"trian": {"name": "blip_image_eval"}}}))
    with pytest.raises(ConfigError, match="phase of vis_processor 'trian': did you mean 'train'"):
        wrong.build_datasets()


def test_blank_images_is_true_or_false(annotation_folder: Path) -> None:
    with pytest.raises(ConfigError, match="blank_images: 'fasle' is neither true nor false"):
        AlfworldCapBuilder(OmegaConf.merge(section(train=annotation_folder), {"blank_images": "fasle"})).build()


def test_by_name_as_in_lavis(annotation_folder: Path, tmp_path: Path) -> None:
    assert registry.get_builder_class("alfworld_cap") is AlfworldCapBuilder
    assert "alfworld_cap" in dataset_zoo.get_names()
    path = tmp_path / "own.yaml"
    storage = annotation_folder / "annotations.json"
    path.write_text(f"datasets: {{alfworld_cap: {{build_info: {{annotations: {{train: {{storage: {storage}}}}}}}}}}}")
    assert len(load_dataset("alfworld_cap", str(path))["train"]) == 5


@pytest.mark.parametrize("content", ["run: {seed: 1}", "datasets: {}", "datasets: 5", "datasets: [alfworld_cap]"])
def test_a_file_without_a_dataset_is_refused(tmp_path: Path, content: str) -> None:
    """Each ended in an error of OmegaConf's or Python's own."""
    path = tmp_path / "own.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"own.yaml: it has no section below datasets:"):
        load_dataset("alfworld_cap", str(path))


def test_images_of_ones_own_for_a_file_that_names_none(annotation_folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "own.yaml"
    path.write_text("datasets: {alfworld_cap: {data_type: images}}")
    assert load_dataset("alfworld_cap", str(path), vis_path=str(annotation_folder)) == {}


def test_unknown_defaults() -> None:
    with pytest.raises(ValueError, match="AlfworldCapBuilder 'caption': choose one of default"):
        AlfworldCapBuilder.default_config_path(type="caption")


def test_only_the_wanted_splits_are_opened(shard_folder: Path, tmp_path: Path) -> None:
    builder = AlfworldCapBuilder(section(train=tmp_path / "absent.json", test=shard_folder), splits=["test"])
    assert list(builder.annotations()) == ["train", "test"] and list(builder.build_datasets()) == ["test"]


def test_annotations_from_the_web_are_downloaded_once(
    server: FileServer, annotation_folder: Path, capsys: pytest.CaptureFixture
) -> None:
    """As LAVIS's dataset files name them: a url, where to keep the file, and its MD5."""
    server.content = (annotation_folder / "annotations.json").read_bytes()
    own = {
        "url": server.url,
        "md5": hashlib.md5(server.content).hexdigest(),
        "storage": str(annotation_folder / "w.json"),
    }
    for _ in range(2):
        assert len(build(train=own)["train"]) == 5
    assert len(server.asked) == 1 and f"SHA-256 {hashlib.sha256(server.content).hexdigest()}" in capsys.readouterr().out
    config = section(train={"url": server.url})  # without a storage: in the cache
    config.build_info.images.storage = str(annotation_folder)
    assert AlfworldCapBuilder(config).build_datasets()["train"][2]["text_output"] == "take apple 1 from fridge 1"
    assert len(server.asked) == 2


def test_a_url_may_be_a_path_of_this_machine(annotation_folder: Path) -> None:
    """The original's documentation writes it so."""
    assert len(build(train={"url": str(annotation_folder / "annotations.json")})["train"]) == 5


def test_a_download_that_is_no_annotation_file_says_how_to_fix_it(server: FileServer, tmp_path: Path) -> None:
    server.content = b"<html>sign in</html>"
    with pytest.raises(ValueError, match=f"w.json is not a JSON list .*; delete it, and {server.url} is downloaded"):
        build(train={"url": server.url, "storage": str(tmp_path / "w.json")})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"storag": "x"}, r"unknown key 'build_info.annotations.train.storag': did you mean '.*train.storage'"),
        ({"url": ["https://a.b/1", "https://a.b/2"]}, r"annotations.train.url: \[.*\] is not a path or an address"),
        ({"url": "https://a.b/1", "storage": "."}, "is a folder: beside a url, storage names the file"),
        ({"storage": 7}, "annotations.train.storage: 7 is not a path or an address"),
        ({"url": "nowhere.json"}, "no annotation file nowhere.json"),
    ],
)
def test_annotations_that_cannot_be_used(given: dict, message: str) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build(train=given)


def test_annotations_that_are_no_section() -> None:
    config = section()
    config.build_info.annotations = {"train": "train.json"}
    with pytest.raises(ValueError, match="annotations.train: 'train.json' is no section: write .*train.storage"):
        AlfworldCapBuilder(config).build_datasets()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"build_info": "foo"}, "^build_info: 'foo' is no section .*, such as build_info.annotations.train.storage$"),
        ({"build_info": {"annotations": "foo"}}, "^build_info.annotations: 'foo' is no section .*train.storage$"),
        (
            {"build_info": {"images": "folder"}},
            "^build_info.images: 'folder' is no section .*build_info.images.storage$",
        ),
        ({"build_info": {"images": {"storage": ["a"]}}}, r"^build_info.images.storage: \['a'\] is not a path$"),
        ({"vis_processor": "blip_image_eval"}, "^vis_processor: 'blip_image_eval' is no section .*, such as vis_proc"),
        ({"text_processor": ["blip_caption"]}, r"^text_processor: \['blip_caption'\] is no section"),
    ],
)
def test_single_values_where_sections_should_be(annotation_folder: Path, given: dict, message: str) -> None:
    config = OmegaConf.merge(section(train=annotation_folder / "annotations.json"), {"vis_processor": None})
    for key, value in given.items():
        for name, part in value.items() if isinstance(value, dict) else ():
            config[key][name] = part
        if not isinstance(value, dict):
            config[key] = value
    with pytest.raises(ConfigError, match=message):
        AlfworldCapBuilder(config).build_datasets()
