"""What decoding asks of a language model, and which of the two implementations serves a model."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor
from transformers import PreTrainedModel

from lavis.models.fast_llm.kept_prompts import Named
from lavis.models.fast_llm.llama_layer import matmul_dtype, supports
from lavis.models.fast_llm.llama_runner import LlamaRunner
from lavis.models.fast_llm.transformers_runner import TransformersRunner


class Runner(Protocol):
    """A language model that reads prompts, then one token at a time.

    `LlamaRunner` and `TransformersRunner` have these calls; the second is the reference for the first. It takes the
    weights as they are when it is made: make a new one after training.
    """

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int, beams: int = 1) -> Tensor:
        """Read N prompts; the next token's logits (N, V), float32.

        `embeds` (N, T, H), `mask` (N, T) int64 with 0 on pads, `positions` (N, T) int64. `beams` rows will continue
        each prompt, each with at most `room` tokens.
        """
        ...

    def reorder(self, beams: Tensor) -> None:
        """Row i continues as row `beams[i]` (N * beams,), one of the same prompt."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Only the prompts `rows` (n,), in rising order, go on; their keys and values are copied."""
        ...

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Read one more token of each row: `tokens` (N * beams,), `positions` (N * beams, 1); logits (N * beams, V)."""
        ...


def make_runner(llm: PreTrainedModel, named: Named | None = None) -> Runner:
    """The fastest runner that there is for `llm`; ours goes on from kept prompts that are `named`."""
    return LlamaRunner(llm, matmul_dtype(llm), named) if supports(llm) else TransformersRunner(llm)
