"""Greedy decoding against Transformers'."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from lavis.models.fast_llm.decoding import greedy, pads_after, position_ids
from lavis.models.fast_llm.llama_runner import LlamaRunner
from lavis.models.fast_llm.transformers_runner import TransformersRunner
from tests.lavis.models.fast_llm.conftest import OddSums, odd_sums


@pytest.mark.parametrize("padded", [True, False])
def test_greedy_equals_transformers(model: PreTrainedModel, padded: bool) -> None:
    embeds, mask = torch.randn(4, 6, 16), torch.ones(4, 6, dtype=torch.long)
    if padded:
        mask[1, :3] = 0
    want = model.generate(inputs_embeds=embeds, attention_mask=mask, max_new_tokens=7, eos_token_id=2, pad_token_id=0)
    got = greedy(model, embeds, mask, max_new=7, min_new=0, eos_id=2, pad_id=0)
    assert got.tolist() == want.tolist()


def test_a_rule_decides_what_may_follow(model: PreTrainedModel) -> None:
    """By prompt and by what was written, also once the runner reads fewer rows."""
    torch.manual_seed(2)
    embeds, mask = torch.randn(9, 6, 16), torch.ones(9, 6, dtype=torch.long)
    want = model.generate(
        inputs_embeds=embeds, attention_mask=mask, max_new_tokens=7, eos_token_id=2, pad_token_id=0,
        logits_processor=[OddSums()],
    )  # fmt: skip
    got = greedy(model, embeds, mask, max_new=7, min_new=0, eos_id=2, pad_id=0, rule=odd_sums)
    assert got.tolist() == want.tolist()
    assert got.tolist() != greedy(model, embeds, mask, max_new=7, min_new=0, eos_id=2, pad_id=0).tolist()


def test_answers_that_have_ended_are_no_longer_read(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """40 answers of 1 to 20 tokens: those of `generate`, though the runner reads fewer and fewer rows."""
    torch.manual_seed(1)
    embeds, mask = torch.randn(40, 6, 16), torch.ones(40, 6, dtype=torch.long)
    mask[::3, :4] = 0
    free = model.generate(inputs_embeds=embeds, attention_mask=mask, max_new_tokens=20, eos_token_id=None)
    # The token that ends half of the answers soonest, and leaves some open.
    firsts = {token: [(row == token).int().argmax().item() for row in free if token in row] for token in range(1, 30)}
    eos = min((t for t, first in firsts.items() if 20 <= len(first) < 40), key=lambda t: sorted(firsts[t])[19])
    want = model.generate(
        inputs_embeds=embeds, attention_mask=mask, max_new_tokens=20, eos_token_id=eos, pad_token_id=0
    )
    read = []
    step = LlamaRunner.step if type(model) is LlamaForCausalLM else TransformersRunner.step
    runner = LlamaRunner if type(model) is LlamaForCausalLM else TransformersRunner
    monkeypatch.setattr(runner, "step", lambda self, tokens, at: read.append(len(tokens)) or step(self, tokens, at))
    got = greedy(model, embeds, mask, max_new=20, min_new=0, eos_id=eos, pad_id=0)
    assert got.tolist() == want.tolist()
    assert len(read) == 19 and read[0] == 40 and read[-1] <= 20 and read == sorted(read, reverse=True)


def test_pads_after_the_end() -> None:
    ids = torch.tensor([[5, 2, 2, 2], [2, 7, 2, 7], [5, 6, 7, 8]])
    assert pads_after(ids, eos_id=2, pad_id=0).tolist() == [[5, 2, 0, 0], [2, 0, 0, 0], [5, 6, 7, 8]]


def test_positions_count_real_tokens() -> None:
    mask = torch.tensor([[0, 0, 1, 1], [1, 0, 0, 1]])
    assert position_ids(mask).tolist() == [[0, 0, 0, 1], [0, 0, 0, 1]]
