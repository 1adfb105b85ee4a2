"""Llama's forward pass where Transformers' does work that is not asked for.

Same weights, same arithmetic, less around it. Training (`hidden_at`): in the last layer only the places whose next
token is predicted, and a causal kernel for the prompt where a mask would cost twice. Acting (`LlamaRunner`): no pads in
prompts of unlike length, keys and values written in place, and beams that share their prompt's keys and values instead
of copies of them. On a CPU the runner also fuses matrices and takes rows a few at a time, so that activations stay in
the cache: the tiny model acts twice as fast. Everything but a plain `LlamaForCausalLM` goes through Transformers
(`supports`).

Shapes: N prompts, T positions, P places, B beams, H hidden size, heads and width of a head, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from lavis.models.blip2_models.attention import additive_mask, attend, cpu_attention
from lavis.models.blip2_models.row_gradients import chunked

ROWS = 8  # whole rows read at a time
PREFILL = {"cpu": 1 << 19, "cuda": 1 << 26}  # tokens x hidden size of the prompts read at a time
MULTIPLE = {"cpu": 32, "cuda": 1}  # of tokens that prompts are read in: oneDNN builds kernels for every new length
FUSED_WIDTH = 256  # hidden size up to which copies of matrices, side by side, save more than they cost
_MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def matmul_dtype(llm: PreTrainedModel) -> torch.dtype:
    """The dtype that `llm`'s matrix products have at the moment."""
    device = llm.device.type
    if device not in PREFILL or not torch.is_autocast_enabled(device):
        return llm.dtype
    return torch.get_autocast_dtype(device)


