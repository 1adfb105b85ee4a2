"""Attention for small models in bfloat16 autocast on a CPU.

Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, eq. 1) by plain matrix products, a few rows at a
time, as many as fit into the processor's cache. Without AMX (the CPU's instructions for products of bfloat16 tiles)
PyTorch's fused kernel is slow: the plain products take a fifth of its time for one new token of heads as narrow as the
tiny model's, and 0.3 to 0.7 for causal attention forward and backward of 170 to 2,000 positions (torch 2.13, one core
of an EPYC with AVX-512, 6 heads of width 32 or 9 of width 64). With AMX the fused kernel takes 0.4 to 0.7 of the plain
products' time forward, and with autograd's gradient. With `_Causal`'s gradient heads of width 32 take 0.3 to 0.9 of the
fused kernel's time (a training step of the tiny model 0.76 to 0.86); those of width 64 gain nothing in a step of
SmolLM2-135M (one core of a Xeon with AMX, 2026-11-30). Everywhere else Transformers' `sdpa` runs.

Shapes: N rows, T new positions (queries), S positions attended to (keys), heads and width of a head.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME = "emac_cpu"  # value of a model's `attn_implementation`
CACHE_BYTES = 2 << 20  # scores computed at a time
BLOCK = 96  # queries computed at a time under a causal mask
NARROW = 32  # width of heads up to which `_Causal` beats the fused kernel with AMX
# Whether this CPU multiplies tiles of bfloat16. Older versions of PyTorch cannot say.
_CAPABILITIES: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
AMX = bool(_CAPABILITIES.get("amx_bf16", False))


def plain_is_faster(query: Tensor, *, causal: bool) -> bool:
    """Whether plain matrix products beat PyTorch's fused kernel on `query`; `causal`: under no other mask."""
    if query.device.type != "cpu" or query.dtype != torch.bfloat16:
        return False
    trains = query.requires_grad and torch.is_grad_enabled()
    return not AMX or (causal and trains and query.shape[-1] <= NARROW)


