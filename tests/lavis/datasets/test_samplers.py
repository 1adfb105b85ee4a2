"""Batches are a function of (seed, number), whoever asks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lavis.datasets.samplers import EvalSampler, TrainStream


def stream(length: int = 23, stop: int = 12, **options: int) -> TrainStream:
    made = TrainStream(length, **{"batch_size": 4, **options})
    made.stop = stop
    return made


def test_an_epoch_takes_every_sample_at_most_once_and_epochs_differ() -> None:
    batches = [[int(draw) for draw in batch] for batch in stream(stop=10)]
    first, second = sum(batches[:5], []), sum(batches[5:], [])
    assert len(set(first)) == len(set(second)) == 20
    assert first != second


def test_a_draw_tells_its_epoch() -> None:
    """By it the random changes to an image differ from one epoch to the next, also after a resume."""
    rest = stream(stop=12)
    rest.start = 3
    assert [{draw.epoch for draw in batch} for batch in rest] == [{0}] * 2 + [{1}] * 5 + [{2}] * 2


@given(st.integers(0, 11), st.integers(0, 3))
def test_goes_on_anywhere(start: int, seed: int) -> None:
    whole, rest = stream(seed=seed), stream(seed=seed)
    rest.start = start
    assert list(whole)[start:] == list(rest)


def test_ranks_share_the_global_batch() -> None:
    one = list(stream())
    two = [list(stream(batch_size=2, rank=rank, world_size=2)) for rank in (0, 1)]
    assert [a + b for a, b in zip(*two, strict=True)] == one


def test_too_little_data() -> None:
    with pytest.raises(ValueError, match=r"3 samples, fewer than one global batch of 8 .*4 × 2 processes"):
        TrainStream(3, batch_size=4, world_size=2)


@given(st.integers(1, 40), st.integers(1, 5))
def test_evaluation_covers_every_sample_with_equal_parts(length: int, world_size: int) -> None:
    parts = [list(EvalSampler(length, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert {len(part) for part in parts} == {-(-length // world_size)}
    assert set(sum(parts, [])) == set(range(length))