def supports(llm: PreTrainedModel) -> bool:
    """Whether `llm` is a Llama that this module computes: whole plain matrices (no adapters, no shards), no biases."""
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
class _Layer:
    """One layer: its weights in the dtype of the matrix products (norms as they are), and its two halves."""

    qkv: tuple[Tensor, ...]
    out: Tensor
    gate_up: tuple[Tensor, ...]
    down: Tensor
    before_attention: Tensor
    before_mlp: Tensor
    heads: tuple[int, int, int]  # of queries, keys, values
    eps: float

    @classmethod
    def of(cls, layer: nn.Module, llm: LlamaForCausalLM, dtype: torch.dtype, *, fused: bool) -> _Layer:
        """`fused` copies matrices into one: worth it where many small products follow."""
        attention, mlp, config = layer.self_attn, layer.mlp, llm.config
        qkv = tuple(p.weight.to(dtype) for p in (attention.q_proj, attention.k_proj, attention.v_proj))
        gate_up = tuple(p.weight.to(dtype) for p in (mlp.gate_proj, mlp.up_proj))
        return cls(
            qkv=(torch.cat(qkv),) if fused else qkv,
            out=attention.o_proj.weight.to(dtype),
            gate_up=(torch.cat(gate_up),) if fused else gate_up,
            down=mlp.down_proj.weight.to(dtype),
            before_attention=layer.input_layernorm.weight,
            before_mlp=layer.post_attention_layernorm.weight,
            heads=(config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads),
            eps=config.rms_norm_eps,
        )

    def attention_inputs(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (N, heads, T, width) of `x` (N, T, H), rotated to their positions."""
        normed = rms_norm(x, self.before_attention, self.eps, self.out.dtype)
        if len(self.qkv) == 1:
            joined = F.linear(normed, self.qkv[0])
            parts = joined.view(*x.shape[:2], sum(self.heads), -1).transpose(1, 2).split(self.heads, dim=1)
        else:
            parts = [
                F.linear(normed, weight).view(*x.shape[:2], heads, -1).transpose(1, 2)
                for weight, heads in zip(self.qkv, self.heads, strict=True)
            ]
        return *apply_rotary_pos_emb(parts[0], parts[1], cos, sin), parts[2]

    def after_attention(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's result (N, T, H), from its input `x` and what attention gave: (N, heads, T, width)."""
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.out)
        normed = rms_norm(x, self.before_mlp, self.eps, self.out.dtype)
        if len(self.gate_up) == 1:
            gate, up = F.linear(normed, self.gate_up[0]).chunk(2, dim=-1)
        else:
            gate, up = (F.linear(normed, weight) for weight in self.gate_up)
        return x + F.linear(F.silu(gate) * up, self.down)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square norm of the last dimension, in `dtype`."""
    return F.rms_norm(x, x.shape[-1:], weight, eps).to(dtype)


# ---- training -------------------------------------------------------------------------------------------------------


def hidden_at(
    llm: LlamaForCausalLM, embeds: Tensor, allowed: Tensor, positions: Tensor, places: Tensor, causal: int
) -> Tensor:
    """Hidden states after the final norm at `places` (N, P): (N, P, H); differentiable in `embeds` (N, T, H).

    `allowed` (N, 1, T - causal, T), bool, says where the positions from `causal` on may look; those before look at all
    before them. `positions` (N, T). Where `llm` has gradient checkpointing on, activations are computed twice.
    """
    dtype = matmul_dtype(llm)
    cos, sin = (table.to(dtype) for table in llm.model.rotary_emb(embeds, positions))
    layers = [_Layer.of(layer, llm, dtype, fused=False) for layer in llm.model.layers]
    twice = getattr(llm.model.layers[0], "gradient_checkpointing", False) and torch.is_grad_enabled()
    x = embeds
    for layer in layers[:-1]:
        x = (
            checkpoint(_whole_layer, layer, x, cos, sin, allowed, causal, use_reentrant=False)
            if twice
            else _whole_layer(layer, x, cos, sin, allowed, causal)
        )
    query, key, value = layers[-1].attention_inputs(x, cos, sin)
    seen = _rows_of_mask(allowed, places, causal)
    query = query.take_along_dim(places[:, None, :, None], dim=2)
    x = x.take_along_dim(places[..., None], dim=1)
    x = layers[-1].after_attention(x, _sdpa(query, key, value, seen))
    return rms_norm(x, llm.model.norm.weight, llm.config.rms_norm_eps, dtype)


def _whole_layer(layer: _Layer, x: Tensor, cos: Tensor, sin: Tensor, allowed: Tensor, causal: int) -> Tensor:
    """The layer at every position; see `hidden_at`."""
    query, key, value = layer.attention_inputs(x, cos, sin)
    mixed = [_sdpa(query[:, :, :causal], key[:, :, :causal], value[:, :, :causal], None)]
    if allowed.shape[2]:
        mixed.append(_sdpa(query[:, :, causal:], key, value, allowed))
    return layer.after_attention(x, torch.cat(mixed, dim=2))


def _rows_of_mask(allowed: Tensor, places: Tensor, causal: int) -> Tensor:
    """Where each of `places` may look: (N, 1, P, T)."""
    total = allowed.shape[3]
    looks_back = torch.arange(total, device=places.device) <= places[..., None]
    if not allowed.shape[2]:
        return looks_back[:, None]
    behind = allowed[:, 0].take_along_dim((places - causal).clamp(min=0)[..., None], dim=1)
    return torch.where(places[..., None] < causal, looks_back, behind)[:, None]


def _sdpa(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Attention under a bool mask, or causal without one."""
    if query.device.type == "cpu" and query.dtype == torch.bfloat16:
        return cpu_attention(None, query, key, value, mask, is_causal=mask is None)[0].transpose(1, 2)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=query.shape[1] != key.shape[1]
    )


# ---- acting ---------------------------------------------------------------------------------------------------------


