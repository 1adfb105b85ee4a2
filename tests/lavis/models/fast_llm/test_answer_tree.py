"""The prefix tree of answers: what is shared, who attends to whom, and log-probabilities against Transformers'."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from lavis.models.fast_llm.answer_tree import AnswerTree, token_logps, tree_attention


def test_shared_beginnings_are_stored_once() -> None:
    tree = AnswerTree.build([[5, 6, 7, 2], [5, 6, 8, 2], [9, 2], [2], [9, 2]])
    assert tree.tokens == [5, 6, 7, 8, 9]
    assert tree.parents == [-1, 0, 1, 1, -1]
    assert [edge for edge in tree.edges if edge[0] == 1] == [(1, -1, 5), (1, 0, 6), (1, 1, 8), (1, 3, 2)]
    assert [edge[1:] for edge in tree.edges if edge[0] == 3] == [(-1, 2)]
    assert [e[1:] for e in tree.edges if e[0] == 2] == [e[1:] for e in tree.edges if e[0] == 4]


def test_each_branch_reads_as_if_alone() -> None:
    tree = AnswerTree.build([[5, 6, 2], [5, 7, 2]])  # nodes: 5, 6, 7
    allowed, positions = tree_attention(2, tree, total=6)
    assert positions.tolist() == [0, 1, 2, 3, 3, 0]
    assert allowed.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 1, 0, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]


@pytest.mark.parametrize("acting", [False, True])
@torch.no_grad()
def test_log_probabilities_equal_one_forward_pass_per_answer(model: PreTrainedModel, acting: bool) -> None:
    torch.manual_seed(1)
    images, prompts = torch.randn(2, 3, 16), [[4, 5, 6, 7, 8], [9]]
    answers = [[[10, 11, 2], [10, 12, 2], [2]], [[13, 14, 15, 2]]]
    logps, answer = token_logps(model, images, prompts, answers, acting=acting)
    got = logps.new_zeros(4).index_add(0, answer, logps)
    want = []
    for image, prompt, group in zip(images, prompts, answers, strict=True):
        for ids in group:
            text = model.get_input_embeddings()(torch.tensor(prompt + ids[:-1]))
            whole = model(inputs_embeds=torch.cat([image, text])[None]).logits[0].log_softmax(-1)
            want.append(whole[-len(ids) :].gather(1, torch.tensor(ids)[:, None]).sum())
    assert torch.allclose(got, torch.stack(want), atol=1e-4)
