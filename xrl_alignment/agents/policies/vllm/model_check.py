"""Checks that a vLLM server has the language model that is loaded in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from lavis.models.blip2_models.text import encode_prompts
from xrl_alignment.agents.policies.vllm.base import InferenceClient, WrittenToken
from xrl_alignment.common.errors import InferenceEngineFault

if TYPE_CHECKING:
    from lavis.models.blip2_models.blip2_emac import Blip2Emac

PROBES = (
    "You are in the middle of a room. Looking quickly around you, you see a cabinet 1, a countertop 1 and a fridge 1.",
    "Your task is to: put a clean mug in coffeemachine.\n> go to countertop 1\nOn the countertop 1, you see",
)
# Tokens written after each probe, and the most probable ones whose log-probabilities are compared at each of them.
ASKED = {"max_tokens": 6, "logprobs": 5, "ignore_eos": True}
# Mean difference of log-probabilities. bfloat16 against float32: 0.024 for the tiny model; other weights: above 1.
TOLERANCE = 0.15


class ModelCheck:
    """Compares a server's language model with `model`'s: their log-probabilities on known prompts.

    The server continues each of `PROBES` (sent as embeddings from our table) by a few tokens. The log-probabilities in
    its answer are compared with those of our model for the same tokens: other weights differ by more than 1, rounding
    by hundredths. The check finds mistakes. It does not protect against a server that deceives.
    """

    advice = "serve the folder that `python -m lavis.models.convert … --to llm` writes"

    def __init__(self, model: Blip2Emac) -> None:
        self._model = model
        self._prompts = encode_prompts(model.llm_tokenizer, PROBES)

    @torch.no_grad()
    def probed(self, client: InferenceClient, url: str) -> Iterator[tuple[Sequence[WrittenToken], Tensor]]:
        """What the server at `url` wrote after each probe, and our log-probabilities (tokens, vocabulary) there."""
        llm = self._model.llm_model
        embed, last_token = llm.get_input_embeddings(), llm.config.vocab_size - 1
        prompts = [embed(torch.tensor(ids, device=self._model.device)) for ids in self._prompts]
        for ids, written in zip(self._prompts, client.complete(url, prompts, **ASKED), strict=True):
            # One pass over the probe and what the server wrote after it; a token beyond our vocabulary counts as the
            # last one.
            read = ids + [min(item.token, last_token) for item in written[:-1]]
            logits: Tensor = llm(input_ids=torch.tensor([read], device=self._model.device)).logits[0, len(ids) - 1 :]
            yield written, logits.float().log_softmax(-1)

    def difference(self, client: InferenceClient, url: str) -> float:
        """Mean absolute difference of log-probabilities between the server at `url` and our model."""
        differences: list[float] = []
        for written, logps in self.probed(client, url):
            if not all(item.logprobs for item in written):
                raise InferenceEngineFault(f"{url} gives no log-probabilities: its model cannot be compared with ours")
            for ours, item in zip(logps.cpu(), written, strict=True):
                if max(item.logprobs) >= len(ours):
                    return float("inf")  # the server's vocabulary is larger than our model's
                differences += [abs(ours[token].item() - logprob) for token, logprob in item.logprobs.items()]
        return sum(differences) / len(differences)

    def check(self, client: InferenceClient, url: str) -> None:
        """InferenceEngineFault if the server at `url` has another model, ServerUnavailable if it does not answer."""
        name = client.model_at(url)
        difference = self.difference(client, url)
        if not difference <= TOLERANCE:
            raise InferenceEngineFault(
                f"{url} serves {name}, which is another model than the one that is loaded here: on known prompts their "
                f"log-probabilities differ by {difference:.2f} (rounding: below {TOLERANCE}); {self.advice}"
            )
