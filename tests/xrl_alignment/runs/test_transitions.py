"""Transitions in shards."""

import h5py
import numpy as np
import pytest

from tests.xrl_alignment.runs.stored import store, transition
from xrl_alignment.runs.transitions import read_transition, write_episode, write_shard


def test_a_shard_reads_back_what_was_written(tmp_path):
    name = store(tmp_path, 1, 12, range(3))
    assert name == "round001_env0012_steps003.h5"
    back, given = read_transition(tmp_path / name, 2), transition(2)
    assert (back.image == given.image).all() and back.image.dtype == np.uint8
    for field in ("text_input", "text_output", "text_output_neg", "executed", "feedback"):
        assert getattr(back, field) == getattr(given, field)
    with h5py.File(tmp_path / name) as file:
        assert file.attrs["game"] == "pick/12" and file["image"].dtype == np.uint8


def test_a_second_try_takes_the_place_of_one_of_another_length(tmp_path):
    others = [store(tmp_path, 1, 12, range(3)), store(tmp_path, 2, 1, range(3)), store(tmp_path, 1, 1, range(2))]
    for tries in (5, 1, 1):
        name = write_episode(tmp_path, 2, 1, [transition(n) for n in range(tries)], {"game": "pick/1"})
        assert name == f"round002_env0001_steps{tries:03d}.h5"
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted({others[0], others[2], name})


def test_a_shard_that_cannot_be_finished_leaves_nothing(tmp_path):
    with pytest.raises(ValueError, match=r"one shape, not \(8, 8, 3\) and \(9, 9, 3\)"):
        write_shard(tmp_path / "round000_env0000_steps002.h5", [transition(0), transition(1, side=9)], {})
    with pytest.raises(ValueError, match="length of at least 1"):
        write_shard(tmp_path / "round000_env0000_steps000.h5", [], {})
    assert list(tmp_path.iterdir()) == []
