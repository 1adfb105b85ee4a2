"""Shards read through HDF5's low-level interface give what the writer wrote."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from lavis.datasets.records import BadSampleError
from lavis.datasets.shards import ShardFolder
from xrl_alignment.buffers import read_transition


def test_every_transition_as_the_buffer_reads_it(shard_folder: Path) -> None:
    source = ShardFolder(shard_folder)
    assert len(source) == 11
    for index in range(11):
        record, written = source.read(index), read_transition(*source.place(index))
        assert np.array_equal(record.image, written.image)
        assert (record.text_input, record.text_output) == (written.text_input, written.text_output)
        assert record.text_output_neg == written.text_output_neg
        assert record.image[0, 0, 0] == index
    assert source.read(5).game == "pick_heat_then_place_in_recep-Apple-None-Fridge-1/trial_T1"
    assert source.where(5).endswith("round000_env0001_steps003.h5, step 1")


def test_damaged_shard_is_named(tmp_path: Path, shard_folder: Path) -> None:
    data = (shard_folder / "round000_env0001_steps003.h5").read_bytes()
    (tmp_path / "round000_env0001_steps003.h5").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadSampleError, match=r"steps003.h5, step 0: the shard is damaged"):
        ShardFolder(tmp_path).read(0)


def test_shard_without_pictures(tmp_path: Path, shard_folder: Path) -> None:
    path = tmp_path / "round000_env0001_steps003.h5"
    path.write_bytes((shard_folder / path.name).read_bytes())
    with h5py.File(path, "a") as file:
        del file["images"]
    with pytest.raises(BadSampleError, match="has no pictures"):
        ShardFolder(tmp_path).read(0)
    assert not ShardFolder(tmp_path, blank_images=True).read(0).image.any()


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no folder of shards"):
        ShardFolder(tmp_path / "absent")
