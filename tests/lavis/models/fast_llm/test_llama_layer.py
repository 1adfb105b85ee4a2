"""Which language models our kernels compute."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Qwen2Config

from lavis.models.fast_llm.llama_layer import supports

Build = Callable[..., LlamaForCausalLM]


def test_what_it_does_not_support(small: Build) -> None:
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


def test_adapters_and_shards_go_through_transformers(small: Build) -> None:
    llm = small()
    llm.model.layers[1].self_attn.q_proj = torch.nn.Sequential(llm.model.layers[1].self_attn.q_proj)
    assert not supports(llm)
