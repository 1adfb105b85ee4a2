"""Greedy decoding from prompt embeddings, with little around the model itself.

Shapes: N prompts, T positions (image tokens and text), H hidden size.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


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


@torch.no_grad()
def greedy(
    llm: PreTrainedModel, embeds: Tensor, mask: Tensor, *, max_new: int, min_new: int, eos_id: int, pad_id: int
) -> Tensor:
    """The most probable token at each step, as `llm.generate(num_beams=1)` gives it, with less around it.

    `embeds` (N, T, H) and `mask` (N, T) are left-padded prompts. Returns ids (N, at most max_new); `pad_id` after
    `eos_id`. Before `min_new` tokens `eos_id` cannot come.
    """
    cache = roomy_cache(llm, max_new)
    positions = position_ids(mask)
    unpadded = bool(mask.all())
    step = {"inputs_embeds": embeds}
    unfinished = torch.ones(len(embeds), dtype=torch.bool, device=embeds.device)
    ids: list[Tensor] = []
    while len(ids) < max_new:
        seen = None if unpadded else mask
        output = llm(
            **step, attention_mask=seen, position_ids=positions, past_key_values=cache, use_cache=True, logits_to_keep=1
        )
        logits = output.logits[:, -1].float()
        if len(ids) < min_new:
            logits[:, eos_id] = -torch.inf
        token = torch.where(unfinished, logits.argmax(-1), pad_id)
        ids.append(token)
        unfinished = unfinished & (token != eos_id)
        if not unfinished.any():
            break
        step = {"input_ids": token[:, None]}
        mask = torch.cat([mask, mask.new_ones(len(mask), 1)], dim=1)
        positions = positions[:, -1:] + 1
    return torch.stack(ids, dim=1)
