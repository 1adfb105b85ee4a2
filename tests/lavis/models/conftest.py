"""Small models with random weights: the tiny type, and one where only the projection trains, as in the real sizes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from lavis.models import load_model_and_preprocess
from lavis.models.blip2_models.adapters import is_adapter
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.blip2_models.emac_config import PARTS

PROMPTS = (
    "You are in the middle of a room.\nYour task is to: put some mug on desk.\n> ",
    "On the desk 2, you see a mug 1.\n> take mug 1 from desk 2\nYou pick up the mug 1 from the desk 2.\n> ",
    "",
)
SMALL_LLM = {
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 1024,
    "tie_word_embeddings": False,
}


@pytest.fixture
def build() -> Callable[..., Blip2Emac]:
    """Builds a small float32 model; keywords override keys of its config."""

    def built(**options: object) -> Blip2Emac:
        model, _, _ = load_model_and_preprocess(
            "blip2_emac", "tiny", options={"amp": "", "llm_config": SMALL_LLM, "allow_random": list(PARTS), **options}
        )
        # Random weights this small say nearly the same about everything; larger ones make differences visible.
        with torch.no_grad(), torch.random.fork_rng():
            torch.manual_seed(1)
            for name, parameter in model.llm_model.named_parameters():
                if parameter.dim() > 1 and not is_adapter(name):
                    parameter.normal_(std=0.3)
        return model

    return built


@pytest.fixture
def frozen(build: Callable[..., Blip2Emac]) -> Blip2Emac:
    """A model of which only the projection trains."""
    return build(freeze_vit=True, freeze_qformer=True, freeze_llm=True)


@pytest.fixture
def samples() -> dict[str, object]:
    """Three samples for training, comparing and generating."""
    images = np.random.default_rng(0).normal(size=(3, 3, 112, 112)).astype(np.float32)
    return {
        "image": torch.from_numpy(images),
        "prompt": list(PROMPTS),
        "text_input": list(PROMPTS),
        "text_output": ["go to desk 1", "put mug 1 in/on desk 1", "look"],
        "text_output_pos": ["go to desk 1", "put mug 1 in/on desk 1", "look"],
        "text_output_neg": ["go to desk 2", "look", "look"],
    }
