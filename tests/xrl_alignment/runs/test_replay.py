"""Shards on disk and the index over them."""

import time
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest

from lavis.datasets.shards import ShardError
from tests.xrl_alignment.runs.stored import store, transition
from xrl_alignment.runs.replay import DPOReplayBuffer, ReplayBuffer
from xrl_alignment.runs.transitions import shard_name, write_shard


def test_samples_come_from_every_shard_alike(tmp_path):
    buffer = ReplayBuffer(tmp_path, seed=0)
    for env, numbers in enumerate(([0], range(1, 7), range(7, 10))):
        buffer.add_shard(store(tmp_path, 0, env, numbers))
    assert len(buffer) == 10
    drawn = [int(image[0, 0, 0]) for image in buffer.sample(400)["image"]]
    counts = np.bincount(drawn, minlength=10)
    assert counts.min() > 15 and counts.max() < 75  # 40 expected


def test_a_batch_has_the_fields_that_the_models_loss_reads(tmp_path):
    name = store(tmp_path, 0, 0, [5])
    batches = []
    for kind in (ReplayBuffer, DPOReplayBuffer):
        buffer = kind(tmp_path)
        buffer.add_shard(name)
        batches.append(buffer.sample(2))
        assert buffer.drawn == [(name, 0)] * 2
    cloning, preferences = batches
    assert set(cloning) == {"image", "text_input", "text_output"} and cloning["text_output"] == ["label 5"] * 2
    assert preferences["text_output_pos"] == ["label 5"] * 2 and preferences["text_output_neg"] == ["own ü 5"] * 2
    assert cloning["text_input"] == preferences["text_input"] == ["prompt 5"] * 2


def test_several_frames_are_those_of_the_states_right_before(tmp_path):
    whole = store(tmp_path, 0, 0, range(4))
    with_gap = shard_name(0, 1, 3)
    write_shard(tmp_path / with_gap, [transition(n) for n in (10, 11, 14)], {"game": "g"}, turns=[0, 1, 4])
    buffer = ReplayBuffer(tmp_path, frames=3)
    for name in (whole, with_gap):
        buffer.add_shard(name)
    places = [*((whole, row) for row in range(4)), *((with_gap, row) for row in range(3))]
    numbers = [[int(image[0, 0, 0]) for image in images] for images in buffer.read(places)["image"]]
    assert numbers == [[0], [0, 1], [0, 1, 2], [1, 2, 3], [10], [10, 11], [14]]


def test_a_seed_or_a_saved_state_gives_the_same_samples(tmp_path):
    name = store(tmp_path, 0, 0, range(9))
    one, two = (ReplayBuffer(tmp_path, seed=3) for _ in range(2))
    for buffer in (one, two):
        buffer.add_shard(name)
    assert one.sample(20)["text_input"] == two.sample(20)["text_input"]
    two.random.bit_generator.state = one.random.bit_generator.state
    assert one.sample(20)["text_input"] == two.sample(20)["text_input"]


def test_the_oldest_shards_leave_the_index_not_the_disk(tmp_path):
    buffer = ReplayBuffer(tmp_path, capacity=5)
    names = [store(tmp_path, 0, env, range(3 * env, 3 * env + 3)) for env in range(3)]
    for name in names:
        buffer.add_shard(name)
    buffer.sample(20)
    assert len(buffer) == 3 and {name for name, _ in buffer.drawn} == {names[2]}
    assert (tmp_path / names[0]).exists()
    buffer.add_shard(store(tmp_path, 0, 3, range(40)))
    assert len(buffer) == 40  # the newest stays, whatever its size


