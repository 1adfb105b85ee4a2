"""Llama's forward pass for training: hidden states only where a token is predicted, differentiable in its input.

Two things are spared against Transformers' forward pass: the last layer computes only the places whose next token is
predicted, and the prompt's attention is a causal kernel, where a mask would cost recompute.

Shapes: N rows, T positions, P places, H hidden size, heads and width of a head.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import LlamaForCausalLM

from lavis.models.fast_llm.attention import cpu_attention, plain_is_faster
from lavis.models.fast_llm.llama_layer import LlamaLayer, matmul_dtype, rms_norm, rotary_tables


def hidden_at(
    llm: LlamaForCausalLM, embeds: Tensor, allowed: Tensor, positions: Tensor, places: Tensor, causal: int
) -> Tensor:
    """Hidden states after the final norm at `places` (N, P): (N, P, H); differentiable in `embeds` (N, T, H).

    `allowed` (N, 1, T - causal, T), bool, is the attention mask of the positions from `causal` on; those before attend
    causally. `positions` (N, T). With gradient checkpointing on (Chen et al. 2016, arXiv:1604.06174) a layer's
    activations are recomputed in the backward pass.
    """
    dtype = matmul_dtype(llm)
    cos, sin = rotary_tables(llm, embeds, positions, dtype)
    layers = [LlamaLayer.of(layer, llm, dtype, acting=False) for layer in llm.model.layers]
    recompute = getattr(llm.model.layers[0], "gradient_checkpointing", False) and torch.is_grad_enabled()
    # All layers but the last at every position, because later positions attend to them.
    x = embeds
    for layer in layers[:-1]:
        x = (
            checkpoint(_whole_layer, layer, x, cos, sin, allowed, causal, use_reentrant=False)
            if recompute
            else _whole_layer(layer, x, cos, sin, allowed, causal)
        )
    # Keys and values of the last layer are needed at all T positions, queries at the P places alone.
    query, key, value = layers[-1].attention_inputs(x, cos, sin)
    # The last layer at the places alone. Their rows of the mask (N, 1, P, T): causal up to `causal`, then `allowed`.
    mask = torch.arange(allowed.shape[3], device=places.device) <= places[..., None]
    if allowed.shape[2]:
        behind = allowed[:, 0].take_along_dim((places - causal).clamp(min=0)[..., None], dim=1)
        mask = torch.where(places[..., None] < causal, mask, behind)
    mask = mask[:, None]
    query = query.take_along_dim(places[:, None, :, None], dim=2)
    x = x.take_along_dim(places[..., None], dim=1)
    x = layers[-1].after_attention(x, _sdpa(query, key, value, mask))
    return rms_norm(x, llm.model.norm.weight, llm.config.rms_norm_eps, dtype)


def _whole_layer(layer: LlamaLayer, x: Tensor, cos: Tensor, sin: Tensor, allowed: Tensor, causal: int) -> Tensor:
    """The layer at every position; see `hidden_at`."""
    query, key, value = layer.attention_inputs(x, cos, sin)
    # Up to `causal` positions a causal kernel, which needs no mask; behind them the mask decides.
    mixed = [_sdpa(query[:, :, :causal], key[:, :, :causal], value[:, :, :causal], None)]
    if allowed.shape[2]:
        mixed.append(_sdpa(query[:, :, causal:], key, value, allowed))
    return layer.after_attention(x, torch.cat(mixed, dim=2))


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, eq. 1) under a bool mask, or causal."""
    # Both give (N, heads, T, width); `cpu_attention` has the order of Transformers, (N, T, heads, width).
    if plain_is_faster(query, causal=mask is None):
        return cpu_attention(None, query, key, value, mask, is_causal=mask is None)[0].transpose(1, 2)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=query.shape[1] != key.shape[1]
    )
