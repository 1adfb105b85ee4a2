"""LAVIS's base class of datasets: annotation files, batches, datasets one after another."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch

from lavis.common.errors import ConfigError, MissingFileError
from lavis.datasets.data_utils import datasets_by_split, prepare_sample, to_device
from lavis.datasets.datasets.base_dataset import BaseDataset, ConcatDataset, Draw


class Rows(BaseDataset):
    """Each annotation with a tensor."""

    def __getitem__(self, index: int) -> dict:
        return {**self.annotation[index], "tensor": torch.full((2,), float(index))}


def write(path: Path, content: object) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(path)


def test_annotations_of_several_files_are_numbered(tmp_path: Path) -> None:
    listed = write(tmp_path / "a.json", [{"text": "one"}, {"text": "two"}])
    lines = write(tmp_path / "b.jsonl", '{"text": "three"}\n\n{"text": "four"}\n')
    named = write(tmp_path / "c.json", {"x": {"text": "five"}, "y": 6})
    data = Rows("image processor", "text processor", "images", [listed, lines, named])
    assert (data.vis_processor, data.text_processor, data.vis_root, len(data)) == (
        *("image processor", "text processor", "images"),
        6,
    )
    assert [row.get("text") for row in data.annotation] == ["one", "two", "three", "four", "five", None]
    assert [row["instance_id"] for row in data.annotation] == list("012345")
    assert [(row["sample_id"], row.get("data")) for row in data.annotation[4:]] == [("x", None), ("y", 6)]
    data.set_processors(vis_processor=1, text_processor=2)
    assert (data.vis_processor, data.text_processor) == (1, 2)


def test_a_line_ends_at_its_newline_alone(tmp_path: Path) -> None:
    rows = [{"text": "one\u2028two\u0085three"}, {"text": "four"}]
    content = "\r\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    assert [row["text"] for row in Rows(ann_paths=[write(tmp_path / "a.jsonl", content)]).annotation] == [
        row["text"] for row in rows
    ]


def test_a_batch_without_samples_that_are_none(tmp_path: Path) -> None:
    data = Rows(ann_paths=[write(tmp_path / "a.json", [{"n": 1}, {"n": 2}])])
    batch = data.collater([data[0], None, data[1]])
    assert batch["n"].tolist() == [1, 2] and batch["instance_id"] == ["0", "1"] and batch["tensor"].shape == (2, 2)
    assert data.collater([None]) == {}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "a.json is no JSON file of annotations"),
        ("a.json", "[1, 2]", "a.json is no list of annotations"),
        ("a.csv", "x,y", "a.csv is no JSON file of annotations"),
        ("a.jsonl", '{"x": 1}\nx', "a.jsonl is no JSON file of annotations"),
    ],
)
def test_files_that_hold_no_annotations(tmp_path: Path, name: str, content: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BaseDataset(ann_paths=[write(tmp_path / name, content)])


def test_no_file_and_no_samples(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match="no annotation file .*a.json: set build_info.annotations"):
        BaseDataset(ann_paths=[str(tmp_path / "a.json")])
    with pytest.raises(NotImplementedError, match="BaseDataset does not say in __getitem__"):
        BaseDataset(ann_paths=[write(tmp_path / "b.json", [{}])])[0]


def test_datasets_one_after_another_share_their_keys(tmp_path: Path) -> None:
    first = Rows(ann_paths=[write(tmp_path / "a.json", [{"n": 1, "first": 1}])])
    second = Rows(ann_paths=[write(tmp_path / "b.json", [{"n": 2, "second": 1}])])
    joined = ConcatDataset([first, second])
    batch = joined.collater([joined[0], joined[Draw(1, epoch=3)]])
    assert set(batch) == {"n", "instance_id", "tensor"} and batch["n"].tolist() == [1, 2]


def test_training_sets_are_joined_others_are_not() -> None:
    sets = [BaseDataset(), BaseDataset(), BaseDataset()]
    joined = datasets_by_split({str(number): {"train": each} for number, each in enumerate(sets)})["train"]
    assert isinstance(joined, ConcatDataset) and joined.datasets == sets
    with pytest.raises(ConfigError, match="split val comes from two datasets, one of them b"):
        datasets_by_split({"a": {"val": sets[0]}, "b": {"val": sets[1]}})


def test_a_draw_is_a_number_that_knows_its_epoch() -> None:
    draw = Draw(2, epoch=5)
    assert draw == 2 and "abc"[draw] == "c" and copy.deepcopy(draw).epoch == 5


def test_tensors_go_to_a_device_wherever_they_lie() -> None:
    samples = {"a": torch.zeros(1), "b": {"c": [torch.zeros(1), "text"]}, "n": 1}
    moved = to_device(samples, "meta")
    assert moved["a"].is_meta and moved["b"]["c"][0].is_meta and (moved["b"]["c"][1], moved["n"]) == ("text", 1)
    assert prepare_sample(samples, cuda_enabled=False) is samples
