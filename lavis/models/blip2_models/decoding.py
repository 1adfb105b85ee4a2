"""Greedy decoding and beam search from prompt embeddings, with little around the model itself.

Both give Transformers' results (5.23; but where pads lead a prompt it spares as many new tokens the repetition
penalty, which the original did not). Its beam search reads every prompt once for each beam; this one once.

Shapes: N prompts, B beams, T positions (image tokens and text), H hidden size, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lavis.models.blip2_models import llama


def position_ids(mask: Tensor) -> Tensor:
    """Positions that count real tokens only: `cumsum(mask) - 1`, 0 on leading pads; mask and result (N, T)."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def pads_after(ids: Tensor, eos_id: int, pad_id: int) -> Tensor:
    """`ids` (N, T) with `pad_id` after each row's first `eos_id`."""
    ended = (ids == eos_id).cumsum(-1) - (ids == eos_id).int() > 0
    return ids.masked_fill(ended, pad_id)


class RoomyLayer(DynamicLayer):
    """One layer's key/value cache with room for `room` new tokens: they are written in place.

    Transformers' own layer copies the whole cache for every new token, which is two thirds of a step of the tiny model.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self._stores: tuple[Tensor, Tensor] | None = None
        self._prompt = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values (N, heads, new tokens, width); returns all of both."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        start = self.get_seq_length()
        stop = start + key_states.shape[2]
        if self._stores is None:
            # The dtype that attention computes in: rotary embedding may have left float32 keys under autocast.
            self._stores = tuple(
                x.new_empty((*x.shape[:2], stop + self.room, x.shape[3]), dtype=value_states.dtype)
                for x in (key_states, value_states)
            )
        for store, new in zip(self._stores, (key_states, value_states), strict=True):
            store[:, :, start:stop] = new
        self.keys, self.values = (store[:, :, :stop] for store in self._stores)
        return self.keys, self.values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row `repeats` times: what is read so far is a prompt, which `reorder_cache` leaves where it is."""
        self._prompt = self.get_seq_length()
        self._stores = tuple(store.repeat_interleave(repeats, dim=0) for store in self._stores)
        self.keys, self.values = (store[:, :, : self._prompt] for store in self._stores)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i goes on as row `beam_idx[i]`, one of the same prompt."""
        stop = self.get_seq_length()
        for store in self._stores:
            store[:, :, self._prompt : stop] = store[beam_idx, :, self._prompt : stop]


def roomy_cache(llm: PreTrainedModel, room: int) -> Cache:
    """A cache for `llm`: a prompt of any length, then at most `room` tokens."""
    layers = DynamicCache(config=llm.config).layers
    return Cache(layers=[RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in layers])


class Runner(Protocol):
    """What decoding asks of a model: `LlamaRunner`'s calls."""

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int, beams: int = 1) -> Tensor:
        """Read prompts; the next token's logits (N, V). `beams` rows, of at most `room` tokens, will continue each."""
        ...

    def reorder(self, beams: Tensor) -> None:
        """Row i goes on as row `beams[i]`, one of the same prompt."""
        ...

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Read one more token of each row; logits (rows, V)."""
        ...


class _TransformersRunner:
    """A `Runner` of any causal language model, through Transformers."""

    def __init__(self, llm: PreTrainedModel) -> None:
        self._llm = llm

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int, beams: int = 1) -> Tensor:
        self._cache = roomy_cache(self._llm, room)
        self._mask = mask
        self._unpadded = bool(mask.all())
        logits = self._logits(positions, inputs_embeds=embeds)
        if beams > 1:
            self._cache.batch_repeat_interleave(beams)
            self._mask = self._mask.repeat_interleave(beams, dim=0)
        return logits

    def reorder(self, beams: Tensor) -> None:
        self._cache.reorder_cache(beams)

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        return self._logits(positions, input_ids=tokens[:, None])

    def _logits(self, positions: Tensor, **inputs: Tensor) -> Tensor:
        output = self._llm(
            **inputs,
            attention_mask=None if self._unpadded else self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()


def make_runner(llm: PreTrainedModel) -> Runner:
    """The fastest runner that there is for `llm`."""
    return llama.LlamaRunner(llm, llama.matmul_dtype(llm)) if llama.supports(llm) else _TransformersRunner(llm)


@torch.no_grad()
def greedy(
    llm: PreTrainedModel, embeds: Tensor, mask: Tensor, *, max_new: int, min_new: int, eos_id: int, pad_id: int
) -> Tensor:
    """The most probable token at each step, as `llm.generate(num_beams=1)` gives it, with less around it.

    `embeds` (N, T, H) and `mask` (N, T) are left-padded prompts. Returns ids (N, at most max_new); `pad_id` after
    `eos_id`. Before `min_new` tokens `eos_id` cannot come.
    """
    runner = make_runner(llm)
    positions = position_ids(mask)
    logits = runner.prefill(embeds, mask, positions, max_new)
    unfinished = torch.ones(len(embeds), dtype=torch.bool, device=embeds.device)
    ids: list[Tensor] = []
    while True:
        if len(ids) < min_new:
            logits[:, eos_id] = -torch.inf
        token = torch.where(unfinished, logits.argmax(-1), pad_id)
        ids.append(token)
        unfinished = unfinished & (token != eos_id)
        if len(ids) == max_new or not unfinished.any():
            return torch.stack(ids, dim=1)
        positions = positions[:, -1:] + 1
        logits = runner.step(token, positions)


# ---- beam search ----------------------------------------------------------------------------------------------------

_NEVER = -1.0e9  # the score of what must not be chosen; finite, so that ties among such rows stay in order


@dataclass
class _Answers:
    """Answers so far, B of each prompt: `ids` (N, B, room) with pads behind, `scores`, `lengths`, `ended` (N, B)."""

    ids: Tensor
    scores: Tensor
    lengths: Tensor
    ended: Tensor

    def chosen(self, index: Tensor) -> _Answers:
        """Of each prompt those at `index` (N, any)."""
        ids = self.ids.take_along_dim(index[..., None], dim=1)
        return _Answers(ids, *(x.take_along_dim(index, dim=1) for x in (self.scores, self.lengths, self.ended)))

    def joined(self, other: _Answers) -> _Answers:
        """These and the others, prompt by prompt."""
        return _Answers(
            *(torch.cat([getattr(self, k), getattr(other, k)], dim=1) for k in ("ids", "scores", "lengths", "ended"))
        )


@dataclass(frozen=True)
class BeamSettings:
    """How beam search goes: Transformers' arguments of the same names; `returned` answers to a prompt."""

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
            raise ValueError(f"num_captions={self.returned} is more than num_beams={self.beams}")


@torch.no_grad()
def beam_search(llm: PreTrainedModel, embeds: Tensor, mask: Tensor, settings: BeamSettings) -> tuple[Tensor, Tensor]:
    """Ids (N * returned, new tokens) and scores (N * returned,), as Transformers' beam search gives them.

    `embeds` (N, T, H) and `mask` (N, T) are padded prompts. A score is the sum of log-probabilities over length to the
    power of `length_penalty`. Pads stand behind `</s>`.
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
    scores[:, 0] = 0  # the beams begin alike: only the first counts
    running, done = _Answers(ids, scores, none, none.bool()), _Answers(ids, never, none, none.bool())
    hopeful = torch.ones(count, 1, dtype=torch.bool, device=device)  # whether an open answer may beat a finished one
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

    Twice the beams, so that B stay open even if B end.
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
    """The B best ended answers to each prompt; only the B best found may end, and only where there is hope."""
    scores = found.scores / length**settings.length_penalty
    ended = found.ended.clone()
    ended[:, settings.beams :] = False
    scores = scores + (~hopeful) * _NEVER + (~ended) * _NEVER
    both = done.joined(_Answers(found.ids, scores, found.lengths, ended))
    return both.chosen(both.scores.topk(settings.beams).indices)
