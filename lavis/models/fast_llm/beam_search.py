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

from lavis.common.errors import ConfigError
from lavis.models.fast_llm.decoding import position_ids
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

    def __post_init__(self) -> None:
        """Refuse more answers than there are beams."""
        if self.returned > self.beams:
            raise ConfigError(f"num_captions={self.returned} is more than num_beams={self.beams}")


@torch.no_grad()
def beam_search(llm: PreTrainedModel, embeds: Tensor, mask: Tensor, settings: BeamSettings) -> tuple[Tensor, Tensor]:
    """Ids (N * returned, new tokens) and scores (N * returned,) of Transformers' beam search.

    `embeds` (N, T, H) and `mask` (N, T) are padded prompts. A score is the sum of log-probabilities divided by
    length ** `length_penalty`. Pads follow `</s>`.
    """
    count, beams, device = len(embeds), settings.beams, embeds.device
    runner = make_runner(llm)
    positions = position_ids(mask)
    logits = runner.prefill(embeds, mask, positions, settings.max_new, beams).repeat_interleave(beams, dim=0)
    positions = positions[:, -1:].repeat_interleave(beams, dim=0)

    ids = torch.full((count, beams, settings.max_new), settings.pad_id, device=device)
    none = torch.zeros(count, beams, dtype=torch.long, device=device)
    never = torch.full((count, beams), _NEVER, device=device)
    scores = never.clone()
    scores[:, 0] = 0  # the beams are equal at the start: only the first counts
    running, done = _Answers(ids, scores, none, none.bool()), _Answers(ids, never, none, none.bool())
    hopeful = torch.ones(count, 1, dtype=torch.bool, device=device)  # whether an open answer can beat a finished one
    offsets = torch.arange(count, device=device)[:, None] * beams
    for length in range(1, settings.max_new + 1):
        found, parents = _continuations(running, _log_probs(logits, running, settings), length, settings)
        done = _best_ended(done, found, hopeful, length, settings)
        index = (found.scores + found.ended * _NEVER).topk(beams).indices
        running = found.chosen(index)
        running.scores = running.scores + running.ended * _NEVER
        best_possible = running.scores[:, :1] / length**settings.length_penalty
        worst = torch.where(done.ended, done.scores.min(dim=1, keepdim=True).values, _NEVER)
        hopeful = hopeful & (best_possible > worst).any(dim=1, keepdim=True)
        if length == settings.max_new or not hopeful.any():
            break
        runner.reorder((parents.take_along_dim(index, dim=1) + offsets).flatten())
        positions = positions + 1
        logits = runner.step(running.ids[:, :, length - 1].flatten(), positions)
    ids = done.ids[:, : settings.returned].flatten(0, 1)
    longest = int(done.lengths[:, : settings.returned].max())
    return ids[:, :longest], done.scores[:, : settings.returned].flatten()


def _log_probs(logits: Tensor, running: _Answers, settings: BeamSettings) -> Tensor:
    """Log-probabilities (N * B, V) of the next token, after the penalties."""
    logps = logits.log_softmax(-1)
    length = int(running.lengths[0, 0])
    if settings.repetition_penalty != 1 and length:
        seen = running.ids[:, :, :length].flatten(0, 1)
        # Keskar et al. 2019 (arXiv:1909.05858), sec. 4.1; log-probabilities are never above 0
        logps = logps.scatter(1, seen, logps.gather(1, seen) * settings.repetition_penalty)
    if length < settings.min_new:
        logps[:, settings.eos_id] = -torch.inf
    return logps


def _continuations(running: _Answers, logps: Tensor, length: int, settings: BeamSettings) -> tuple[_Answers, Tensor]:
    """The 2 B best answers of `length` tokens to each prompt, best first, and which beam each continues (N, 2 B).

    Twice the beams, so that B stay open even if B of them end.
    """
    count, beams = running.scores.shape
    totals = (logps.view(count, beams, -1) + running.scores[..., None]).flatten(1)
    scores, index = totals.topk(2 * beams)
    parents, tokens = index // logps.shape[-1], index % logps.shape[-1]
    found = running.chosen(parents)
    found.ids[:, :, length - 1] = tokens
    ended = (tokens == settings.eos_id) | (length == settings.max_new)
    return _Answers(found.ids, scores, torch.full_like(parents, length), ended), parents


def _best_ended(done: _Answers, found: _Answers, hopeful: Tensor, length: int, settings: BeamSettings) -> _Answers:
    """The B best ended answers to each prompt; of those found, only the B best can end, and only where `hopeful`."""
    scores = found.scores / length**settings.length_penalty
    ended = found.ended.clone()
    ended[:, settings.beams :] = False
    scores = scores + (~hopeful) * _NEVER + (~ended) * _NEVER
    both = done.joined(_Answers(found.ids, scores, found.lengths, ended))
    return both.chosen(both.scores.topk(settings.beams).indices)
