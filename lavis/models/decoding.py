"""How models of Transformers decode here: not as their folder says, with a penalty for repeated new tokens alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from transformers import GenerationConfig, RepetitionPenaltyLogitsProcessor

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


class NewTokensPenalty(RepetitionPenaltyLogitsProcessor):
    """The penalty for tokens that were written before (Keskar et al. 2019, arXiv:1909.05858), not for the prompt's.

    Transformers' own counts the prompt's tokens, too, so it would keep a player from the objects that it reads of.
    Blip2Emac's prompts are embeddings, which have no tokens. For one call of `generate`: the first that it sees is the
    prompt.
    """

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """See Transformers."""
        if self.prompt_ignore_length is None:
            self.prompt_ignore_length = input_ids.shape[1]
        return super().__call__(input_ids, scores)