def test_an_index_over_100_000_transitions_is_small_and_quick(tmp_path):
    names = [shard_name(number // 1000, number % 1000, 10) for number in range(10_000)]
    tracemalloc.start()
    began = time.process_time()
    buffer = ReplayBuffer(tmp_path)
    for name in names:
        buffer.add_shard(name)
    seconds, (size, _) = time.process_time() - began, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(buffer) == 100_000 and size < 4 << 20 and seconds < 2.0  # with tracemalloc, about 0.1 s


def test_an_index_forgets_the_shards_that_have_left_and_draws_as_before(tmp_path):
    buffer, held, left = ReplayBuffer(tmp_path, capacity=30, seed=1), [], []
    for env in range(1000):
        name = shard_name(0, env, env % 7 + 1)
        held.append((name, env % 7 + 1))
        gone = set()
        while sum(steps for _, steps in held) > 30:
            gone.add(held.pop(0)[0])
        assert buffer.add_shard(name) == gone
        left += gone
        places = [(name, step) for name, steps in held for step in range(steps)]
        wanted = np.random.default_rng(env).integers(len(places), size=4)
        buffer.random = np.random.default_rng(env)
        assert buffer.draw(4) == [places[i] for i in wanted] and len(buffer) == len(places)
    assert len(left) > 980 and len(buffer._names) == len(buffer._ends) == len(held)


def test_with_disagreements_the_rows_of_a_shard_leave_with_it(tmp_path):
    buffer = ReplayBuffer(tmp_path, capacity=5, disagreements=True)
    for env in range(4):
        buffer.add_shard(store(tmp_path, 0, env, range(3)))
    assert len(buffer) == 3 and list(buffer._rows) == buffer._names == [shard_name(0, 3, 3)]


def test_damaged_missing_and_foreign_shards_are_named(tmp_path):
    name = store(tmp_path, 0, 0, range(4))
    buffer = ReplayBuffer(tmp_path)
    buffer.add_shard(name)
    whole = (tmp_path / name).read_bytes()
    for content in (whole[: len(whole) // 2], b"", b"PK\x03\x04 something else"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ShardError, match=name):
            buffer.sample(1)
    (tmp_path / name).unlink()
    with pytest.raises(ShardError, match=name):
        buffer.sample(1)
    with pytest.raises(ValueError, match="is not a shard's name"):
        buffer.add_shard("../../etc/passwd")


def test_an_empty_buffer_says_so(tmp_path):
    with pytest.raises(ValueError, match="no episode has been stored yet"):
        ReplayBuffer(tmp_path).sample(1)


def test_the_last_batch_can_be_named(tmp_path):
    buffer = ReplayBuffer(tmp_path)
    buffer.add_shard(store(tmp_path, 0, 7, [1]))
    buffer.sample(6)
    assert buffer.describe_drawn() == ", ".join(["round000_env0007_steps001.h5 step 0 (pick/7)"] * 4) + " and 2 more"


def test_disagreements_alone(tmp_path):
    """Pairs of equal actions, and states in which the policy was not asked, are not drawn."""
    same = replace(transition(1), text_output_neg="label 1")
    unknown = replace(transition(2), text_output_neg="")
    name = shard_name(0, 0, 4)
    write_shard(tmp_path / name, [same, transition(5), unknown, transition(6)], {"game": "pick/0", "won": True})
    agreed = shard_name(0, 1, 1)
    write_shard(tmp_path / agreed, [same], {"game": "pick/1", "won": True})
    buffer = DPOReplayBuffer(tmp_path, disagreements=True)
    for shard in (agreed, name):
        buffer.add_shard(shard)
    assert len(buffer) == 2
    assert set(buffer.sample(50)["text_output_neg"]) == {"own ü 5", "own ü 6"}
    assert set(buffer.drawn) == {(name, 1), (name, 3)}
    # With all transitions a state in which the policy was not asked is a pair of equal actions, too.
    buffer = DPOReplayBuffer(tmp_path)
    buffer.add_shard(name)
    rejected = [buffer.read([(name, step)])["text_output_neg"] for step in range(4)]
    assert len(buffer) == 4 and rejected == [["label 1"], ["own ü 5"], ["label 2"], ["own ü 6"]]


def test_disagreements_of_a_shard_that_cannot_be_read(tmp_path, caplog):
    buffer = ReplayBuffer(tmp_path, disagreements=True)
    buffer.add_shard(shard_name(0, 0, 4))
    assert len(buffer) == 0
    assert "nothing is learned from" in caplog.text


def test_a_refused_shard_beside_one_without_a_disagreement_leaves_nothing_to_draw(tmp_path):
    agreed, other = shard_name(0, 0, 1), store(tmp_path, 0, 1, [5])
    same = replace(transition(1), text_output_neg="label 1")
    write_shard(tmp_path / agreed, [same], {"game": "pick/0", "won": True})
    buffer = DPOReplayBuffer(tmp_path, disagreements=True)
    for shard in (agreed, other):
        buffer.add_shard(shard)
    assert buffer.refuse(other) is False  # else `sample` would search for ever
    with pytest.raises(ValueError, match="no shard .* can be learned from"):
        buffer.sample(1)
