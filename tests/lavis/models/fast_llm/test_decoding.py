"""Greedy decoding against Transformers'."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from lavis.models.fast_llm.decoding import greedy, pads_after, position_ids


@pytest.mark.parametrize("padded", [True, False])
def test_greedy_equals_transformers(model: PreTrainedModel, padded: bool) -> None:
    embeds, mask = torch.randn(4, 6, 16), torch.ones(4, 6, dtype=torch.long)
    if padded:
        mask[1, :3] = 0
    want = model.generate(inputs_embeds=embeds, attention_mask=mask, max_new_tokens=7, eos_token_id=2, pad_token_id=0)
    got = greedy(model, embeds, mask, max_new=7, min_new=0, eos_id=2, pad_id=0)
    assert got.tolist() == want.tolist()


def test_pads_after_the_end() -> None:
    ids = torch.tensor([[5, 2, 2, 2], [2, 7, 2, 7], [5, 6, 7, 8]])
    assert pads_after(ids, eos_id=2, pad_id=0).tolist() == [[5, 2, 0, 0], [2, 0, 0, 0], [5, 6, 7, 8]]


def test_positions_count_real_tokens() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
