"""The reference `Runner`: any causal language model through Transformers' own forward pass.

Shapes: N prompts, B beams, T positions, H hidden size, V vocabulary.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer


class RoomyLayer(DynamicLayer):
    """One layer's KV cache with room for `room` new tokens: they are written in place.

    Transformers' own layer copies the whole cache for every new token, two thirds of the tiny model's time for a step.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self.room = room
        self._buffers: tuple[Tensor, ...] = ()  # keys and values, once a prompt was read
        self._prompt = 0

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values (N, heads, new tokens, width); returns all of both."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        # `get_seq_length` counts the columns of `keys`, which is a view of what is written so far.
        start = self.get_seq_length()
        stop = start + key_states.shape[2]
        if not self._buffers:
            # The dtype that attention computes in: rotary embedding may return float32 keys under autocast.
            self._buffers = tuple(
                new.new_empty((*new.shape[:2], stop + self.room, new.shape[3]), dtype=value_states.dtype)
                for new in (key_states, value_states)
            )
        for buffer, new in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, start:stop] = new
        return self._show(stop)

    def _show(self, stop: int) -> tuple[Tensor, Tensor]:
        """Make `keys` and `values` the written part of the buffers: views, nothing is copied."""
        keys, values = (buffer[:, :, :stop] for buffer in self._buffers)
        self.keys, self.values = keys, values
        return keys, values

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each row; what is cached so far is a prompt, which `reorder_cache` leaves where it is."""
        self._prompt = self.get_seq_length()
        self._buffers = tuple(buffer.repeat_interleave(repeats, dim=0) for buffer in self._buffers)
        self._show(self._prompt)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i continues as row `beam_idx[i]`, one of the same prompt."""
        stop = self.get_seq_length()
        # Beams of a prompt have equal keys and values in its columns: those need not move.
        for buffer in self._buffers:
            buffer[:, :, self._prompt : stop] = buffer[beam_idx, :, self._prompt : stop]

    def batch_select_indices(self, indices: Tensor) -> None:
        """Only the rows `indices` stay."""
        stop = self.get_seq_length()
        self._buffers = tuple(buffer[indices] for buffer in self._buffers)
        self._show(stop)


def roomy_cache(llm: PreTrainedModel, room: int) -> Cache:
    """A KV cache for `llm`: a prompt of any length, then at most `room` tokens."""
    layers = DynamicCache(config=llm.config).layers
    return Cache(layers=[RoomyLayer(room) if type(layer) is DynamicLayer else layer for layer in layers])


def cache_name(llm: PreTrainedModel) -> str | None:
    """What `llm` calls its cache: Mamba has a name of its own, RWKV takes none."""
    taken = inspect.signature(llm.forward).parameters
    return next((name for name in ("past_key_values", "cache_params") if name in taken), None)


class TransformersRunner:
    """A `Runner` (see there) of any causal language model, through Transformers."""

    def __init__(self, llm: PreTrainedModel) -> None:
        self._llm = llm
        self._cache: Any = None  # a Cache; its type asks `reorder_cache` for another class of tensor
        self._cache_name = cache_name(llm) or "past_key_values"

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int, beams: int = 1) -> Tensor:
        """Read N prompts; the next token's logits (N, V)."""
        self._cache = roomy_cache(self._llm, room)
        self._mask, self._prompts = mask, len(mask)
        # Without a mask Transformers chooses the causal kernel, which is faster than one that reads a mask.
        self._unpadded = bool(mask.all())
        logits = self._logits(positions, inputs_embeds=embeds)
        # The prompt is read once; only then does each beam get a copy of its keys and values.
        if beams > 1:
            for layer in self._cache.layers:
                if isinstance(layer, RoomyLayer):
                    layer.batch_repeat_interleave(beams)
                else:  # of linear attention there is no such call, or one that leaves its state out
                    rows = torch.arange(self._prompts, device=mask.device).repeat_interleave(beams)
                    layer.reorder_cache(rows)
            self._mask = self._mask.repeat_interleave(beams, dim=0)
        return logits

    def reorder(self, beams: Tensor) -> None:
        """Row i continues as row `beams[i]`."""
        self._cache.reorder_cache(beams)

    def keep(self, rows: Tensor) -> None:
        """Only the prompts `rows` go on."""
        beams = len(self._mask) // self._prompts
        self._prompts = len(rows)
        rows = (rows[:, None] * beams + torch.arange(beams, device=rows.device)).flatten()
        self._mask = self._mask[rows]
        for layer in self._cache.layers:
            if isinstance(layer, RoomyLayer):
                layer.batch_select_indices(rows)
            else:
                layer.reorder_cache(rows)  # see `prefill`; it takes any number of rows

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Read one more token of each row; logits (rows, V)."""
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        return self._logits(positions, input_ids=tokens[:, None])

    def _logits(self, positions: Tensor, **inputs: Tensor) -> Tensor:
        # Mamba's state has no columns: its mask is for the tokens that are read now.
        unmasked = self._unpadded or (self._cache_name == "cache_params" and "input_ids" in inputs)
        output = self._llm(
            **inputs,
            attention_mask=None if unmasked else self._mask,
            position_ids=positions,
            **{self._cache_name: self._cache},
            use_cache=True,
            # of the prompts' other positions they would be (N, T, V)
            logits_to_keep=1,
        )
        return output.logits[:, -1].float()
