"""Gradients taken row by row against the gradient of the whole batch."""

from __future__ import annotations

import pytest
import torch

from lavis.models.fast_llm.row_gradients import chunked, values_by_rows


def test_rows_of_like_length_come_together_within_the_budget() -> None:
    assert chunked([10, 3, 9, 2, 30], budget=20) == [[3, 1], [2, 0], [4]]
    assert chunked([50, 60], budget=20) == [[0], [1]]


@pytest.mark.parametrize("chunks", [[[0], [1], [2]], [[2, 0], [1]], [[0, 1, 2]]])
def test_value_and_gradient_are_those_of_the_whole(chunks: list[list[int]]) -> None:
    torch.manual_seed(0)
    weight, targets = torch.randn(4, 2), torch.randn(3, 2)
    layer = torch.nn.Linear(5, 4)
    images = torch.randn(3, 5)
    gradients = []
    for by_rows in (True, False):
        layer.zero_grad()
        inputs = layer(images)
        if by_rows:
            values, surrogate = values_by_rows(
                lambda x, rows: x.tanh() @ weight,
                lambda values, rows: (values - targets[rows]).pow(2).sum() / 3,
                inputs,
                chunks,
            )
            assert not values.requires_grad and surrogate.item() == 0
        else:
            values, surrogate = inputs.tanh() @ weight, 0
        loss = (values - targets).pow(2).sum() / 3 + surrogate
        (2 * loss).backward()
        gradients.append((loss.item(), layer.weight.grad.clone()))
    assert gradients[0][0] == pytest.approx(gradients[1][0])
    assert torch.allclose(gradients[0][1], gradients[1][1], atol=1e-6)


def test_small_gradients_survive_float16() -> None:
    inputs = torch.ones(1, 1, dtype=torch.float16, requires_grad=True)
    _, surrogate = values_by_rows(lambda x, rows: x, lambda values, rows: values.sum() * 2e-8, inputs, [[0]])
    (65536 * surrogate).backward()  # what a loss scaler does
    assert inputs.grad.item() == pytest.approx(2e-8 * 65536, rel=0.02)
