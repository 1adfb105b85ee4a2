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

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import LlamaForCausalLM, PreTrainedModel
from transformers.integrations.sdpa_attention import repeat_kv

from lavis.models.blip2_models.attention import additive_mask, attend, cpu_attention, plain_is_faster
from lavis.models.blip2_models.row_gradients import chunked

ROWS = 8  # whole rows read at a time
PREFILL = {"cpu": 1 << 19, "cuda": 1 << 26}  # tokens x hidden size of the prompts read at a time
MULTIPLE = {"cpu": 32, "cuda": 1}  # of tokens that prompts are read in: oneDNN builds kernels for every new length
BLOCK_ROWS = 64  # of a weight that are multiplied at a time, see `linear_by_blocks`
AHEAD = 128  # columns of new tokens that room is made for at a time
ALIKE = 0.75  # of the longest prompt's length: those at least so long share its store
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
    acting: bool

    @classmethod
    def of(cls, layer: nn.Module, llm: LlamaForCausalLM, dtype: torch.dtype, *, acting: bool) -> _Layer:
        """One that is `acting` needs no gradients, and on a CPU its small matrices stand side by side in one."""
        fused = acting and llm.device.type == "cpu" and llm.config.hidden_size <= FUSED_WIDTH
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
            acting=acting,
        )

    def attention_inputs(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values (N, heads, T, width) of `x` (N, T, H), rotated to their positions."""
        normed = self._normed(x, self.before_attention)
        joined = [F.linear(normed, weight).unflatten(-1, (-1, cos.shape[-1])) for weight in self.qkv]
        queries, keys, values = self.heads
        if len(joined) == 1:
            turned, value = joined[0].split([queries + keys, values], dim=2)
            query, key = rotated(turned, cos, sin).split([queries, keys], dim=2)
        else:
            query, key, value = rotated(joined[0], cos, sin), rotated(joined[1], cos, sin), joined[2]
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def after_attention(self, x: Tensor, mixed: Tensor) -> Tensor:
        """The layer's result (N, T, H), from its input `x` and what attention gave: (N, heads, T, width)."""
        x = x + F.linear(mixed.transpose(1, 2).flatten(2), self.out)
        normed = self._normed(x, self.before_mlp)
        if len(self.gate_up) == 1:
            gate, up = F.linear(normed, self.gate_up[0]).chunk(2, dim=-1)
        else:
            gate, up = (F.linear(normed, weight) for weight in self.gate_up)
        return x + F.linear(F.silu(gate) * up, self.down)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.eps, self.out.dtype, acting=self.acting)


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype, *, acting: bool = False) -> Tensor:
    """Root-mean-square norm of the last dimension, in `dtype` (Zhang and Sennrich 2019, arXiv:1910.07467).

    `acting`: without gradients, in half as many passes over a CPU's memory; its last digits may differ.
    """
    if not acting or x.device.type != "cpu" or x.dtype != torch.float32:
        return F.rms_norm(x, x.shape[-1:], weight, eps).to(dtype)
    mean_square = torch.linalg.vector_norm(x, dim=-1, keepdim=True).square_().div_(x.shape[-1])
    return (x * mean_square.add_(eps).rsqrt_()).mul_(weight).to(dtype)


