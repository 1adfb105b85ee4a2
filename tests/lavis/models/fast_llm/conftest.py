"""Small language models with random weights that are large enough to matter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM


def odd_sums(prompts: Tensor, written: Tensor, scores: Tensor) -> Tensor:
    """A rule of decoding without sense: its tokens depend on the prompt's number and on all that was written."""
    sums = (prompts + written.sum(1))[:, None] + torch.arange(scores.shape[1])
    return scores.masked_fill(sums % 3 == 0, -torch.inf)


class OddSums(LogitsProcessor):
    """The same rule for Transformers, which gives each prompt `beams` rows."""

    def __init__(self, beams: int = 1) -> None:
        self.beams = beams

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return odd_sums(torch.arange(len(scores)) // self.beams, input_ids, scores)


@pytest.fixture
def small() -> Callable[..., LlamaForCausalLM]:
    """Builds a Llama of hidden size 24 and 61 tokens; keywords override keys of its config."""

    def built(**sizes: object) -> LlamaForCausalLM:
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

    return built


@pytest.fixture
def llm() -> Qwen2ForCausalLM:
    """A language model that goes through Transformers, of hidden size 16 and 30 tokens."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter.data, std=0.5)
    return model


@pytest.fixture(params=["qwen2", "llama"])
def model(request: pytest.FixtureRequest, llm: Qwen2ForCausalLM) -> PreTrainedModel:
    """One that goes through Transformers, one that does not; of hidden size 16 and 30 tokens."""
    if request.param == "qwen2":
        return llm
    sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    llama = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()
    for parameter in llama.parameters():
        torch.nn.init.normal_(parameter.data, std=0.5)
    return llama
