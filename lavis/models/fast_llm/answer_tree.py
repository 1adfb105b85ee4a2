"""Log-probabilities of several answers to one prompt in one forward pass.

The answers to a prompt form a prefix tree ("go to" -> "cabinet 1", "cabinet 2") that follows the prompt in the same
row. Each node attends to the prompt, its ancestors and itself, at the position it has in its answer (tree attention:
Miao et al. 2024, arXiv:2305.09781, sec. 4). So every answer's log-probability is what it would be if that answer alone
followed the prompt, and neither the prompt nor what answers share is computed twice.

Shapes: N prompts, Q image tokens, T positions in a row, H hidden size, V vocabulary, E tokens of all answers.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from torch import Tensor
from transformers import PreTrainedModel

from lavis.models.fast_llm.attention import NAME as ATTENTION
from lavis.models.fast_llm.llama_layer import matmul_dtype, supports
from lavis.models.fast_llm.llama_runner import LlamaRunner
from lavis.models.fast_llm.llama_training import hidden_at

ROWS = 16  # answers at a time, if each has a row of its own and no gradient is wanted


@dataclass
class AnswerTree:
    """The answers to one prompt as a prefix tree.

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
            for token in answer[:-1]:
                tree.edges.append((index, node, token))
                if (node, token) not in children:
                    children[node, token] = len(tree.tokens)
                    tree.tokens.append(token)
                    tree.parents.append(node)
                node = children[node, token]
            tree.edges.append((index, node, answer[-1]))
        return tree


def tree_attention(prompt_length: int, tree: AnswerTree, total: int) -> tuple[np.ndarray, np.ndarray]:
    """Attention mask and position ids of a row `prompt, nodes, pads` of `total` positions.

    The mask is (total, total), bool: row i is what position i attends to. It is lower triangular; a pad attends to
    itself alone. Position ids are (total,), int64.
    """
    # Every position sees itself; the prompt is causal; a node sees what its parent sees, and itself.
    allowed = np.eye(total, dtype=bool)
    allowed[:prompt_length, :prompt_length] = np.tri(prompt_length, dtype=bool)
    positions = np.zeros(total, dtype=np.int64)
    positions[:prompt_length] = np.arange(prompt_length)
    for row, parent in enumerate(tree.parents, start=prompt_length):
        # Parent -1 is the prompt's end, which stands just before the first node.
        above = prompt_length + parent
        allowed[row, :row] = allowed[above, :row]
        positions[row] = positions[above] + 1
    return allowed, positions


def reads_trees(llm: PreTrainedModel, length: int) -> bool:
    """Whether attention of a Transformers model does what `tree_attention` says, in rows of `length` positions."""
    config: Any = llm.config.get_text_config(decoder=True)
    if config._attn_implementation not in ("sdpa", ATTENTION):
        return False  # eager attention would add a bool mask to the scores
    read = inspect.signature(llm.get_decoder().forward).parameters
    if "position_ids" not in read or getattr(config, "alibi", False):
        return False  # positions from places in the row: a node's is not that in its answer
    # A mask that is given takes the place of a layer's window; a recurrent layer reads no mask at all.
    kinds = set(getattr(config, "layer_types", None) or ())
    windows = [getattr(config, key, None) for key in ("sliding_window", "attention_chunk_size")]
    masked = kinds <= {"full_attention", "sliding_attention", "chunked_attention"}
    return masked and all(size is None or length <= size for size in windows)


def row_logps(
    llm: PreTrainedModel, queries: Tensor, prompts: Sequence[list[int]], answers: Sequence[Sequence[list[int]]]
) -> tuple[Tensor, Tensor]:
    """As `token_logps`, with a row `image tokens, prompt, answer, pads` for each answer, and no mask.

    Any causal model reads such rows as it should: pads stand on the right, where real tokens do not see them, and
    attention kernels are fastest without a mask.
    """
    device, images = queries.device, queries.shape[1]
    owners = [row for row, group in enumerate(answers) for _ in group]
    said = [answer for group in answers for answer in group]
    texts = [prompts[owner] + answer[:-1] for owner, answer in zip(owners, said, strict=True)]
    ids = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)  # any id serves as pad
    for row, text in enumerate(texts):
        ids[row, : len(text)] = torch.tensor(text)
    embeds = llm.get_input_embeddings()(ids.to(device))
    embeds = torch.cat([queries.to(embeds.dtype)[owners], embeds], dim=1)  # (answers, Q + L, H)
    hidden = llm.get_decoder()(inputs_embeds=embeds, use_cache=False).last_hidden_state
    edges = [
        (row, images + len(prompts[owner]) - 1 + step, token)  # a token is predicted one position earlier
        for row, (owner, answer) in enumerate(zip(owners, said, strict=True))
        for step, token in enumerate(answer)
    ]
    row, place, token = torch.tensor(edges, device=device).T
    # The logits of all other positions are never computed. In float32, as in Transformers' own losses: bfloat16 has 8
    # bits for a sum over the whole vocabulary.
    logits = llm.get_output_embeddings()(hidden[row, place]).float()
    return -functional.cross_entropy(logits, token, reduction="none"), row  # without a reduction: -log p of each


