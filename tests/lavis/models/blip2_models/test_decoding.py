"""Greedy decoding and its cache."""

from __future__ import annotations

import pytest
import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, PreTrainedModel, Qwen2Config, Qwen2ForCausalLM

from lavis.models.blip2_models.decoding import BeamSettings, beam_search, greedy, pads_after, position_ids, roomy_cache


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


class TestBeamSearch:
    @pytest.fixture(params=["qwen2", "llama"])
    def model(self, request: pytest.FixtureRequest, llm: Qwen2ForCausalLM) -> PreTrainedModel:
        """One that goes through Transformers, one that does not."""
        if request.param == "qwen2":
            return llm
        sizes = {"vocab_size": 30, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
        model = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter.data, std=0.5)
        return model

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
    def test_equals_transformers(self, model: PreTrainedModel, options: dict) -> None:
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

    def test_more_answers_than_beams(self) -> None:
        with pytest.raises(ValueError, match="num_captions=3 is more than num_beams=2"):
            BeamSettings(2, 9, 0, 1.0, 1.0, 3, 2, 0)
