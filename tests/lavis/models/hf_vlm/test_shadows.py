"""Tensors without numbers: the bytes that operators would take, counted once and until they are freed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lavis.models.hf_vlm.shadows import Bytes, Shadow, without_numbers


def shadow(*sizes: int) -> Shadow:
    return Shadow(torch.empty(sizes, device="meta"))


def test_what_is_alive_is_counted_once_and_until_it_is_freed() -> None:
    with Bytes() as found:
        made = shadow(10, 10) + 1  # 400 bytes
        views = [made.T, made[0], made.view(100)]
        assert found.now == 400
        other = made * 2
        assert found.now == found.peak == 800
        del other
        assert found.now == 400 and found.peak == 800
        assert found.forget_peak() == found.peak == 400
        del made
        assert found.now == 400  # a view keeps all of it
        del views
        assert found.now == 0


def test_a_step_takes_what_it_takes_in_earnest() -> None:
    def peak(network: nn.Module, given: torch.Tensor) -> tuple[int, int]:
        with Bytes() as found:
            if network[0].weight.is_meta:
                without_numbers(network)
                given = Shadow(given.to("meta"))
            before = found.forget_peak()
            network(given).square().mean().backward()
        return found.peak - before, found.now - before

    def built() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))

    with torch.device("meta"):
        without = built()
    given = torch.randn(5, 8)
    assert peak(without, given) == peak(built(), given)
    assert all(isinstance(weight.grad, Shadow) for weight in without.parameters())


def test_whole_numbers_are_computed_in_earnest() -> None:
    with Bytes():
        weight = shadow(7, 3)
        ids = torch.arange(4)
        mask = ids > 1
        rows = nn.functional.embedding(ids, weight)
        assert isinstance(rows, Shadow) and rows.shape == (4, 3)
        assert mask.tolist() == [False, False, True, True]
        assert rows[mask].shape == (2, 3)  # as many rows as the mask has places
        rows[mask] = 1.0
        assert torch.arange(3, device=rows.device).sum().item() == 3
        # There are no numbers: conditions are false, and the index of the largest is 0.
        assert not (rows > 0).any() and rows.sum().item() == 0
        assert rows.argmax(1).tolist() == [0, 0, 0, 0]
        values, places = rows.topk(2)
        assert isinstance(values, Shadow) and places.tolist() == [[0, 0]] * 4


def test_shared_weights_stay_shared_and_parameters_parameters() -> None:
    with torch.device("meta"):
        network = nn.ModuleList([nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4)])
    network[1].weight = network[0].weight
    network[0].weight.requires_grad_(False)
    with Bytes():
        without_numbers(network)
    assert network[0].weight is network[1].weight
    assert isinstance(network[0].weight, nn.Parameter) and not network[0].weight.requires_grad
    assert network[2].weight.requires_grad and isinstance(network[2].running_mean, Shadow)
    assert len(list(network.parameters())) == 3


def test_autocast_reaches_shadows() -> None:
    with Bytes(), torch.autocast("cpu", dtype=torch.bfloat16):
        assert nn.functional.linear(shadow(2, 3), shadow(4, 3)).dtype == torch.bfloat16


def test_outside_of_the_count_nothing_is_computed() -> None:
    with pytest.raises(RuntimeError, match="outside of Bytes"):
        shadow(2) + 1
