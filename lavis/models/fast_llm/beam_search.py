"""Beam search over a `Runner`; ids and scores are those of Transformers' beam search (5.23).

One difference: where pads stand before a prompt, Transformers leaves as many new tokens without the repetition penalty;
the original did not, and neither does this. Each prompt is read once, not once for each beam.

Shapes: N prompts, B beams, T positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from lavis.models.fast_llm.decoding import Rule, position_ids
from lavis.models.fast_llm.kept_prompts import Named
from lavis.models.fast_llm.runner import make_runner

_NEVER = -1.0e9  # the score of what must not be chosen; finite, as in Transformers, so that ties keep their order


@dataclass
class _Answers:
    """Answers so far, B to each prompt: `ids` (N, B, room), padded right; `scores`, `lengths`, `ended` (N, B)."""

    ids: Tensor
    scores: Tensor
    lengths: Tensor
    ended: Tensor

    def chosen(self, index: Tensor) -> _Answers:
        """For each prompt those at `index` (N, any)."""
        ids = self.ids.take_along_dim(index[..., None], dim=1)
        return _Answers(ids, *(x.take_along_dim(index, dim=1) for x in (self.scores, self.lengths, self.ended)))

    def joined(self, other: _Answers) -> _Answers:
        """These and the others, prompt by prompt."""
        return _Answers(
            *(torch.cat([getattr(self, k), getattr(other, k)], dim=1) for k in ("ids", "scores", "lengths", "ended"))
        )


@dataclass(frozen=True)
class BeamSettings:
    """Transformers' arguments of beam search: `beams` is num_beams, `max_new` and `min_new` the limits of new tokens,
    `returned` num_return_sequences, the answers to a prompt.
    """

    beams: int
    max_new: int
    min_new: int
    repetition_penalty: float
    length_penalty: float
    returned: int
    eos_id: int
    pad_id: int


@torch.no_grad()
def beam_search(
    llm: PreTrainedModel,
    embeds: Tensor,
    mask: Tensor,
    settings: BeamSettings,
    named: Named | None = None,
    rule: Rule | None = None,
) -> tuple[Tensor, Tensor]:
    """Ids (N * returned, new tokens) and scores (N * returned,) of Transformers' beam search.

    `embeds` (N, T, H) and `mask` (N, T) are padded prompts. A score is the sum of log-probabilities divided by
    length ** `length_penalty`. Pads follow `</s>`. What begins like a kept prompt is not read again (`named`). If the
    `rule` leaves fewer answers than there are beams, others fill their places, whose score is -inf.
    """
    count, beams, device = len(embeds), settings.beams, embeds.device
    runner = make_runner(llm, named)
    positions = position_ids(mask)
    # (N, V) of the prompts' ends, then (N * B, V): at the start all beams of a prompt are the same text.
    logits = runner.prefill(embeds, mask, positions, settings.max_new, beams).repeat_interleave(beams, dim=0)
    positions = positions[:, -1:].repeat_interleave(beams, dim=0)

    ids = torch.full((count, beams, settings.max_new), settings.pad_id, device=device)
    none = torch.zeros(count, beams, dtype=torch.long, device=device)
    never = torch.full((count, beams), _NEVER, device=device)
    scores = never.clone()
    scores[:, 0] = 0  # the beams are equal at the start: only the first counts
    running, done = _Answers(ids, scores, none, none.bool()), _Answers(ids, never, none, none.bool())
    hopeful = torch.ones(count, 1, dtype=torch.bool, device=device)  # whether an open answer can beat a finished one
    offsets = torch.arange(count, device=device)[:, None] * beams  # (N, 1), the number of each prompt's first beam
    for length in range(1, settings.max_new + 1):
        # 1. Log-probabilities of the next token (N * B, V), after the penalties.
        logps = logits.log_softmax(-1)
        if settings.repetition_penalty != 1 and length > 1:
            seen = running.ids[:, :, : length - 1].flatten(0, 1)
            # Keskar et al. 2019 (arXiv:1909.05858), sec. 4.1; log-probabilities are never above 0, so a product with a
            # penalty above 1 makes what was written already less likely.
            logps = logps.scatter(1, seen, logps.gather(1, seen) * settings.repetition_penalty)
        if length - 1 < settings.min_new:
            logps[:, settings.eos_id] = -torch.inf
        if rule:
            prompts = torch.arange(count, device=device).repeat_interleave(beams)
            logps = rule(prompts, running.ids[:, :, : length - 1].flatten(0, 1), logps)

        # 2. The 2 B best continuations of each prompt, best first, over all of its beams: B stay open even if B end.
        totals = (logps.view(count, beams, -1) + running.scores[..., None]).flatten(1)  # (N, B * V)
        scores, index = totals.topk(2 * beams)
        parents, tokens = index // logps.shape[-1], index % logps.shape[-1]  # which beam each continues, (N, 2 B)
        found = running.chosen(parents)
        found.ids[:, :, length - 1] = tokens
        # At the limit every answer ends, with or without `</s>`: else a prompt might have no answer at all.
        ended = (tokens == settings.eos_id) | (length == settings.max_new)
        found = _Answers(found.ids, scores, torch.full_like(parents, length), ended)

        # 3. The B best ended answers: of those found only the B best can end, and only if the prompt is hopeful.
        # As in Transformers an answer may end only where it would have been kept, among the B best.
        can_end = ended.clone()
        can_end[:, beams:] = False
        final = scores / length**settings.length_penalty + (~hopeful) * _NEVER + (~can_end) * _NEVER
        both = done.joined(_Answers(found.ids, final, found.lengths, can_end))
        done = both.chosen(both.scores.topk(beams).indices)

        # 4. The B best open answers continue.
        index = (found.scores + found.ended * _NEVER).topk(beams).indices
        running = found.chosen(index)
        running.scores = running.scores + running.ended * _NEVER

        # 5. Stop if no open answer, as long as it is now, beats the worst of B ended ones: Transformers' rule
        # (`early_stopping=False`). Its sum only falls while it grows; with a length_penalty above 0 its score may rise.
        best_possible = running.scores[:, :1] / length**settings.length_penalty
        worst = torch.where(done.ended, done.scores.min(dim=1, keepdim=True).values, _NEVER)
        hopeful = hopeful & (best_possible > worst).any(dim=1, keepdim=True)
        if length == settings.max_new or not hopeful.any():
            break
        runner.reorder((parents.take_along_dim(index, dim=1) + offsets).flatten())
        positions = positions + 1
        # One new token of each beam, (N * B, V); the runner knows which beam's keys and values each continues.
        logits = runner.step(running.ids[:, :, length - 1].flatten(), positions)
    ids = done.ids[:, : settings.returned].flatten(0, 1)
    longest = int(done.lengths[:, : settings.returned].max())
    return ids[:, :longest], done.scores[:, : settings.returned].flatten()
