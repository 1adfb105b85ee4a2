"""One Llama layer, computed with Transformers' weights: norms, rotary embedding, attention inputs, feed-forward.

Llama (Touvron et al. 2023, arXiv:2302.13971): pre-normalisation with RMSNorm, rotary position embedding, grouped-query
attention (Ainslie et al. 2023, arXiv:2305.13245), SwiGLU feed-forward (Shazeer 2020, arXiv:2002.05202).

Shapes: N rows, T positions, P places, H hidden size, heads and width of a head.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, PreTrainedModel

BLOCK_ROWS = 64  # of a weight that are multiplied at a time, see `linear_by_blocks`
FUSED_WIDTH = 256  # hidden size up to which concatenated copies of matrices save more than they cost
_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def matmul_dtype(llm: PreTrainedModel) -> torch.dtype:
    """The dtype that `llm`'s matrix products have at the moment."""
    device = llm.device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return llm.dtype
    return torch.get_autocast_dtype(device)


def supports(llm: PreTrainedModel) -> TypeGuard[LlamaForCausalLM]:
    """Whether our kernels compute `llm`: a Llama with plain matrices (no adapters, no shards) and no biases."""
    if type(llm) is not LlamaForCausalLM or llm.config.hidden_act != "silu":
        return False
    if llm.config.attention_bias or llm.config.mlp_bias:
        return False
    return all(
        type(getattr(part, name)) is nn.Linear and type(getattr(part, name).weight) is nn.Parameter
        for layer in llm.model.layers
        for part in (layer.self_attn, layer.mlp)
        for name in _MATRICES
        if hasattr(part, name)
    )


@dataclass(frozen=True)
class LlamaLayer:
    """One layer: its weights in the dtype of the matrix products (norms as they are), and its two halves."""

    qkv: tuple[Tensor, ...]
    out: Tensor
    gate_up: tuple[Tensor, ...]
    down: Tensor
    before_attention: Tensor
    before_mlp: Tensor
    heads: tuple[int, int, int]  # of queries, keys, values
    eps: float
    acting: bool

    @classmethod  # `layer` is a LlamaDecoderLayer, but a ModuleList's type does not say so
    def of(cls, layer: Any, llm: LlamaForCausalLM, dtype: torch.dtype, *, acting: bool) -> LlamaLayer:
        """The layer's weights; `acting` needs no gradients, so on a CPU its small matrices are concatenated to one."""
        fused = acting and llm.device.type == "cpu" and llm.config.hidden_size <= FUSED_WIDTH
        attention, mlp, config = layer.self_attn, layer.mlp, llm.config
        key_heads = config.num_key_value_heads or config.num_attention_heads
        qkv = tuple(p.weight.to(dtype) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        gate_up = tuple(p.weight.to(dtype) for p in (mlp.gate_proj, mlp.up_proj))
        return cls(
            qkv=(torch.cat(qkv),) if fused else qkv,
            out=attention.o_proj.weight.to(dtype),
            gate_up=(torch.cat(gate_up),) if fused else gate_up,
            down=mlp.down_proj.weight.to(dtype),
            before_attention=layer.input_layernorm.weight,
            before_mlp=layer.post_attention_layernorm.weight,
            heads=(config.num_attention_heads, key_heads, key_heads),
            eps=config.rms_norm_eps,
            acting=acting,
        )

    def attention_inputs(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (N, heads, T, width) of `x` (N, T, H), with rotary embedding."""
        normed = rms_norm(x, self.before_attention, self.eps, self.out.dtype, acting=self.acting)
        # One product for queries, keys and values if they are concatenated, else three; heads apart: (N, T, heads,
        # width).
        joined = [F.linear(normed, weight).unflatten(-1, (-1, cos.shape[-1])) for weight in self.qkv]
        queries, keys, values = self.heads
        if len(joined) == 1:
            to_rotate, value = joined[0].split([queries + keys, values], dim=2)
            query, key = rotated(to_rotate, cos, sin).split([queries, keys], dim=2)
        else:
            query, key, value = rotated(joined[0], cos, sin), rotated(joined[1], cos, sin), joined[2]
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def after_attention(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's output (N, T, H), from its input `x` and attention's result `mixed` (N, heads, T, width)."""
        # Both halves are residual: x + attention(norm(x)), then x + mlp(norm(x)).
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.out)
        normed = rms_norm(x, self.before_mlp, self.eps, self.out.dtype, acting=self.acting)
        if len(self.gate_up) == 1:
            gate, up = F.linear(normed, self.gate_up[0]).chunk(2, dim=-1)
        else:
            gate, up = (F.linear(normed, weight) for weight in self.gate_up)
        return x + F.linear(F.silu(gate) * up, self.down)  # SwiGLU: Shazeer 2020, eq. 6, without biases


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, *, acting: bool = False) -> Tensor:
    """Root-mean-square norm of the last dimension, in `dtype` (Zhang and Sennrich 2019, arXiv:1910.07467, eq. 4).

    `acting` has no gradients and takes half as many passes over a CPU's memory; its last digits may differ.
    """
    if not acting or x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, x.shape[-1:], weight, eps).to(dtype)
    # x / sqrt(mean(x^2) + eps) * weight, in place after the first pass.
    mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    return (x * mean_square.add_(eps).rsqrt_()).mul_(weight).to(dtype)


def linear_by_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """`F.linear(x, weight)` of `x` (N, in) and a `weight` (out, in) larger than the caches.

    For 4 to 12 rows in float32 MKL first copies the whole weight into another layout. A batch of small products reads
    it once instead (torch 2.13, a Xeon, 5 rows, 32,001 x 512: 8.0 instead of 13.3 ms).
    """
    blocks = len(weight) // BLOCK_ROWS
    if x.device.type != "cpu" or x.dtype != torch.float32 or not 4 <= len(x) <= 12 or blocks < 64:
        return F.linear(x, weight)
    whole = blocks * BLOCK_ROWS
    # (blocks, N, in) x (blocks, in, BLOCK_ROWS); what is left of the rows is multiplied in the usual way.
    parts = torch.bmm(x.expand(blocks, -1, -1), weight[:whole].view(blocks, BLOCK_ROWS, -1).transpose(1, 2))
    return torch.cat([parts.transpose(0, 1).flatten(1), F.linear(x, weight[whole:])], dim=1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding (Su et al. 2021, arXiv:2104.09864, eq. 34) of `x` (N, T, heads, width).

    `cos` and `sin` (N, T, width) are `rotary_tables`' of the positions. Pairs are (i, i + width / 2), as in
    Transformers' `apply_rotary_pos_emb`, whose result this is to the last bit, in fewer passes.
    """
    swapped = x.roll(x.shape[-1] // 2, dims=-1)  # a roll's gradient is a roll; a slice's would be padded with zeros
    return (x * cos[:, :, None]).add_(swapped.mul_(sin[:, :, None]))


def rotary_tables(llm: LlamaForCausalLM, x: Tensor, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine (N, T, width) of `positions` (N, T) for `rotated`; the first half of the sines is negative."""
    cos, sin = (table.to(dtype) for table in llm.model.rotary_emb(x, positions))
    first, second = sin.chunk(2, dim=-1)
    return cos, torch.cat([-first, second], dim=-1)
