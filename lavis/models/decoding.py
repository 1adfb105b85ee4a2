"""Keeps a folder's own way of decoding out of a model that has been loaded from it."""

from __future__ import annotations

from typing import Any

from torch import nn
from transformers import GenerationConfig

SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")


def forget_decoding(model: nn.Module) -> None:
    """Of the generation settings of `model`, and of every model inside it, keep the special tokens alone.

    Transformers takes each setting that a call of `generate` leaves at None from `model.generation_config`, which is
    the folder's generation_config.json: a chatbot's penalties, forbidden words and temperatures. Without them a call
    decodes as its own arguments say, and by Transformers' defaults.
    """
    part: Any  # modules in general have no generation settings
    for part in model.modules():  # InstructBLIP's language model generates, inside the model that was loaded
        found = getattr(part, "generation_config", None)
        if isinstance(found, GenerationConfig):
            part.generation_config = GenerationConfig(**{name: getattr(found, name) for name in SPECIAL_TOKENS})
