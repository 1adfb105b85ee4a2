"""The prefix tree of answers: what is shared, who attends to whom, and log-probabilities against Transformers'."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    Gemma3TextConfig,
    GPTNeoConfig,
    MistralConfig,
    PreTrainedModel,
)

from lavis.models.fast_llm.answer_tree import AnswerTree, reads_trees, token_logps, tree_attention


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


SMALL = {"vocab_size": 30, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
OTHERS = {  # whose attention does not follow the tree's mask or positions
    "window": MistralConfig(**SMALL, intermediate_size=24, num_key_value_heads=1, sliding_window=4),
    "two kinds of layers": Gemma3TextConfig(
        **SMALL, intermediate_size=24, num_key_value_heads=1, head_dim=8, sliding_window=4, pad_token_id=0,
        layer_types=["sliding_attention", "full_attention"],
    ),
    "ALiBi": BloomConfig(vocab_size=30, hidden_size=16, n_layer=2, n_head=2),
    "eager": GPTNeoConfig(
        vocab_size=30, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24,
        attention_types=[[["global"], 2]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("acting", [False, True])
@pytest.mark.parametrize("kind", OTHERS)
@torch.no_grad()
def test_a_model_that_does_not_read_trees_has_a_row_for_each_answer(kind: str, acting: bool) -> None:
    """The tree's mask took the place of a window, or was added to the scores; positions were ignored."""
    torch.manual_seed(0)
    llm = AutoModelForCausalLM.from_config(OTHERS[kind]).eval()
    for parameter in llm.parameters():
        torch.nn.init.normal_(parameter.data, std=0.5)
    assert not reads_trees(llm, 9)
    test_log_probabilities_equal_one_forward_pass_per_answer(llm, acting)


def test_a_window_that_no_row_exceeds_hinders_nothing() -> None:
    llm = AutoModelForCausalLM.from_config(OTHERS["window"])
    assert reads_trees(llm, 4) and not reads_trees(llm, 5)
