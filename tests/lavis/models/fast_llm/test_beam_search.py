"""Beam search against Transformers': ids and scores."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from lavis.models.fast_llm.beam_search import BeamSettings, beam_search
from lavis.models.fast_llm.decoding import pads_after
from tests.lavis.models.fast_llm.conftest import OddSums, odd_sums


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"num_beams": 2, "num_return_sequences": 2},
        {"repetition_penalty": 1.5, "length_penalty": -1.0},
        {"length_penalty": 2.0, "min_new_tokens": 4},
        {"max_new_tokens": 1},
    ],
)
def test_beam_search_equals_transformers(model: PreTrainedModel, options: dict) -> None:
    torch.manual_seed(1)
    embeds, mask = torch.randn(6, 7, 16), torch.ones(6, 7, dtype=torch.long)
    mask[1, 1:4] = 0  # not leading: then Transformers 5.23 spares so many new tokens the repetition penalty
    mask[2, 2:5] = 0
    options = {
        "num_beams": 4,
        "max_new_tokens": 9,
        "num_return_sequences": 1,
        "repetition_penalty": 1.0,
        "length_penalty": 1.0,
        "min_new_tokens": 0,
        **options,
    }
    want = model.generate(
        inputs_embeds=embeds,
        attention_mask=mask,
        eos_token_id=2,
        pad_token_id=0,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
        **options,
    )
    settings = BeamSettings(
        beams=options["num_beams"],
        max_new=options["max_new_tokens"],
        min_new=options["min_new_tokens"],
        repetition_penalty=options["repetition_penalty"],
        length_penalty=options["length_penalty"],
        returned=options["num_return_sequences"],
        eos_id=2,
        pad_id=0,
    )
    ids, scores = beam_search(model, embeds, mask, settings)
    assert ids.tolist() == pads_after(want.sequences, 2, 0).tolist()
    assert torch.allclose(scores, want.sequences_scores, atol=1e-4)


def test_a_rule_decides_what_may_follow(model: PreTrainedModel) -> None:
    torch.manual_seed(2)
    embeds, mask = torch.randn(5, 6, 16), torch.ones(5, 6, dtype=torch.long)
    want = model.generate(
        inputs_embeds=embeds, attention_mask=mask, max_new_tokens=6, eos_token_id=2, pad_token_id=0, num_beams=3,
        num_return_sequences=3, length_penalty=0.0, logits_processor=[OddSums(beams=3)], output_scores=True,
        return_dict_in_generate=True,
    )  # fmt: skip
    ids, scores = beam_search(model, embeds, mask, BeamSettings(3, 6, 0, 1.0, 0.0, 3, 2, 0), rule=odd_sums)
    assert ids.tolist() == pads_after(want.sequences, 2, 0).tolist()
    assert torch.allclose(scores, want.sequences_scores, atol=1e-4)
    assert ids.tolist() != beam_search(model, embeds, mask, BeamSettings(3, 6, 0, 1.0, 0.0, 3, 2, 0))[0].tolist()