def cpu_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention with the signature that Transformers calls.

    `module` is the attention layer, or None. `query` (N, heads, T, width), `key` and `value` (N, key heads, S, width),
    `attention_mask` None (causal) or (N or 1, 1, T, S), bool or additive. Returns (N, T, heads, width).
    """
    if query.device.type == "cpu" and torch.is_autocast_enabled("cpu"):
        # Rotary embedding returns float32; autocast would cast the fused kernel's inputs, so this casts them too.
        query, key, value = (x.to(torch.get_autocast_dtype("cpu")) for x in (query, key, value))
    per_head = attention_mask is not None and attention_mask.shape[1] > 1
    causal = kwargs.get("is_causal")
    causal = bool(getattr(module, "is_causal", True) if causal is None else causal)
    new, seen = query.shape[2], key.shape[2]
    causal_alone = attention_mask is None and causal and new == seen
    plain = plain_is_faster(query, causal=causal_alone)
    if dropout or not plain or per_head or value.shape[-1] != query.shape[-1]:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    if causal_alone:
        return causal_attention(query, key, value, scaling).transpose(1, 2), None
    # Grouped-query attention: several heads of queries share a head of keys and values.
    key, value = (repeat_kv(x, query.shape[1] // x.shape[1]) for x in (key, value))
    # The additive mask (N, 1, T, S), from any form of mask that Transformers passes. The last T of S positions are new.
    if attention_mask is None:
        attention_mask = torch.ones(1, 1, new, seen, dtype=torch.bool)
        attention_mask = attention_mask.tril(seen - new) if causal else attention_mask
    if attention_mask.dtype == torch.bool:
        bias = additive_mask(attention_mask, query.dtype)
    else:
        bias = attention_mask.to(query.dtype)
    bias = bias.expand(len(query), 1, new, seen)
    parts = [
        attend(q, k, v, b, scaling, causal)
        for q, k, v, b in zip(*(x.split(_rows_in_cache(query, seen)) for x in (query, key, value, bias)), strict=True)
    ]
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).transpose(1, 2), None


def _rows_in_cache(query: Tensor, seen: int) -> int:
    """How many rows keep a block's scores (heads x BLOCK x S) in the processor's cache; at least one."""
    return max(1, CACHE_BYTES // (query.shape[1] * min(query.shape[2], BLOCK) * seen * query.element_size()))


def attend(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scaling: float, causal: bool = True) -> Tensor:
    """Attention of `query` (N, heads, T, width) over `key` and `value` (N, heads, S, width) with `bias` (N, 1, T, S).

    A block of queries at a time. Under a causal mask each block leaves out the keys after its last query, which saves
    half of the products (as FlashAttention-2 skips blocks: Dao 2023, arXiv:2307.08691, sec. 3.1; but a row's softmax
    is computed whole here).
    """
    new, seen = query.shape[2], key.shape[2]
    if not causal or new <= BLOCK:
        return _product(query, key, value, bias, scaling)
    parts = []
    for start in range(0, new, BLOCK):
        stop = min(start + BLOCK, new)
        # Query i (of T) is at position S - T + i, so the block's last query sees the first S - T + stop keys.
        last = seen - new + stop
        q, k, v = query[:, :, start:stop], key[:, :, :last], value[:, :, :last]
        parts.append(_product(q, k, v, bias[:, :, start:stop, :last], scaling))
    return torch.cat(parts, dim=2)


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
    """Causal attention of `query` (N, heads, T, width) over `key` and `value` (N, key heads, T, width), as `query`."""
    rows, heads, length, width = query.shape
    key_heads, group = key.shape[1], heads // key.shape[1]
    at_once = _rows_in_cache(query, length)
    # Queries that share a head of keys (grouped-query attention) are rows of one product: (N * key heads, T * group,
    # width), those of one position side by side.
    query = query.unflatten(1, (key_heads, group)).transpose(2, 3).reshape(rows * key_heads, length * group, width)
    key, value = (x.reshape(rows * key_heads, length, width) for x in (key, value))
    parts = [
        _Causal.apply(q, k, v, scaling)
        for q, k, v in zip(*(x.split(key_heads * at_once) for x in (query, key, value)), strict=True)
    ]
    mixed = parts[0] if len(parts) == 1 else torch.cat(parts)
    return mixed.view(rows, key_heads, length, group, width).transpose(2, 3).flatten(1, 2)


class _Causal(torch.autograd.Function):
    """Causal attention by blocks of queries, as `attend` computes it, with a gradient that skips the same products.

    Autograd would pad each block's gradient of the keys and values with zeros to all T positions; here it is added to
    those that the block sees. The weights of attention (B, T * group, up to T) are kept for the backward pass.
    """

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scaling: float) -> Tensor:
        """`query` (B, T * group, width), `key` and `value` (B, T, width); as `query`."""
        mixed, kept = torch.empty_like(query), []
        for start, stop, asking in _blocks(query, key):
            q, k = query[:, asking], key[:, :stop]
            # scaling * q k^T; `beta=0` ignores the first argument.
            scores = torch.baddbmm(q.new_empty(1, 1, 1), q, k.transpose(1, 2), beta=0, alpha=scaling)
            # Only the block's own positions may lie behind a query.
            later = torch.ones(stop - start, stop - start, dtype=torch.bool, device=q.device).triu(1)
            later = later.repeat_interleave(query.shape[1] // key.shape[1], dim=0)
            scores[:, :, start:].masked_fill_(later, -torch.inf)
            weights = scores.softmax(-1)
            mixed[:, asking] = torch.bmm(weights, value[:, :stop])
            kept.append(weights)
        ctx.scaling = scaling
        ctx.save_for_backward(query, key, value, *kept)
        return mixed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """With weights P = softmax(S), S = scaling * Q K^T and O = P V: dV = P^T dO, dP = dO V^T, then the softmax."""
        query, key, value, *kept = ctx.saved_tensors
        of_query = torch.empty_like(query)
        of_key, of_value = (torch.zeros_like(x, dtype=torch.float32) for x in (key, value))
        for weights, (_, stop, asking) in zip(kept, _blocks(query, key), strict=True):
            of_mixed = gradient[:, asking]
            of_value[:, :stop] += torch.bmm(weights.transpose(1, 2), of_mixed)
            of_weights = torch.bmm(of_mixed, value[:, :stop].transpose(1, 2))
            # dS = P * (dP - sum(dP * P))
            of_scores = torch.ops.aten._softmax_backward_data(of_weights, weights, -1, weights.dtype)
            of_query[:, asking] = torch.bmm(of_scores, key[:, :stop])
            of_key[:, :stop] += torch.bmm(of_scores.transpose(1, 2), query[:, asking])
        of_query.mul_(ctx.scaling)
        return of_query, of_key.mul_(ctx.scaling).to(key.dtype), of_value.to(value.dtype), None


def _blocks(query: Tensor, key: Tensor) -> Iterator[tuple[int, int, slice]]:
    """Blocks of positions, from `start` to `stop`, and the rows of `query` that ask from there."""
    group = query.shape[1] // key.shape[1]
    for start in range(0, key.shape[1], BLOCK):
        stop = min(start + BLOCK, key.shape[1])
        yield start, stop, slice(start * group, stop * group)


def additive_mask(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """What is added to the scores: 0 where `mask` (any shape, bool) is True, else the dtype's lowest number."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(~mask, torch.finfo(dtype).min)


def _product(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scaling: float) -> Tensor:
    rows, heads, new, width = query.shape
    # One batched product over all rows and heads: softmax(q k^T * scaling + bias) v.
    count, seen = rows * heads, key.shape[2]
    query, key, value = (x.reshape(count, -1, width) for x in (query, key, value))
    bias = bias.expand(rows, heads, new, seen).reshape(count, new, seen)
    if new == 1:
        # Both give the same bits. Transposed keys are read twice as fast, but a KV cache's slice would be copied first.
        if key.is_contiguous():
            scores = torch.bmm(query, key.transpose(1, 2))
        else:
            scores = torch.bmm(key, query.transpose(1, 2)).transpose(1, 2)
        scores = scores.mul(scaling).add_(bias)
    else:
        # scores = bias + scaling * q k^T, in one pass over memory.
        scores = torch.baddbmm(bias, query, key.transpose(1, 2), alpha=scaling)
    return torch.bmm(scores.softmax(-1), value).view(rows, heads, new, width)


def autocast_rotary(llm: PreTrainedModel) -> None:
    """Under CPU autocast, compute `llm`'s rotary embedding in the autocast dtype, as a model in bfloat16 does.

    Otherwise its float32 tables make queries and keys float32 in strided memory, which is seven times slower: half of
    the tiny model's time for a prompt.
    """
    for name, module in llm.named_modules():
        if name.endswith("rotary_emb"):
            module.register_forward_hook(_in_autocast_dtype)


def _in_autocast_dtype(module: nn.Module, inputs: object, tables: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    if not torch.is_autocast_enabled("cpu") or tables[0].device.type != "cpu":
        return tables
    return tuple(table.to(torch.get_autocast_dtype("cpu")) for table in tables)


AttentionInterface.register(NAME, cpu_attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
