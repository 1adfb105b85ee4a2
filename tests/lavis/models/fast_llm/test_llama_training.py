"""Hidden states and gradients at chosen places against Transformers'."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import LlamaForCausalLM

from lavis.models.fast_llm.llama_training import hidden_at

Build = Callable[..., LlamaForCausalLM]


def test_chosen_places_equal_transformers_in_value_and_gradient(small: Build) -> None:
    llm = small()
    embeds, positions = torch.randn(3, 9, 24), torch.arange(9).expand(3, 9).clone()
    positions[1, 7:] -= 2  # a branch: 7 and 8 go on where 5 did
    allowed = torch.ones(3, 1, 9, 9, dtype=torch.bool).tril()
    allowed[1, :, 7:, 5:7] = False
    places = torch.tensor([[2, 5, 8], [4, 6, 8], [0, 1, 1]])
    weight = torch.randn(3, 3, 24)
    results = []
    for mine in (True, False):
        x = embeds.clone().requires_grad_()
        if mine:
            hidden = hidden_at(llm, x, allowed[:, :, 4:], positions, places, causal=4)
        else:
            whole = llm.model(inputs_embeds=x, attention_mask=allowed, position_ids=positions).last_hidden_state
            hidden = whole.take_along_dim(places[..., None], dim=1)
        (hidden * weight).sum().backward()
        results.append((hidden.detach(), x.grad))
    assert torch.allclose(results[0][0], results[1][0], atol=1e-5)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-4)