class LlamaRunner:
    """`prefill` once, then `step` as often as `room` allows; each returns the next token's logits (N, V), float32.

    After `expand(B)` there are B beams to a prompt, and `step` takes and returns N * B rows. Or `read` whole rows at
    once. Takes the weights as they are when it is made: make a new one after training.
    """

    def __init__(self, llm: LlamaForCausalLM, dtype: torch.dtype) -> None:
        self._llm = llm
        self._dtype = dtype
        fused = llm.device.type == "cpu" and llm.config.hidden_size <= FUSED_WIDTH
        self._layers = [_Layer.of(layer, llm, dtype, fused=fused) for layer in llm.model.layers]
        self._width = llm.model.layers[0].self_attn.head_dim
        self._vocabulary = llm.lm_head.weight.to(dtype)
        # Of each layer, keys and values: (N, key heads, T + room, width).
        self._stores: list[tuple[Tensor, Tensor]] = []
        self._grown: list[tuple[Tensor, Tensor]] = []  # of each beam's own tokens: (N * B, key heads, tokens, width)
        self._mask = torch.empty(0, dtype=torch.bool)  # (N, T + room): which of them are written
        self._written = 0
        self._beams = 0
        self._room = 0

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int) -> Tensor:
        """Read prompts: `embeds` (N, T, H), `mask` (N, T) with 0 on pads (anywhere), `positions` (N, T).

        Pads are left out: rows of like length are read together, each closed up.
        """
        multiple = MULTIPLE.get(embeds.device.type, MULTIPLE["cuda"])
        more = -mask.shape[1] % multiple
        embeds, mask, positions = F.pad(embeds, (0, 0, 0, more)), F.pad(mask, (0, more)), F.pad(positions, (0, more))
        count, length, hidden = embeds.shape
        lengths = mask.sum(1)
        self._mask = torch.arange(length + room, device=mask.device) < lengths[:, None]
        self._written, self._room, self._beams = length, room, 0
        self._make_room(count, length + room)
        real_first = (1 - mask.long()).argsort(dim=1, stable=True)
        last = embeds.new_empty(count, hidden, dtype=torch.promote_types(embeds.dtype, self._dtype))
        for part in chunked(lengths.tolist(), PREFILL.get(embeds.device.type, PREFILL["cuda"]) // hidden):
            rows = torch.tensor(part, device=embeds.device)
            longest = int(lengths[rows].max())
            here = rows[:, None], real_first[rows, : longest + -longest % multiple]
            x = embeds[here]
            seen = torch.ones(1, 1, x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
            last[rows] = self._forward(x, seen, positions[here], rows, last=lengths[rows] - 1)[:, 0].to(last.dtype)
        return self._logits(last)

    def read(self, embeds: Tensor, seen: Tensor, positions: Tensor) -> Tensor:
        """Hidden states (N, T, H) of whole rows after the final norm, in the dtype of the matrix products.

        `seen` (N, 1, T, T), bool and lower triangular, says who looks where.
        """
        self._make_room(*embeds.shape[:2])
        rows = torch.arange(len(embeds), device=embeds.device).split(ROWS)
        parts = [self._forward(embeds[part], seen[part], positions[part], part) for part in rows]
        return self._norm(torch.cat(parts))

    def expand(self, beams: int) -> None:
        """From now on `beams` rows continue each prompt; they read the prompt's keys and values where they are."""
        self._beams = beams
        self._mask = self._mask[:, : self._written]
        self._stores = [tuple(store[:, :, : self._written].contiguous() for store in pair) for pair in self._stores]
        shape = (len(self._mask) * beams, self._layers[0].heads[1], self._room, self._width)
        self._grown = [tuple(torch.empty(2, *shape, dtype=self._dtype, device=self._mask.device)) for _ in self._layers]
        self._tokens = 0

    def reorder(self, beams: Tensor) -> None:
        """Row i goes on as row `beams[i]` (N * B,), one of the same prompt."""
        for keys, values in self._grown:
            for store in (keys, values):
                store[:, :, : self._tokens] = store[beams, :, : self._tokens]

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Read one more token of each row: `tokens` (N,) or (N * B,), `positions` likewise (…, 1)."""
        x = self._llm.model.embed_tokens(tokens[:, None])
        if self._beams:
            return self._logits(self._beam_forward(x, positions)[:, -1])
        self._mask[:, self._written] = True
        self._written += 1
        seen = self._mask[:, None, None, :]
        return self._logits(self._forward(x, seen, positions, slice(None), self._written - 1)[:, -1])

    def _make_room(self, count: int, length: int) -> None:
        # Zeros: what nobody wrote is masked, but a NaN in it would get through the mask.
        shape = (2, count, self._layers[0].heads[1], length, self._width)
        device = self._llm.device
        self._stores = [tuple(torch.zeros(shape, dtype=self._dtype, device=device)) for _ in self._layers]

    def _norm(self, x: Tensor) -> Tensor:
        return rms_norm(x, self._llm.model.norm.weight, self._llm.config.rms_norm_eps, self._dtype)

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self._norm(hidden), self._vocabulary).float()

    def _tables(self, x: Tensor, positions: Tensor) -> Iterator[Tensor]:
        return (table.to(self._dtype) for table in self._llm.model.rotary_emb(x, positions))

    def _forward(
        self,
        x: Tensor,
        seen: Tensor,
        positions: Tensor,
        rows: Tensor | slice,
        start: int = 0,
        last: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (n, T, H) before the final norm; keys and values go into the stores.

        With `last` (n,) only the states at those columns, (n, 1, H).
        """
        cos, sin = self._tables(x, positions)
        bias = additive_mask(seen, self._dtype)
        stop = start + x.shape[1]
        for layer, (keys, values) in zip(self._layers, self._stores, strict=True):
            query, key, value = layer.attention_inputs(x, cos, sin)
            keys[rows, :, start:stop], values[rows, :, start:stop] = key, value
            if start:  # with the room that is left: a matrix product would copy a part of them first
                key, value = keys[rows], values[rows]
            if last is not None and layer is self._layers[-1]:
                query = query.take_along_dim(last[:, None, None, None], dim=2)
                x = x.take_along_dim(last[:, None, None], dim=1)
                bias = bias[0].expand(len(x), *bias.shape[1:]).take_along_dim(last[:, None, None, None], dim=2)
            x = layer.after_attention(x, self._attention(query, key, value, bias))
        return x

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        if query.device.type != "cpu":
            return F.scaled_dot_product_attention(
                query, key, value, attn_mask=bias, enable_gqa=query.shape[1] != key.shape[1]
            )
        groups = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        bias = bias.expand(len(query), *bias.shape[1:])
        return attend(query, key, value, bias, self._width**-0.5, causal=True)

    def _beam_forward(self, x: Tensor, positions: Tensor) -> Tensor:
        """Hidden states (N * B, 1, H) of one more token of each beam."""
        cos, sin = self._tables(x, positions)
        bias = additive_mask(self._mask[:, None, None, :], self._dtype)
        self._tokens += 1
        for layer, store, grown in zip(self._layers, self._stores, self._grown, strict=True):
            query, key, value = layer.attention_inputs(x, cos, sin)
            for kept, new in zip(grown, (key, value), strict=True):
                kept[:, :, self._tokens - 1 : self._tokens] = new
            x = layer.after_attention(x, self._beam_attention(query, store, grown, bias))
        return x

    def _beam_attention(
        self, query: Tensor, prompt: tuple[Tensor, Tensor], grown: tuple[Tensor, Tensor], bias: Tensor
    ) -> Tensor:
        """Attention of `query` (N * B, heads, 1, width) over its prompt, read once for all beams, and its own tokens.

        The beams (and the heads that share keys) of a prompt stand beside one another as rows of one matrix product.
        """
        total, heads, _, width = query.shape
        length, key_heads = self._mask.shape[1], self._layers[0].heads[1]
        count, groups = total // self._beams, heads // key_heads
        query = query.view(count, self._beams, key_heads, groups, width) * width**-0.5
        beside = query.permute(0, 2, 1, 3, 4).reshape(count, key_heads, self._beams * groups, width)
        over_prompt = beside @ prompt[0].transpose(2, 3) + bias
        over_prompt = over_prompt.view(count, key_heads, self._beams, groups, length).transpose(1, 2)
        own_keys, own_values = (
            store[:, :, : self._tokens].view(count, self._beams, key_heads, self._tokens, width) for store in grown
        )
        scores = torch.cat([over_prompt, query @ own_keys.transpose(3, 4)], dim=-1)
        weights = scores.softmax(-1, dtype=torch.float32).to(self._dtype)
        of_prompt, of_own = weights.split([length, self._tokens], dim=-1)
        beside = of_prompt.transpose(1, 2).reshape(count, key_heads, self._beams * groups, length)
        mixed = (beside @ prompt[1]).view(count, key_heads, self._beams, groups, width).transpose(1, 2)
        return (mixed + of_own @ own_values).reshape(total, heads, 1, width)
