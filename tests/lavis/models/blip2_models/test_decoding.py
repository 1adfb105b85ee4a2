"""Greedy decoding and its cache."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, Qwen2Config, Qwen2ForCausalLM

from lavis.models.blip2_models.decoding import greedy, pads_after, position_ids, roomy_cache


@pytest.fixture
def llm() -> Qwen2ForCausalLM:
    """A language model that goes through Transformers."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data, std=0.5)
    return model


@pytest.mark.parametrize("padded", [True, False])
def test_greedy_equals_transformers(llm: Qwen2ForCausalLM, padded: bool) -> None:
    embeds, mask = torch.randn(4, 6, 16), torch.ones(4, 6, dtype=torch.long)
    if padded:
        mask[1, :3] = 0
    want = llm.generate(inputs_embeds=embeds, attention_mask=mask, max_new_tokens=7, eos_token_id=2, pad_token_id=0)
    got = greedy(llm, embeds, mask, max_new=7, min_new=0, eos_id=2, pad_id=0)
    assert got.tolist() == want.tolist()


@torch.no_grad()
def test_roomy_cache_equals_transformers_cache(llm: Qwen2ForCausalLM) -> None:
    ids = torch.randint(0, 30, (2, 9))
    caches = [roomy_cache(llm, room=4), DynamicCache(config=llm.config)]
    for chunk in (ids[:, :5], ids[:, 5:6], ids[:, 6:]):
        got, want = (llm(input_ids=chunk, past_key_values=cache).logits for cache in caches)
        assert torch.allclose(got, want, atol=1e-6)
    assert caches[0].get_seq_length() == 9


def test_pads_after_the_end() -> None:
    ids = torch.tensor([[5, 2, 2, 2], [2, 7, 2, 7], [5, 6, 7, 8]])
    assert pads_after(ids, eos_id=2, pad_id=0).tolist() == [[5, 2, 0, 0], [2, 0, 0, 0], [5, 6, 7, 8]]


def test_positions_count_real_tokens() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
