"""The prefix tree of answers: what is shared, who sees whom."""

from __future__ import annotations

from lavis.models.blip2_models.answer_tree import AnswerTree, tree_attention


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
