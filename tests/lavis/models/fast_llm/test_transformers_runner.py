"""The reference runner's KV cache against Transformers' own."""

from __future__ import annotations

import torch
from transformers import DynamicCache, Qwen2ForCausalLM

from lavis.models.fast_llm.transformers_runner import roomy_cache


@torch.no_grad()
def test_roomy_cache_equals_transformers_cache(llm: Qwen2ForCausalLM) -> None:
    ids = torch.randint(0, 30, (2, 9))
    caches = [roomy_cache(llm, room=4), DynamicCache(config=llm.config)]
    for chunk in (ids[:, :5], ids[:, 5:6], ids[:, 6:]):
        got, want = (llm(input_ids=chunk, past_key_values=cache).logits for cache in caches)
        assert torch.allclose(got, want, atol=1e-6)
    assert caches[0].get_seq_length() == 9
