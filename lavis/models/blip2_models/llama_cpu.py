"""Llama without gradients on a CPU: the tiny model's forward pass for acting, about twice as fast as Transformers'.

Same weights, same arithmetic; what is saved is around it: one matrix product for query, key and value and one for gate
and up, rows taken a few at a time so that activations stay in the cache, keys and values written in place, and in the
last layer only the position whose token is asked for. Everything but a plain `LlamaForCausalLM` on a CPU goes through
Transformers (`supports`).

Shapes: N prompts, T positions, H hidden size, heads and width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from lavis.models.blip2_models.attention import additive_mask, attend

ROWS = 8  # prompts taken at a time


def matmul_dtype(llm: PreTrainedModel) -> torch.dtype:
    """The dtype that `llm`'s matrix products have on the CPU at the moment."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else llm.dtype


def supports(llm: PreTrainedModel) -> bool:
    """Whether `llm` is a Llama that this module computes: on a CPU, without biases."""
    if type(llm) is not LlamaForCausalLM or llm.device.type != "cpu":
        return False
    return not (llm.config.attention_bias or llm.config.mlp_bias) and llm.config.hidden_act == "silu"


@dataclass(frozen=True)
class _Layer:
    """One layer's weights, fused, in the dtype of the matrix products (norms as they are)."""

    qkv: Tensor
    out: Tensor
    gate_up: Tensor
    down: Tensor
    before_attention: Tensor
    before_mlp: Tensor

    @classmethod
    def of(cls, layer: torch.nn.Module, dtype: torch.dtype) -> _Layer:
        attention, mlp = layer.self_attn, layer.mlp
        qkv = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
        return cls(
            qkv=qkv.to(dtype),
            out=attention.o_proj.weight.to(dtype),
            gate_up=torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]).to(dtype),
            down=mlp.down_proj.weight.to(dtype),
            before_attention=layer.input_layernorm.weight,
            before_mlp=layer.post_attention_layernorm.weight,
        )


class LlamaRunner:
    """`prefill` once, then `step` as often as `room` allows; each returns the next token's logits (N, V), float32.

    Or `read` whole rows at once.     Takes the weights as they are when it is made: make a new one after training.
    """

    def __init__(self, llm: LlamaForCausalLM, dtype: torch.dtype) -> None:
        config = llm.config
        self._llm = llm
        self._dtype = dtype
        self._layers = [_Layer.of(layer, dtype) for layer in llm.model.layers]
        self._heads, self._key_heads = config.num_attention_heads, config.num_key_value_heads
        self._width = llm.model.layers[0].self_attn.head_dim
        self._eps = config.rms_norm_eps
        self._vocabulary = llm.lm_head.weight.to(dtype)
        self._stores: list[tuple[Tensor, Tensor]] = []
        self._mask = torch.empty(0, dtype=torch.long)

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int) -> Tensor:
        """Read prompts: `embeds` (N, T, H), `mask` (N, T) with 0 on pads (on the left), `positions` (N, T)."""
        count, length, _ = embeds.shape
        self._mask = mask
        self._make_room(count, length + room)
        last = []
        for rows in _slices(count):
            seen = mask[rows, None, None, :].bool() & torch.ones(length, length, dtype=torch.bool).tril()
            last.append(self._forward(embeds[rows], seen, positions[rows], rows))
        return self._logits(torch.cat(last)[:, -1])

    def read(self, embeds: Tensor, seen: Tensor, positions: Tensor) -> Tensor:
        """Hidden states (N, T, H) of whole rows after the final norm, in the dtype of the matrix products.

        `seen` (N, 1, T, T), bool and lower triangular, says who looks where.
        """
        self._make_room(*embeds.shape[:2])
        parts = [
            self._forward(embeds[rows], seen[rows], positions[rows], rows, last_only=False)
            for rows in _slices(len(embeds))
        ]
        return self._norm(torch.cat(parts), self._llm.model.norm.weight)

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Read one more token of each row: `tokens` (N,), `positions` (N, 1)."""
        start = self._mask.shape[1]
        self._mask = torch.cat([self._mask, self._mask.new_ones(len(tokens), 1)], dim=1)
        embeds = self._llm.model.embed_tokens(tokens[:, None])
        seen = self._mask[:, None, None, :].bool()
        return self._logits(self._forward(embeds, seen, positions, slice(None), start)[:, -1])

    def _make_room(self, count: int, length: int) -> None:
        shape = (2, count, self._key_heads, length, self._width)
        self._stores = [tuple(torch.empty(shape, dtype=self._dtype)) for _ in self._layers]

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self._norm(hidden, self._llm.model.norm.weight), self._vocabulary).float()

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, self._eps).to(self._dtype)

    def _forward(
        self, x: Tensor, seen: Tensor, positions: Tensor, rows: slice, start: int = 0, last_only: bool = True
    ) -> Tensor:
        """Hidden states (n, T, H) before the final norm, T = 1 if `last_only`; keys and values go into the stores."""
        cos, sin = (table.to(self._dtype) for table in self._llm.model.rotary_emb(x, positions))
        bias = additive_mask(seen, self._dtype)
        stop = start + x.shape[1]
        for layer, (keys, values) in zip(self._layers, self._stores, strict=True):
            sizes = [self._heads, self._key_heads, self._key_heads]
            qkv = F.linear(self._norm(x, layer.before_attention), layer.qkv)
            qkv = qkv.view(*x.shape[:2], sum(sizes), self._width).transpose(1, 2)
            query, key, value = qkv.split(sizes, dim=1)
            query, key = apply_rotary_pos_emb(query, key, cos, sin)
            keys[rows, :, start:stop], values[rows, :, start:stop] = key, value
            if last_only and layer is self._layers[-1]:
                query, x, bias = query[:, :, -1:], x[:, -1:], bias[:, :, -1:]
            x = x + self._attention(query, keys[rows, :, :stop], values[rows, :, :stop], bias, layer)
            gate, up = F.linear(self._norm(x, layer.before_mlp), layer.gate_up).chunk(2, dim=-1)
            x = x + F.linear(F.silu(gate) * up, layer.down)
        return x

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, layer: _Layer) -> Tensor:
        groups = self._heads // self._key_heads
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        mixed = attend(query, key, value, bias, self._width**-0.5, causal=True)
        return F.linear(mixed.transpose(1, 2).flatten(2), layer.out)


def _slices(count: int) -> Iterator[slice]:
    for start in range(0, count, ROWS):
        yield slice(start, min(start + ROWS, count))
