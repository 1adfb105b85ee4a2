"""Greedy decoding over a `Runner`, and what decoding methods share.

Shapes: N prompts, T positions (image tokens and text), H hidden size.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lavis.models.fast_llm.kept_prompts import Named
from lavis.models.fast_llm.runner import make_runner


class Rule(Protocol):
    """Which tokens may follow what was written: a grammar, for instance."""

    def __call__(self, prompts: Tensor, written: Tensor, scores: Tensor, /) -> Tensor:
        """`scores` (n, V) with -inf where a token must not follow.

        Of n texts: the numbers of their prompts (n,), their new tokens so far (n, L), and the scores of the next one,
        logits in greedy decoding, log-probabilities in a beam search.
        """
        ...


def position_ids(mask: Tensor) -> Tensor:
    """Positions that count real tokens only: `cumsum(mask) - 1`, 0 on leading pads; mask and result (N, T)."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def pads_after(ids: Tensor, eos_id: int, pad_id: int) -> Tensor:
    """`ids` (N, T) with `pad_id` after each row's first `eos_id`."""
    # The count of `</s>` up to a place, without the place itself: above 0 only after the first one.
    ended = (ids == eos_id).cumsum(-1) - (ids == eos_id).int() > 0
    return ids.masked_fill(ended, pad_id)


@torch.no_grad()
def greedy(
    llm: PreTrainedModel,
    embeds: Tensor,
    mask: Tensor,
    *,
    max_new: int,
    min_new: int,
    eos_id: int,
    pad_id: int,
    named: Named | None = None,
    rule: Rule | None = None,
) -> Tensor:
    """The most probable token at each step, of those that the `rule` leaves: the ids of `llm.generate(num_beams=1)`.

    `embeds` (N, T, H) and `mask` (N, T) are left-padded prompts. Returns ids (N, at most max_new); `pad_id` after
    `eos_id`. The first `min_new` tokens are never `eos_id`. What begins like a kept prompt is not read again (`named`).
    """
    runner = make_runner(llm, named)
    positions = position_ids(mask)
    logits = runner.prefill(embeds, mask, positions, max_new)
    positions = positions[:, -1:]
    ids = torch.full((len(embeds), max_new), pad_id, device=embeds.device)
    read = torch.arange(len(embeds), device=embeds.device)  # the rows that the runner reads, and which of them go on
    unfinished = torch.ones_like(read, dtype=torch.bool)
    for place in range(max_new):
        if place < min_new:
            logits[:, eos_id] = -torch.inf
        if rule:
            logits = rule(read, ids[read, :place], logits)
        token = torch.where(unfinished, logits.argmax(-1), pad_id)
        ids[read, place] = token
        unfinished = unfinished & (token != eos_id)
        left = int(unfinished.sum())
        if not left or place + 1 == max_new:
            break
        # Answers that have ended are read on as pads until half of all have: dropping them copies keys and values.
        if 2 * left <= len(read):
            rows = unfinished.nonzero()[:, 0]
            runner.keep(rows)
            read, token, positions, unfinished = read[rows], token[rows], positions[rows], unfinished[rows]
        positions = positions + 1
        logits = runner.step(token, positions)
    return ids[:, : place + 1]
