"""Answers that share their prompt's keys are as probable as answers in rows of their own."""

from __future__ import annotations

import torch
from transformers import Llama4Config, Llama4ForConditionalGeneration

from lavis.models.hf_vlm.logps import summed_logps


def test_a_model_whose_parts_have_no_common_owner() -> None:
    """Llama 4 has no `model` within it. Its layers read chunks, which begin anew within a prompt that has pads."""
    text = {"hidden_size": 32, "intermediate_size": 32, "intermediate_size_mlp": 32, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "pad_token_id": 0}
    text |= {"layer_types": ["chunked_attention", "full_attention"], "no_rope_layers": [1, 0], "num_local_experts": 2}
    vision = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    vision |= {"image_size": 28, "patch_size": 14, "vision_output_dim": 32, "projector_input_dim": 32}
    config = Llama4Config(text_config={**text, "attention_chunk_size": 8}, vision_config=vision)
    torch.manual_seed(0)
    model = Llama4ForConditionalGeneration(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
        prompts = [
            {"input_ids": torch.arange(1, size)[None], "attention_mask": torch.ones(1, size - 1, dtype=torch.long)}
            for size in (24, 11, 5)
        ]
        answers = [[3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13], [2], [9, 8]]
        shared, whole = (summed_logps(model, prompts, [0, 1, 2], answers, 0, share=share) for share in (True, False))
    torch.testing.assert_close(shared, whole, rtol=0, atol=1e-4)