def token_logps(
    llm: PreTrainedModel,
    queries: Tensor,
    prompts: Sequence[list[int]],
    answers: Sequence[Sequence[list[int]]],
    *,
    acting: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probability of every token of every answer, the last (`</s>`) included.

    `queries` (N, Q, H), the image tokens, come before the prompts' ids; `answers[n]` are the answers to prompt n, any
    number of them. Returns the log-probabilities (E,), float32, and the number of the answer each belongs to (E,),
    counted over all prompts. Differentiable, unless `acting`, which has a faster forward pass without gradients.
    """
    device, images = queries.device, queries.shape[1]
    trees = [AnswerTree.build(group) for group in answers]
    # Row n is `image tokens, prompt, nodes, pads`; its nodes begin at starts[n].
    starts = [images + len(prompt) for prompt in prompts]
    total = max(start + len(tree.tokens) for start, tree in zip(starts, trees, strict=True))
    if not supports(llm) and not reads_trees(llm, total):
        pairs = [(row, answer) for row, group in enumerate(answers) for answer in group]
        size = ROWS if acting else len(pairs)
        logps, owners = [], []
        for first in range(0, len(pairs), size):
            rows, said = zip(*pairs[first : first + size], strict=True)
            alone = row_logps(llm, queries[list(rows)], [prompts[row] for row in rows], [[answer] for answer in said])
            logps.append(alone[0])
            owners.append(alone[1] + first)
        return torch.cat(logps), torch.cat(owners)
    ids = torch.zeros(len(prompts), total - images, dtype=torch.long)
    for row, (prompt, tree) in enumerate(zip(prompts, trees, strict=True)):
        ids[row, : len(prompt) + len(tree.tokens)] = torch.tensor(prompt + tree.tokens)
    text = llm.get_input_embeddings()(ids.to(device))
    embeds = torch.cat([queries.to(text.dtype), text], dim=1)  # (N, T, H)
    masks = [tree_attention(start, tree, total) for start, tree in zip(starts, trees, strict=True)]
    allowed = torch.from_numpy(np.stack([allowed for allowed, _ in masks]))[:, None]  # (N, 1, T, T)
    positions = torch.from_numpy(np.stack([positions for _, positions in masks])).to(device)  # (N, T)
    # The places that predict a token: the prompt's end, then the nodes. (N, P)
    count = 1 + max(len(tree.tokens) for tree in trees)
    places = (torch.tensor(starts)[:, None] - 1 + torch.arange(count)).clamp(max=total - 1).to(device)

    if not supports(llm):
        decoder = llm.get_decoder()
        inputs = {"inputs_embeds": embeds, "attention_mask": allowed.to(device), "position_ids": positions}
        hidden = decoder(**inputs, use_cache=False).last_hidden_state.take_along_dim(places[..., None], dim=1)
    elif acting:
        hidden = LlamaRunner(llm, matmul_dtype(llm)).read(embeds, allowed.to(device), positions, places)
    else:  # up to the shortest prompt's end every row is causal, which needs no mask
        causal = min(starts)
        hidden = hidden_at(llm, embeds, allowed[:, :, causal:].to(device), positions, places, causal)

    edges: list[tuple[int, int, int, int]] = []  # of every token: row, place that predicts it, the token, its answer
    first = 0
    for row, (tree, group) in enumerate(zip(trees, answers, strict=True)):
        edges += [(row, node + 1, token, first + answer) for answer, node, token in tree.edges]
        first += len(group)
    row, place, token, answer = torch.tensor(edges, device=device).T
    # Many tokens are predicted at the same place: the vocabulary is computed once for each place.
    flat, inverse = torch.unique(row * hidden.shape[1] + place, return_inverse=True)
    logits = llm.get_output_embeddings()(hidden.flatten(0, 1)[flat]).float()
    # log softmax at the tokens alone: logit - log sum exp(logits).
    return logits[inverse, token] - logits.logsumexp(-1)[inverse], answer
