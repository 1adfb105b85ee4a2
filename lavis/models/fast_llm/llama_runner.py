"""Llama's forward pass for acting: prompts without pads, then one token at a time, beside one shared KV cache.

Prompts of like length are read together without pads; keys and values are written into the KV cache in place; the beams
of a prompt share the prompt's keys and values. On a CPU small matrices are concatenated and rows are read a few at a
time, so that activations stay in the processor's cache: the tiny model acts twice as fast.

Shapes: N prompts, T positions, P places, B beams, H hidden size, V vocabulary, heads and width of a head; n: the
prompts of a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM
from transformers.integrations.sdpa_attention import repeat_kv

from lavis.models.fast_llm.attention import additive_mask, attend, causal_attention, plain_is_faster
from lavis.models.fast_llm.kept_prompts import Beginning, Named
from lavis.models.fast_llm.llama_layer import LlamaLayer, linear_by_blocks, rms_norm, rotary_tables
from lavis.models.fast_llm.row_gradients import chunked

ROWS = 8  # whole rows read at a time
PREFILL = {"cpu": 1 << 19, "cuda": 1 << 26}  # tokens x hidden size of the prompts read at a time
MULTIPLE = {"cpu": 32, "cuda": 1}  # of tokens that prompts are read in: oneDNN compiles a kernel for every new length
AHEAD = 128  # columns of new tokens that the KV cache grows by
ALIKE = 0.75  # prompts of at least this part of the longest one's length share its KV cache

# Attention of one layer, by its number: queries (n, heads, P, width) over keys and values (n, key heads, T, width).
Mix = Callable[[int, Tensor, Tensor, Tensor], Tensor]


@dataclass
class _Group:
    """n prompts of like length, adjacent in reading order, and their KV cache.

    A prompt's beams share its row of the cache: after the prompt's columns every step appends one column for each beam,
    and no column ever moves. A mask lets each beam attend to the columns of its own answer only (tree attention: Miao
    et al. 2024, arXiv:2305.09781, sec. 4). So a beam that continues another one copies that one's row of the mask
    instead of its keys and values.
    """

    rows: slice  # in reading order
    length: int  # columns of the prompts; those of new tokens follow
    bias: Tensor  # (n, 1, B, columns), additive mask: which columns a beam attends to
    cache: list[tuple[Tensor, Tensor]]  # keys and values of each layer: (n, key heads, columns, width)

    def widen(self, columns: int) -> None:
        """Append masked columns. Of zeros: a NaN in a masked column would still reach the result."""
        self.bias = F.pad(self.bias, (0, columns), value=torch.finfo(self.bias.dtype).min)
        self.cache = [
            (F.pad(keys, (0, 0, 0, columns)), F.pad(values, (0, 0, 0, columns))) for keys, values in self.cache
        ]

    def keep(self, places: Tensor, first: int) -> None:
        """Only its prompts at `places` (n,) go on, from row `first` on."""
        self.rows = slice(first, first + len(places))
        self.bias = self.bias[places]
        for layer, (keys, values) in enumerate(self.cache):
            self.cache[layer] = keys[places], values[places]


class LlamaRunner:
    """A `Runner` (see there) of a plain Llama; or `read` whole rows at once.

    `prefill` once, then `step` as often as there is room. It takes the weights as they are when it is made: make a new
    one after training.
    """

    def __init__(self, llm: LlamaForCausalLM, dtype: torch.dtype, named: Named | None = None) -> None:
        self._llm = llm
        self._dtype = dtype
        self._named = named
        # Weights of another dtype than `dtype` are converted once, here.
        self._layers = [LlamaLayer.of(layer, llm, dtype, acting=True) for layer in llm.model.layers]
        self._key_heads = self._layers[0].heads[1]
        first: Any = llm.model.layers[0]
        self._width: int = first.self_attn.head_dim
        self._vocabulary = llm.lm_head.weight.to(dtype)
        self._groups: list[_Group] = []
        # Numbers of the prompts in reading order (those of like length together); each prompt's place in that order.
        self._order = self._place = torch.empty(0, dtype=torch.long)
        self._beams = 1
        self._tokens = 0  # new tokens of each beam so far

    def prefill(self, embeds: Tensor, mask: Tensor, positions: Tensor, room: int, beams: int = 1) -> Tensor:
        """Read prompts: `embeds` (N, T, H), `mask` (N, T) with 0 on pads (anywhere), `positions` (N, T).

        Returns the next token's logits (N, V), float32. Pads are removed, and rows of like length are read together.
        At most `room` more tokens of each of a prompt's `beams` will follow, which share the prompt's keys and values.
        """
        device, hidden = embeds.device, embeds.shape[2]
        multiple = MULTIPLE.get(device.type, MULTIPLE["cuda"])
        # Columns up to a multiple, so that few lengths of texts occur. Then each row's real tokens first, in order
        # (a stable sort), and rows of like length together.
        more = -mask.shape[1] % multiple
        embeds, mask, positions = F.pad(embeds, (0, 0, 0, more)), F.pad(mask, (0, more)), F.pad(positions, (0, more))
        real_first = (1 - mask.long()).argsort(dim=1, stable=True)
        lengths = mask.sum(1).tolist()
        budget = PREFILL.get(device.type, PREFILL["cuda"]) // hidden
        self._groups, self._beams, self._tokens = [], beams, 0
        order: list[int] = []
        last = []
        found: dict[int, Beginning] = {}  # rows that go on from a prompt that was read before, and from where
        if self._named:
            for row, length in enumerate(lengths):
                if begun := self._named.kept.find(self._named.names[row, real_first[row, :length]]):
                    found[row] = begun
            by_length = [[row] for row in sorted(found, key=lengths.__getitem__)]
            for group_rows in _alike(by_length, lengths):
                # Rows with as many new positions lie together: they are read together.
                grown = sorted((row for (row,) in group_rows), key=lambda row: lengths[row] - found[row].length)
                last.append(self._go_on(grown, embeds, positions, real_first, lengths, found, len(order), room))
                order += grown
        others = [row for row in range(len(embeds)) if row not in found]
        chunks = [[others[i] for i in part] for part in chunked([lengths[row] for row in others], budget)]
        for parts in _alike(chunks, lengths):
            # A part is read as wide as its longest row; the parts of a group share the cache of the widest.
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
        # The inverse permutation brings what was read in reading order back to the order of the prompts.
        prompts = torch.tensor(order, device=device)
        self._order, self._place = prompts, prompts.argsort()
        if self._named:
            for group in self._groups:
                for place, row in enumerate(order[group.rows]):
                    # Copied once, into one block: they are a large part of what a step moves through memory.
                    shape = (len(self._layers), 2, self._key_heads, lengths[row], self._width)
                    states = torch.empty(shape, dtype=self._dtype, device=device)
                    for layer, pair in enumerate(group.cache):
                        for which, cached in enumerate(pair):
                            states[layer, which] = cached[place, :, : lengths[row]]
                    names = self._named.names[row, real_first[row, : lengths[row]]]
                    self._named.kept.keep(names, states, found.get(row))
        return self._logits(torch.cat(last)[self._place])

    def read(self, embeds: Tensor, seen: Tensor, positions: Tensor, places: Tensor) -> Tensor:
        """Hidden states (N, P, H) at `places` (N, P) of whole rows `embeds` (N, T, H), after the final norm.

        In the dtype of the matrix products. `seen` (N, 1, T, T), bool and lower triangular, is the attention mask.
        """
        # A few whole rows at a time: so the feed-forward's activations, (ROWS, T, I), stay in the processor's cache.
        hidden = []
        for rows in torch.arange(len(embeds), device=embeds.device).split(ROWS):
            mix = self._under(additive_mask(seen[rows], self._dtype), places[rows])
            hidden.append(self._forward(embeds[rows], positions[rows], mix, places[rows]))
        return self._norm(torch.cat(hidden))

    def reorder(self, beams: Tensor) -> None:
        """Row i continues as row `beams[i]` (N * B,), one of the same prompt."""
        # Numbers within the prompt, (N, B), in reading order; a beam takes over which columns its parent attends to.
        parents = (beams % self._beams).view(-1, self._beams)[self._order]
        for group in self._groups:
            seen = group.bias[..., group.length :]
            seen.copy_(seen.take_along_dim(parents[group.rows, None, :, None], dim=2))

    def keep(self, rows: Tensor) -> None:
        """Only the prompts `rows` (n,), in rising order, go on; their keys and values are copied."""
        places = self._place[rows]  # in reading order
        first = 0
        for group in self._groups:
            mine = places[(places >= group.rows.start) & (places < group.rows.stop)].sort().values
            group.keep(mine - group.rows.start, first)
            first = group.rows.stop
        self._groups = [group for group in self._groups if group.rows.start < group.rows.stop]
        # A prompt's new place is its rank among the places that are left.
        self._order = places.argsort()
        self._place = self._order.argsort()

    def step(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Read one more token of each row: `tokens` (N * B,), `positions` (N * B, 1); logits (N * B, V), float32."""
        for group in self._groups:
            first = group.length + self._tokens * self._beams
            if first == group.bias.shape[-1]:
                group.widen(_columns_ahead(self._beams))
            # Each beam attends to its own one of the new columns.
            group.bias[:, 0, :, first : first + self._beams].diagonal(dim1=1, dim2=2).zero_()
        self._tokens += 1
        # A prompt's beams are computed side by side, like the positions of a text.
        tokens, positions = (x.view(-1, self._beams)[self._order] for x in (tokens, positions))
        hidden = self._forward(self._llm.model.embed_tokens(tokens), positions, self._continuing)
        return self._logits(hidden[self._place].flatten(0, 1))

    def _new_group(self, first: int, lengths: Sequence[int], columns: int, room: int) -> _Group:
        """A group of prompts of `lengths` from row `first` on, with columns for the first new tokens of its beams."""
        total, device = columns + min(room * self._beams, _columns_ahead(self._beams)), self._llm.device
        shape = (len(lengths), self._key_heads, total, self._width)
        # Keys and values of a layer, not yet written, are one block of memory: (2, n, key heads, columns, width).
        blocks = [torch.empty((2, *shape), dtype=self._dtype, device=device) for _ in self._layers]
        # At first a beam attends to the columns of its own prompt, which may be shorter than the group's longest.
        written = torch.arange(total, device=device) < torch.tensor(lengths, device=device)[:, None]
        return _Group(
            rows=slice(first, first + len(lengths)),
            length=columns,
            bias=additive_mask(written[:, None, None].repeat(1, 1, self._beams, 1), self._dtype),
            cache=[(block[0], block[1]) for block in blocks],
        )

    def _go_on(
        self,
        rows: list[int],
        embeds: Tensor,
        positions: Tensor,
        real_first: Tensor,
        lengths: Sequence[int],
        found: Mapping[int, Beginning],
        first: int,
        room: int,
    ) -> Tensor:
        """Read what is new in `rows`, a group of their own from row `first` on in reading order; (n, H) at their ends.

        `found` are the number and the keys and values of the positions that were read before. The other arguments are
        `prefill`'s, `real_first` (N, T) the places of each row's real tokens.
        """
        device, hidden = embeds.device, embeds.shape[2]
        starts = torch.tensor([found[row].length for row in rows], device=device)[:, None]
        ends = torch.tensor([lengths[row] for row in rows], device=device)[:, None]
        # `rows` come with their numbers of new positions rising, so each part of them is a slice of the cache.
        news = (ends - starts)[:, 0].tolist()
        parts = [
            slice(part[0], part[-1] + 1) for part in chunked(news, PREFILL.get(device.type, PREFILL["cuda"]) // hidden)
        ]
        # Where the new positions are written, (n, new): those behind a shorter row's end are pads.
        columns = [starts[part] + torch.arange(news[part.stop - 1], device=device) for part in parts]
        needed = max(int(part.max()) for part in columns) + 1
        group = self._new_group(first, [lengths[row] for row in rows], needed, room)
        self._groups.append(group)
        for layer, pair in enumerate(group.cache):
            for which, cached in enumerate(pair):
                for place, row in enumerate(rows):
                    begun = found[row]
                    cached[place, :, : begun.length] = begun.states[layer, which]
                    cached[place, :, begun.length :] = 0  # a NaN in a masked column would still reach the result
        read = []
        for part, written in zip(parts, columns, strict=True):
            at_ends = (ends - starts)[part] - 1  # the last new position's place among the new ones
            here = (
                torch.tensor(rows[part], device=device)[:, None],
                real_first[rows[part]].take_along_dim(written.clamp(max=embeds.shape[1] - 1), 1),
            )
            mix = self._going_on(group, part, written, at_ends)
            read.append(self._forward(embeds[here], positions[here], mix, at_ends)[:, 0])
        return torch.cat(read)

    def _going_on(self, group: _Group, rows: slice, columns: Tensor, at_ends: Tensor) -> Mix:
        """Attention of `rows` of a group whose new positions are written to `columns` (n, new).

        In the last layer only those at `at_ends` (n, 1) of the new ones ask.
        """
        width = int(columns.max()) + 1
        seen = torch.arange(width, device=columns.device) <= columns[..., None]  # (n, new, width)
        bias = additive_mask(seen[:, None], self._dtype)
        last_bias = bias.take_along_dim(at_ends[:, None, :, None], dim=2)
        places = torch.arange(rows.start, rows.stop, device=columns.device)[:, None]

        def mix(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            for cached, added in zip(group.cache[layer], (key, value), strict=True):
                cached[places, :, columns] = added.transpose(1, 2)
            keys, values = (cached[rows, :, :width] for cached in group.cache[layer])
            return self._attention(query, keys, values, last_bias if layer == len(self._layers) - 1 else bias)

        return mix

    def _norm(self, x: Tensor) -> Tensor:
        weight, eps = self._llm.model.norm.weight, self._llm.config.rms_norm_eps
        return rms_norm(x, weight, eps, self._dtype, acting=True)

    def _logits(self, hidden: Tensor) -> Tensor:
        return linear_by_blocks(self._norm(hidden), self._vocabulary).float()

    def _forward(self, x: Tensor, positions: Tensor, mix: Mix, places: Tensor | None = None) -> Tensor:
        """Hidden states (n, T, H) before the final norm; with `places` (n, P) only at these, (n, P, H)."""
        # Cosines and sines are the same in all layers: they depend on the positions alone.
        cos, sin = rotary_tables(self._llm, x, positions, self._dtype)
        for number, layer in enumerate(self._layers):
            query, key, value = layer.attention_inputs(x, cos, sin)
            # The last layer is computed only where a result is wanted; its keys and values are needed everywhere.
            if places is not None and layer is self._layers[-1]:
                query = query.take_along_dim(places[:, None, :, None], dim=2)
                x = x.take_along_dim(places[..., None], dim=1)
            x = layer.after_attention(x, mix(number, query, key, value))
        return x

    def _attention(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        """Scaled dot-product attention (Vaswani et al. 2017, arXiv:1706.03762, eq. 1).

        `bias`, an additive mask (n, 1, P, T), is lower triangular where P is T; without it attention is causal.
        """
        if not plain_is_faster(query, causal=bias is None):
            return F.scaled_dot_product_attention(
                query, key, value, bias, is_causal=bias is None, enable_gqa=query.shape[1] != key.shape[1]
            )
        if bias is None:
            return causal_attention(query, key, value, self._width**-0.5)
        # Grouped-query attention (Ainslie et al. 2023): so many heads of queries share a head of keys and values.
        groups = query.shape[1] // key.shape[1]
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        return attend(query, key, value, bias, self._width**-0.5, causal=query.shape[2] == key.shape[2])

    def _under(self, bias: Tensor, places: Tensor) -> Mix:
        """Attention under `bias` (n, 1, T, T), in the last layer only at `places` (n, P)."""
        at_places = bias.take_along_dim(places[:, None, :, None], dim=2)  # (n, 1, P, T)

        def mix(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            return self._attention(query, key, value, at_places if layer == len(self._layers) - 1 else bias)

        return mix

    def _reading(self, group: _Group, first: int, ends: Tensor) -> Mix:
        """Attention of prompts whose last columns are `ends` (n, 1): row `first` of their group and the next ones."""
        rows = slice(first, first + len(ends))

        def mix(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            columns = key.shape[2]
            for cached, new in zip(group.cache[layer], (key, value), strict=True):
                cached[rows, :, :columns] = new
                cached[rows, :, columns:] = 0  # a NaN in a masked column would still reach the result
            # In the last layer there is one query for each row, at its end, which sees all real columns.
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
            for cached, new in zip(group.cache[layer], (key, value), strict=True):
                cached[:, :, stop - self._beams : stop] = new[group.rows]
            # All columns, written or not: of a part of them the matrix product would first make a copy.
            mixed.append(self._attention(query[group.rows], *group.cache[layer], group.bias))
        return torch.cat(mixed)


def _columns_ahead(beams: int) -> int:
    """How many columns the KV cache grows by: about `AHEAD`, a multiple of the beams."""
    return -(-AHEAD // beams) * beams


def _alike(parts: Sequence[list[int]], lengths: Sequence[int]) -> list[list[list[int]]]:
    """`parts` of rows (from `chunked`) grouped as long as their longest rows are of like length, longest first."""
    groups: list[list[list[int]]] = []
    for part in reversed(parts):
        if groups and lengths[part[-1]] >= ALIKE * lengths[groups[-1][0][-1]]:
            groups[-1].append(part)
        else:
            groups.append([part])
    return groups
