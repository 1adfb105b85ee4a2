"""Decoding from prompt embeddings: a light greedy loop, and scores of given answers without repeating the prompt.

Shapes: N prompts, T positions (image tokens and text), H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel


def position_ids(mask: Tensor) -> Tensor:
    """Positions that count real tokens only: `cumsum(mask) - 1`, 0 on leading pads; mask and result (N, T)."""
    return (mask.cumsum(-1) - 1).clamp(min=0)


def pads_after(ids: Tensor, eos_id: int, pad_id: int) -> Tensor:
    """`ids` (N, T) with `pad_id` after each row's first `eos_id`."""
    ended = (ids == eos_id).cumsum(-1) - (ids == eos_id).int() > 0
    return ids.masked_fill(ended, pad_id)


@torch.no_grad()
def greedy(
    llm: PreTrainedModel, embeds: Tensor, mask: Tensor, *, max_new: int, min_new: int, eos_id: int, pad_id: int
) -> Tensor:
    """The most probable token at each step, as `llm.generate(num_beams=1)` gives it, with less around it.

    `embeds` (N, T, H) and `mask` (N, T) are left-padded prompts. Returns ids (N, at most max_new); `pad_id` after
    `eos_id`. Before `min_new` tokens `eos_id` cannot come.
    """
    cache = DynamicCache(config=llm.config)
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


@dataclass
class AnswerTree:
    """The answers to one prompt as a prefix tree, so that what they share ("go to cabinet") is computed once.

    `tokens[k]` and `parents[k]` describe node k (parent -1: the end of the prompt); `edges` lists, for every token of
    every answer, (answer, predicting node, token).
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    edges: list[tuple[int, int, int]] = field(default_factory=list)

    @classmethod
    def build(cls, answers: Sequence[Sequence[int]]) -> AnswerTree:
        """Tree of `answers`, each a list of ids; an answer's last id is only predicted, never read."""
        tree = cls()
        children: dict[tuple[int, int], int] = {}
        for index, answer in enumerate(answers):
            node = -1
            for position, token in enumerate(answer):
                tree.edges.append((index, node, token))
                if position + 1 == len(answer):
                    break
                if (node, token) not in children:
                    children[node, token] = len(tree.tokens)
                    tree.tokens.append(token)
                    tree.parents.append(node)
                node = children[node, token]
        return tree


def tree_attention(prompt_length: int, tree: AnswerTree, total: int) -> tuple[Tensor, Tensor]:
    """Who sees whom in a row `prompt, nodes, pads` of `total` positions.

    Returns a bool matrix (total, total), True where the row's position may look, and position ids (total,). A node
    sees what its parent sees, and itself; so each branch reads as if it alone followed the prompt.
    """
    allowed = torch.eye(total, dtype=torch.bool)
    allowed[:prompt_length, :prompt_length] = torch.ones(prompt_length, prompt_length, dtype=torch.bool).tril()
    positions = list(range(prompt_length)) + [0] * (total - prompt_length)
    for node, parent in enumerate(tree.parents):
        row, above = prompt_length + node, prompt_length + parent
        allowed[row] |= allowed[above]
        positions[row] = positions[above] + 1
    return allowed, torch.tensor(positions)


@torch.no_grad()
def answer_logps(
    llm: PreTrainedModel, queries: Tensor, prompts: Sequence[list[int]], answers: Sequence[Sequence[list[int]]]
) -> list[list[float]]:
    """Sum of log-probabilities of each answer (its last id, `</s>`, included) after its prompt.

    `queries` (N, Q, H) stand before the prompts' ids; `answers[n]` are the answers to prompt n, any number of them.
    One forward pass: each prompt is read once, its answers follow as a prefix tree.
    """
    trees = [AnswerTree.build(group) for group in answers]
    starts = [queries.shape[1] + len(prompt) for prompt in prompts]
    total = max(start + len(tree.tokens) for start, tree in zip(starts, trees, strict=True))
    layout = [tree_attention(start, tree, total) for start, tree in zip(starts, trees, strict=True)]
    ids = torch.zeros(len(prompts), total - queries.shape[1], dtype=torch.long)
    for row, (prompt, tree) in enumerate(zip(prompts, trees, strict=True)):
        ids[row, : len(prompt) + len(tree.tokens)] = torch.tensor(prompt + tree.tokens)

    device = queries.device
    text = llm.get_input_embeddings()(ids.to(device))
    hidden = llm.get_decoder()(
        inputs_embeds=torch.cat([queries.to(text.dtype), text], dim=1),
        attention_mask=torch.stack([allowed for allowed, _ in layout])[:, None].to(device),
        position_ids=torch.stack([positions for _, positions in layout]).to(device),
        use_cache=False,
    ).last_hidden_state

    edges = [
        (row, starts[row] + node, token, row, answer)
        for row, tree in enumerate(trees)
        for answer, node, token in tree.edges
    ]
    where = torch.tensor([edge[:3] for edge in edges], device=device)
    predicting, inverse = torch.unique(where[:, :2], dim=0, return_inverse=True)
    logits = llm.get_output_embeddings()(hidden[predicting[:, 0], predicting[:, 1]]).float()
    logps = (logits[inverse, where[:, 2]] - logits.logsumexp(-1)[inverse]).tolist()
    sums = [[0.0] * len(group) for group in answers]
    for (*_, row, answer), logp in zip(edges, logps, strict=True):
        sums[row][answer] += logp
    return sums