def linear_by_blocks(x: Tensor, weight: Tensor) -> Tensor:
    """`F.linear(x, weight)` of `x` (N, in) and a `weight` (out, in) larger than the caches.

    For 4 to 12 rows in float32 MKL rearranges the whole weight first; as one small product after the other it is read
    once (torch 2.13, a Xeon, 5 rows, 32,001 x 512: 8.0 instead of 13.3 ms).
    """
    blocks = len(weight) // BLOCK_ROWS
    if x.device.type != "cpu" or x.dtype != torch.float32 or not 4 <= len(x) <= 12 or blocks < 64:
        return F.linear(x, weight)
    whole = blocks * BLOCK_ROWS
    parts = torch.bmm(x.expand(blocks, -1, -1), weight[:whole].view(blocks, BLOCK_ROWS, -1).transpose(1, 2))
    return torch.cat([parts.transpose(0, 1).flatten(1), F.linear(x, weight[whole:])], dim=1)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x` (N, T, heads, width) turned to its positions, whose `cos` and `sin` are (N, T, width); see `rotary_tables`.

    What Transformers' `apply_rotary_pos_emb` gives, to the last bit, in fewer passes.
    """
    swapped = x.roll(x.shape[-1] // 2, dims=-1)  # its gradient is a roll again; slices would be filled up with zeros
    return (x * cos[:, :, None]).add_(swapped.mul_(sin[:, :, None]))


def rotary_tables(llm: LlamaForCausalLM, x: Tensor, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Cosine and sine (N, T, width) of `positions` (N, T) for `rotated`; the first half of the sines is negative."""
    cos, sin = (table.to(dtype) for table in llm.model.rotary_emb(x, positions))
    first, second = sin.chunk(2, dim=-1)
    return cos, torch.cat([-first, second], dim=-1)


# ---- training -------------------------------------------------------------------------------------------------------


def hidden_at(
    llm: LlamaForCausalLM, embeds: Tensor, allowed: Tensor, positions: Tensor, places: Tensor, causal: int
) -> Tensor:
    """Hidden states after the final norm at `places` (N, P): (N, P, H); differentiable in `embeds` (N, T, H).

    `allowed` (N, 1, T - causal, T), bool, says where the positions from `causal` on may look; those before look at all
    before them. `positions` (N, T). Where `llm` has gradient checkpointing on, activations are computed twice.
    """
    dtype = matmul_dtype(llm)
    cos, sin = rotary_tables(llm, embeds, positions, dtype)
    layers = [_Layer.of(layer, llm, dtype, acting=False) for layer in llm.model.layers]
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
    if plain_is_faster(query):
        return cpu_attention(None, query, key, value, mask, is_causal=mask is None)[0].transpose(1, 2)
    return F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, enable_gqa=query.shape[1] != key.shape[1]
    )


# ---- acting ---------------------------------------------------------------------------------------------------------

# Attention in a layer, by its number: of queries (n, heads, P, width) over keys and values (n, key heads, T, width).
Mix = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass
class _Group:
    """Prompts of like length, n of them, that stand together in reading order and share a store.

    A prompt's beams share its row: behind its columns every step adds one for each beam, and these stay where they are
    written. A beam sees those of its own answer (a tree of tokens under a mask: Miao et al. 2024, arXiv:2305.09781,
    sec. 4), so to go on as another beam is to take over its row of the mask.
    """

    rows: slice  # in reading order
    length: int  # columns for the prompts; those of new tokens follow
    bias: Tensor  # (n, 1, B, columns), additive: which columns a beam sees
    stores: list[tuple[Tensor, ...]]  # of each layer keys and values: (n, key heads, columns, width)

    def widen(self, columns: int) -> None:
        """Make so many columns more, which nobody sees yet: zeros, as a NaN would get through the mask."""
        self.bias = F.pad(self.bias, (0, columns), value=torch.finfo(self.bias.dtype).min)
        self.stores = [tuple(F.pad(store, (0, 0, 0, columns)) for store in stores) for stores in self.stores]


class LlamaRunner:
    """`prefill` once, then `step` as often as there is room; each returns the next token's logits (N, V), float32.

    With B beams to a prompt `step` takes and returns N * B rows. Or `read` whole rows at once. Takes the weights as
    they are when it is made: make a new one after training.
    """

    def __init__(self, llm: LlamaForCausalLM, dtype: torch.dtype) -> None:
        self._llm = llm
        self._dtype = dtype
        self._layers = [_Layer.of(layer, llm, dtype, acting=True) for layer in llm.model.layers]
        self._key_heads = llm.config.num_key_value_heads
        self._width = llm.model.layers[0].self_attn.head_dim
        self._vocabulary = llm.lm_head.weight.to(dtype)
        self._groups: list[_Group] = []
        # The prompts in reading order (those of like length together), and where each stands in it.
        self._order = self._place = torch.empty(0, dtype=torch.long)
        self._beams = 1
        self._tokens = 0  # that each beam has written

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int, beams: int = 1) -> Tensor:
        """Read prompts: `embeds` (N, T, H), `mask` (N, T) with 0 on pads (anywhere), `positions` (N, T).

        Pads are left out: rows of like length are read together, each closed up. At most `room` more tokens of each of
        a row's `beams` will follow; these read their prompt's keys and values where they are.
        """
        device, hidden = embeds.device, embeds.shape[2]
        multiple = MULTIPLE.get(device.type, MULTIPLE["cuda"])
        more = -mask.shape[1] % multiple
        embeds, mask, positions = F.pad(embeds, (0, 0, 0, more)), F.pad(mask, (0, more)), F.pad(positions, (0, more))
        real_first = (1 - mask.long()).argsort(dim=1, stable=True)
        lengths = mask.sum(1).tolist()
        budget = PREFILL.get(device.type, PREFILL["cuda"]) // hidden
        self._groups, self._beams, self._tokens = [], beams, 0
        order: list[int] = []
        last = []
        for parts in _alike(chunked(lengths, budget), lengths):
            columns = [lengths[part[-1]] + -lengths[part[-1]] % multiple for part in parts]
            group = self._new_group(len(order), [lengths[row] for part in parts for row in part], columns[0], room)
            self._groups.append(group)
            for part, read in zip(parts, columns, strict=True):
                rows = torch.tensor(part, device=device)
                ends = torch.tensor([[lengths[row] - 1] for row in part], device=device)
                mix = self._reading(group, len(order) - group.rows.start, ends)
                here = rows[:, None], real_first[rows, :read]
                last.append(self._forward(embeds[here], positions[here], mix, ends)[:, 0])
                order += part
        prompts = torch.tensor(order, device=device)
        self._order, self._place = prompts, prompts.argsort()
        return self._logits(torch.cat(last)[self._place])

    def read(self, embeds: Tensor, seen: Tensor, positions: Tensor, places: Tensor) -> Tensor:
        """Hidden states (N, P, H) at `places` (N, P) of whole rows `embeds` (N, T, H), after the final norm.

        In the dtype of the matrix products. `seen` (N, 1, T, T), bool and lower triangular, says who looks where.
        """
        hidden = []
        for rows in torch.arange(len(embeds), device=embeds.device).split(ROWS):
            mix = self._under(additive_mask(seen[rows], self._dtype), places[rows])
            hidden.append(self._forward(embeds[rows], positions[rows], mix, places[rows]))
        return self._norm(torch.cat(hidden))

    def reorder(self, beams: Tensor) -> None:
        """Row i goes on as row `beams[i]` (N * B,), one of the same prompt."""
        parents = (beams % self._beams).view(-1, self._beams)[self._order]
        for group in self._groups:
            seen = group.bias[..., group.length :]
            seen.copy_(seen.take_along_dim(parents[group.rows, None, :, None], dim=2))

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Read one more token of each row: `tokens` (N,) or (N * B,), `positions` likewise (…, 1)."""
        for group in self._groups:
            first = group.length + self._tokens * self._beams
            if first == group.bias.shape[-1]:
                group.widen(_columns_ahead(self._beams))
            # Of the new columns each beam sees its own one.
            group.bias[:, 0, :, first : first + self._beams].diagonal(dim1=1, dim2=2).zero_()
        self._tokens += 1
        # A prompt's beams stand beside one another, like the positions of a text.
        tokens, positions = (x.view(-1, self._beams)[self._order] for x in (tokens, positions))
        hidden = self._forward(self._llm.model.embed_tokens(tokens), positions, self._continuing)
        return self._logits(hidden[self._place].flatten(0, 1))

    def _new_group(self, first: int, lengths: Sequence[int], columns: int, room: int) -> _Group:
        """The prompts of `lengths` from the `first` row on, with room for the next of `room` tokens of each beam."""
        total, device = columns + min(room * self._beams, _columns_ahead(self._beams)), self._llm.device
        shape = (2, len(lengths), self._key_heads, total, self._width)
        written = torch.arange(total, device=device) < torch.tensor(lengths, device=device)[:, None]
        return _Group(
            rows=slice(first, first + len(lengths)),
            length=columns,
            bias=additive_mask(written[:, None, None].repeat(1, 1, self._beams, 1), self._dtype),
            stores=[tuple(torch.empty(shape, dtype=self._dtype, device=device)) for _ in self._layers],
        )

    def _norm(self, x: Tensor) -> Tensor:
        weight, eps = self._llm.model.norm.weight, self._llm.config.rms_norm_eps
        return rms_norm(x, weight, eps, self._dtype, acting=True)

    def _logits(self, hidden: Tensor) -> Tensor:
        return linear_by_blocks(self._norm(hidden), self._vocabulary).float()

    def _forward(self, x: Tensor, positions: Tensor, mix: Mix, places: Tensor | None = None) -> Tensor:
        """Hidden states (n, T, H) before the final norm; with `places` (n, P) only those there, (n, P, H)."""
        cos, sin = rotary_tables(self._llm, x, positions, self._dtype)
        for number, layer in enumerate(self._layers):
            query, key, value = layer.attention_inputs(x, cos, sin)
            if places is not None and layer is self._layers[-1]:
                query = query.take_along_dim(places[:, None, :, None], dim=2)
                x = x.take_along_dim(places[..., None], dim=1)
            x = layer.after_attention(x, mix(number, query, key, value))
        return x

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Attention with an additive mask (n, 1, P, T), lower triangular where P is T; causal without one."""
        if not plain_is_faster(query):
            return F.scaled_dot_product_attention(
                query, key, value, bias, is_causal=bias is None, enable_gqa=query.shape[1] != key.shape[1]
            )
        groups = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        return attend(query, key, value, bias, self._width**-0.5, causal=query.shape[2] == key.shape[2])

    def _under(self, bias: Tensor, places: Tensor) -> Mix:
        """Attention under `bias` (n, 1, T, T), in the last layer only at `places` (n, P)."""
        at_places = bias.take_along_dim(places[:, None, :, None], dim=2)

        def mix(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self._attention(query, key, value, at_places if layer == len(self._layers) - 1 else bias)

        return mix

    def _reading(self, group: _Group, first: int, ends: Tensor) -> Mix:
        """Attention of prompts that end at columns `ends` (n, 1), the `first` of their group and those behind it."""
        rows = slice(first, first + len(ends))

        def mix(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            columns = key.shape[2]
            for store, new in zip(group.stores[layer], (key, value), strict=True):
                store[rows, :, :columns] = new
                store[rows, :, columns:] = 0  # masked, but a NaN there would get through the mask
            if query.shape[2] == columns:
                return self._attention(query, key, value, None)
            seen = torch.arange(columns, device=key.device) <= ends
            return self._attention(query, key, value, additive_mask(seen[:, None, None], self._dtype))

        return mix

    def _continuing(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention of one more token of each beam."""
        mixed = []
        for group in self._groups:
            stop = group.length + self._tokens * self._beams
            for store, new in zip(group.stores[layer], (key, value), strict=True):
                store[:, :, stop - self._beams : stop] = new[group.rows]
            # All columns, whether written or not: a matrix product would copy a part of them first.
            mixed.append(self._attention(query[group.rows], *group.stores[layer], group.bias))
        return torch.cat(mixed)


def _columns_ahead(beams: int) -> int:
    """How many columns of new tokens room is made for at a time: about `AHEAD`, whole tokens of all beams."""
    return -(-AHEAD // beams) * beams


def _alike(parts: Sequence[list[int]], lengths: Sequence[int]) -> list[list[list[int]]]:
    """`parts` of rows (from `chunked`) put together as far as their longest rows are of like length, longest first."""
    groups: list[list[list[int]]] = []
    for part in reversed(parts):
        if groups and lengths[part[-1]] >= ALIKE * lengths[groups[-1][0][-1]]:
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups
