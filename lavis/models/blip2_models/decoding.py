"""Greedy decoding from prompt embeddings, with little around the model itself.

Shapes: N prompts, T positions (image tokens and text), H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from lavis.models.blip2_models import llama_cpu


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


def roomy_cache(llm: PreTrainedModel, room: int) -> Cache:
    """A cache for `llm`: a prompt of any length, then at most `room` tokens."""
    layers = DynamicCache(config=llm.config).layers
    return Cache(layers=[RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in layers])


class _TransformersRunner:
    """`prefill` and `step` of any causal language model, through Transformers; as `LlamaRunner`."""

    def __init__(self, llm: PreTrainedModel) -> None:
        self._llm = llm

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int) -> Tensor:
        self._cache = roomy_cache(self._llm, room)
        self._mask = mask
        self._unpadded = bool(mask.all())
        return self._logits(positions, inputs_embeds=embeds)

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


def _runner(llm: PreTrainedModel) -> _TransformersRunner | llama_cpu.LlamaRunner:
    if not llama_cpu.supports(llm):
        return _TransformersRunner(llm)
    return llama_cpu.LlamaRunner(
        llm, torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else llm.dtype
    )


@torch.no_grad()
def greedy(
    llm: PreTrainedModel, embeds: Tensor, mask: Tensor, *, max_new: int, min_new: int, eos_id: int, pad_id: int
) -> Tensor:
    """The most probable token at each step, as `llm.generate(num_beams=1)` gives it, with less around it.

    `embeds` (N, T, H) and `mask` (N, T) are left-padded prompts. Returns ids (N, at most max_new); `pad_id` after
    `eos_id`. Before `min_new` tokens `eos_id` cannot come.
    """
    runner = _runner(llm)
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
