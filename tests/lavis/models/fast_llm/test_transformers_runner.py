"""The reference runner's KV cache against Transformers' own, and beams of models that keep a state beside it."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, Qwen2ForCausalLM

from lavis.models.fast_llm.transformers_runner import TransformersRunner, roomy_cache

# One layer of each kind; Falcon H1's layers are both in one.
LINEAR = {
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_5_text": {
        "head_dim": 16,
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
    },
    "falcon_h1": {"mamba_d_ssm": 32, "mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_n_groups": 1},
    "mamba": {"state_size": 8},  # it has another name for its cache than all others
    "mamba2": {"state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1},
}


@torch.no_grad()
def test_roomy_cache_equals_transformers_cache(llm: Qwen2ForCausalLM) -> None:
    ids = torch.randint(0, 30, (2, 9))
    caches = [roomy_cache(llm, room=4), DynamicCache(config=llm.config)]
    for chunk in (ids[:, :5], ids[:, 5:6], ids[:, 6:]):
        got, want = (llm(input_ids=chunk, past_key_values=cache).logits for cache in caches)
        assert torch.allclose(got, want, atol=1e-6)
    assert caches[0].get_seq_length() == 9


@pytest.mark.parametrize("kind", LINEAR)
@torch.no_grad()
def test_a_state_of_linear_attention_goes_with_its_beam(kind: str) -> None:
    sizes = {"vocab_size": 30, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = AutoConfig.for_model(kind, **sizes, num_attention_heads=4, num_key_value_heads=2, **LINEAR[kind])
    llm = AutoModelForCausalLM.from_config(config).eval()
    for parameter in llm.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    ids = torch.randint(0, 30, (3, 6))
    runner = TransformersRunner(llm)
    embeds, positions = llm.get_input_embeddings()(ids), torch.arange(6).expand(3, 6)
    mask = torch.ones_like(ids)
    mask[1, 0] = 0  # a pad in another row than those that are compared: with one, all steps get a mask
    runner.prefill(embeds, mask, positions, room=2, beams=2)
    first, second = torch.randint(0, 30, (6,)), torch.randint(0, 30, (4,))
    runner.step(first, torch.full((6, 1), 6))
    runner.reorder(torch.tensor([1, 1, 2, 3, 5, 4]))
    runner.keep(torch.tensor([0, 2]))  # the beams that go on: two of prompt 0, two of prompt 2
    got = runner.step(second, torch.full((4, 1), 7))
    rows = torch.cat([ids[[0, 0, 2, 2]], first[[1, 1, 5, 4], None], second[:, None]], dim=1)
    assert torch.allclose(got, llm(input_ids=rows).logits[:, -1], atol=1e-3)
