"""Log-probabilities of several answers to one prompt in one forward pass.

The answers to a prompt form a prefix tree ("go to" -> "cabinet 1", "cabinet 2") that follows the prompt in the same
row. Each node sees the prompt, its ancestors and itself, at the position it has in its answer; so every answer reads as
if it alone followed the prompt, and neither the prompt nor what answers share is computed twice.

Shapes: N prompts, Q image tokens, T positions in a row, H hidden size, V vocabulary, E tokens of all answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from lavis.models.blip2_models import llama_cpu


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
    """Who sees whom in a row `prompt, nodes, pads` of `total` positions.

    Returns a bool matrix (total, total), True where the row's position may look, and position ids (total,). The matrix
    is lower triangular: nobody looks ahead. Pads see themselves alone.
    """
    allowed = np.eye(total, dtype=bool)
    allowed[:prompt_length, :prompt_length] = np.tri(prompt_length, dtype=bool)
    positions = np.zeros(total, dtype=np.int64)
    positions[:prompt_length] = np.arange(prompt_length)
    for row, parent in enumerate(tree.parents, start=prompt_length):
        above = prompt_length + parent
        allowed[row, :row] = allowed[above, :row]
        positions[row] = positions[above] + 1
    return allowed, positions


def token_logps(
    llm: PreTrainedModel,
    queries: Tensor,
    prompts: Sequence[list[int]],
    answers: Sequence[Sequence[list[int]]],
    *,
    acting: bool = False,
) -> tuple[Tensor, Tensor]:
    """Log-probability of every token of every answer, the last (`</s>`) included.

    `queries` (N, Q, H) stand before the prompts' ids; `answers[n]` are the answers to prompt n, any number of them.
    Returns the log-probabilities (E,), float32, and the number of the answer each belongs to (E,), counted over all
    prompts. Differentiable, unless `acting` allows the forward pass without gradients (`llama_cpu`).
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
    embeds = torch.cat([queries.to(text.dtype), text], dim=1)
    allowed = torch.from_numpy(np.stack([allowed for allowed, _ in layout]))[:, None].to(device)
    positions = torch.from_numpy(np.stack([positions for _, positions in layout])).to(device)
    if acting and llama_cpu.supports(llm):
        hidden = llama_cpu.LlamaRunner(llm, llama_cpu.matmul_dtype(llm)).read(embeds, allowed, positions)
    else:
        hidden = llm.get_decoder()(
            inputs_embeds=embeds, attention_mask=allowed, position_ids=positions, use_cache=False
        ).last_hidden_state

    row, position, token, answer = torch.tensor(_edges(trees, starts), device=device).T
    # Many tokens are predicted at the same place: the vocabulary is computed once for each place.
    places, inverse = torch.unique(row * total + position, return_inverse=True)
    logits = llm.get_output_embeddings()(hidden.flatten(0, 1)[places]).float()
    return logits[inverse, token] - logits.logsumexp(-1)[inverse], answer


def _edges(trees: Sequence[AnswerTree], starts: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """(row, position that predicts, token, answer counted over all prompts) of every token of every answer."""
    edges, first = [], 0
    for row, (tree, start) in enumerate(zip(trees, starts, strict=True)):
        edges += [(row, start + node, token, first + answer) for answer, node, token in tree.edges]
        first += 1 + max((answer for answer, _, _ in tree.edges), default=-1)
    return edges
