"""The CPU's Llama against Transformers': logits of a padded batch, token by token."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config

from lavis.models.blip2_models import decoding, llama
from lavis.models.blip2_models.llama import LlamaRunner, supports


def small(**sizes: object) -> LlamaForCausalLM:
    """A Llama with random weights that are large enough to matter."""
    config = {
        "vocab_size": 61,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-3,
        **sizes,
    }
    torch.manual_seed(0)
    llm = LlamaForCausalLM(LlamaConfig(**config)).eval()
    with torch.no_grad():
        for parameter in llm.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return llm


@pytest.mark.parametrize("sizes", [{}, {"num_key_value_heads": 4}, {"head_dim": 10}, {"tie_word_embeddings": True}])
@torch.no_grad()
def test_equals_transformers(sizes: dict) -> None:
    llm = small(**sizes)
    count, length = llama.ROWS + 3, 11  # more rows than are taken at a time
    embeds = torch.randn(count, length, 24)
    mask = torch.ones(count, length, dtype=torch.long)
    for row in range(count):
        mask[row, 2 : 2 + row % 5] = 0  # left pads behind two image tokens
    positions = decoding.position_ids(mask)
    mine, theirs = LlamaRunner(llm, torch.float32), decoding._TransformersRunner(llm)
    got, want = (runner.prefill(embeds, mask, positions, room=4) for runner in (mine, theirs))
    for _ in range(4):
        assert torch.allclose(got, want, atol=1e-5)
        token, positions = want.argmax(-1), positions[:, -1:] + 1
        got, want = mine.step(token, positions), theirs.step(token, positions)


@torch.no_grad()
def test_whole_rows_equal_transformers() -> None:
    llm = small()
    embeds, positions = torch.randn(llama.ROWS + 1, 7, 24), torch.arange(7).expand(llama.ROWS + 1, 7)
    seen = torch.ones(7, 7, dtype=torch.bool).tril()
    seen[5, 2:4] = False
    seen = seen.expand(len(embeds), 1, 7, 7)
    want = llm.model(inputs_embeds=embeds, attention_mask=seen, position_ids=positions).last_hidden_state
    assert torch.allclose(LlamaRunner(llm, torch.float32).read(embeds, seen, positions), want, atol=1e-5)


@torch.no_grad()
def test_takes_the_weights_of_the_moment() -> None:
    llm = small()
    inputs = torch.randn(1, 3, 24), torch.ones(1, 3, dtype=torch.long), torch.arange(3)[None]
    before = LlamaRunner(llm, torch.float32).prefill(*inputs, room=1)
    llm.model.layers[0].self_attn.q_proj.weight.mul_(2)
    assert not torch.equal(before, LlamaRunner(llm, torch.float32).prefill(*inputs, room=1))


def test_what_it_does_not_support() -> None:
    assert supports(small())
    assert not supports(small(attention_bias=True))
    assert not supports(small(hidden_act="gelu"))
    sizes = {
        "vocab_size": 9,
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    other = AutoModelForCausalLM.from_config(Qwen2Config(**sizes, num_key_value_heads=2))
    assert not supports(other)
