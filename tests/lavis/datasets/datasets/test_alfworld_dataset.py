"""Samples, batches, and samples that cannot be used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

from lavis.datasets.datasets.alfworld_dataset import AlfworldDataset
from lavis.datasets.datasets.base_dataset import Draw
from lavis.datasets.records import BadSampleError, Record
from lavis.datasets.shards import ShardFolder
from lavis.processors import BaseProcessor, Blip2ImageTrainProcessor, BlipImageEvalProcessor


def dataset(folder: Path, **options) -> AlfworldDataset:
    processor = options.pop("vis_processor", BlipImageEvalProcessor(image_size=112))
    return AlfworldDataset(
        source=ShardFolder(folder), vis_processor=processor, text_processor=BaseProcessor(), **options
    )


def test_batch(shard_folder: Path) -> None:
    data = dataset(shard_folder)
    batch = data.collater([data[0], data[Draw(5, epoch=2)]])
    assert batch["image"].shape == (2, 3, 112, 112)
    assert batch["image"].dtype == torch.float32
    assert batch["instance_id"] == [0, 5]
    assert batch["prompt"] == batch["text_input"] == ["Task 0.\n> ", "Task 1.\n> "]
    assert batch["text_output_pos"] == ["go to fridge 1", "open fridge 1"]
    assert batch["text_output_neg"] == ["open fridge 1", "take apple 1 from fridge 1"]
    assert batch["skipped"] == []


def test_images_that_no_tensor_holds_come_as_a_list(shard_folder: Path) -> None:
    pictures = [Image.new("RGB", (8, 8)), Image.new("RGB", (8, 9))]
    for given in (pictures, [np.asarray(picture) for picture in pictures]):
        left = iter(given)
        data = dataset(shard_folder, vis_processor=lambda image, left=left: next(left))
        batch = data.collater([data[0], data[1]])
        assert all(np.array_equal(one, other) for one, other in zip(batch["image"], given, strict=True))


def test_random_changes_depend_on_epoch_and_index_alone(shard_folder: Path) -> None:
    noise = torch.arange(112 * 112 * 3, dtype=torch.int64).view(112, 112, 3).to(torch.uint8).numpy()
    images = []
    for epoch in (0, 0, 1):
        data = dataset(shard_folder, vis_processor=Blip2ImageTrainProcessor(image_size=112))
        images.append(data.process_image(Record(noise, "", ""), 3, epoch))
    assert torch.equal(images[0], images[1])
    assert not torch.equal(images[0], images[2])


def refusing(*indices: int):
    return lambda record: "too ugly" if record.image[0, 0, 0] in indices else ""


def test_bad_sample_stops_by_default(shard_folder: Path) -> None:
    data = dataset(shard_folder)
    data.check = refusing(5)
    with pytest.raises(BadSampleError, match=r"round000_env0001_steps003.h5, step 1: too ugly"):
        data[5]


def test_bad_samples_are_replaced_in_training_and_left_out_in_evaluation(shard_folder: Path) -> None:
    data = dataset(shard_folder, is_train=True, skip_bad=2)
    data.check = refusing(5, 6)
    assert (data[5]["instance_id"], len(data[5]["skipped"])) == (7, 2)
    data.is_train = False
    batch = data.collater([data[4], data[5]])
    assert (batch["instance_id"], len(batch["skipped"])) == ([4], 1)
    assert data.collater([data[5]])["instance_id"] == []


def test_data_that_is_bad_throughout(shard_folder: Path) -> None:
    data = dataset(shard_folder, is_train=True, skip_bad=2)
    data.check = lambda record: "too ugly"
    with pytest.raises(BadSampleError, match="11 samples in a row are bad"):
        data[0]


def test_a_loaders_process_hands_on_the_message_alone(shard_folder: Path, tmp_path: Path) -> None:
    name = "round000_env0001_steps003.h5"
    (tmp_path / name).write_bytes((shard_folder / name).read_bytes()[:1000])
    data = dataset(tmp_path)
    with pytest.raises(BadSampleError) as error:
        next(iter(DataLoader(data, num_workers=1, collate_fn=data.collater, multiprocessing_context="fork")))
    assert str(error.value).startswith(f"shard {tmp_path / name} cannot be read: it has no index at its end")
    assert "\n" not in str(error.value)
