"""The one update: accumulation, averaging, clipping and scaling, and what a number that is not finite does."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from lavis.common.errors import ConfigError, DivergedError
from lavis.training import Updater

ROWS = torch.randn(8, 4, generator=torch.Generator().manual_seed(0))


def where() -> str:
    return "in batch 7: lower lr"


def made(**options) -> tuple[nn.Linear, Updater]:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    return model, Updater(optimizer, list(model.parameters()), **options)


def add(model: nn.Module, updater: Updater, rows: torch.Tensor, batches: int = 1) -> None:
    loss = model(rows).square().mean()
    updater.add(loss / batches, loss.item(), where)


def test_four_batches_make_the_update_of_one_four_times_as_large() -> None:
    (whole, one), (parts, four) = made(), made()
    add(whole, one, ROWS)
    for rows in ROWS.split(2):
        add(parts, four, rows, 4)
    gradients = [[p.grad.clone() for p in model.parameters()] for model in (whole, parts)]
    assert all(torch.allclose(a, b) for a, b in zip(*gradients, strict=True))
    for updater in (one, four):
        updater.update(where)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(whole.parameters(), parts.parameters(), strict=True))
    assert all(p.grad is None for p in parts.parameters())


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_clipping_gives_torchs_bits(max_norm: float) -> None:
    model, updater = made(max_norm=max_norm)
    plain = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.1)
    add(model, updater, ROWS)
    updater.update(where)
    plain(ROWS).square().mean().backward()
    torch.nn.utils.clip_grad_norm_(plain.parameters(), max_norm)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain.parameters(), strict=True))


def test_gradients_are_averaged_before_they_are_clipped() -> None:
    """Two processes, of which the other one's gradient is zero: the mean is half of this one's."""
    model, updater = made(max_norm=1e3)

    def average() -> None:
        for parameter in model.parameters():
            parameter.grad /= 2

    updater.average, seen = average, []
    updater.optimizer.register_step_pre_hook(lambda *_: seen.extend(p.grad.clone() for p in model.parameters()))
    add(model, updater, ROWS)
    before = [parameter.grad.clone() for parameter in model.parameters()]
    updater.update(where)
    assert all(torch.equal(half, whole / 2) for half, whole in zip(seen, before, strict=True))


def test_float16_weights_are_refused_where_gradients_are_scaled() -> None:
    model = nn.Linear(4, 2).half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    with pytest.raises(ConfigError, match="weights that train cannot be in float16"):
        Updater(optimizer, list(model.parameters()), half=True)


def test_a_loss_that_is_not_finite_leaves_no_gradient() -> None:
    model, updater = made()
    with pytest.raises(DivergedError, match="^the loss is nan in batch 7: lower lr$"):
        add(model, updater, ROWS * float("nan"))
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("max_norm", [0.0, 1.0])
def test_an_infinite_gradient_leaves_the_weights(max_norm: float) -> None:
    model, updater = made(max_norm=max_norm)
    before = copy.deepcopy(model.state_dict())
    add(model, updater, ROWS)
    model.bias.grad[1] = float("inf")
    with pytest.raises(DivergedError, match="^the gradient's norm is inf in batch 7"):
        updater.update(where)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("max_norm", [0.0, 1e-3])
def test_float16_scales_changes_no_update_and_leaves_out_one_that_overflows(max_norm: float) -> None:
    (plain, one), (scaled, other) = made(max_norm=max_norm), made(max_norm=max_norm, half=True)
    for model, updater in ((plain, one), (scaled, other)):
        add(model, updater, ROWS)
        updater.update(where)
    # A power of 2 changes a number's exponent alone: the bits are the same.
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), scaled.parameters(), strict=True))
    before, scale = copy.deepcopy(scaled.state_dict()), other.scaler.get_scale()
    add(scaled, other, ROWS)
    scaled.bias.grad[1] = float("inf")
    other.update(where)
    assert all(torch.equal(before[name], value) for name, value in scaled.state_dict().items())
    assert other.scaler.get_scale() == scale / 2 and all(p.grad is None for p in scaled.parameters())


def test_float16_gradients_that_are_finite_at_no_scale_are_an_error() -> None:
    """A training whose loss is finite and whose gradient is NaN went on to its end and changed nothing."""
    model, updater = made(half=True)
    with pytest.raises(DivergedError, match="^the gradient is not finite, however small its scale in batch 7"):
        for _ in range(40):
            add(model, updater, ROWS)
            model.bias.grad[1] = float("nan")
            updater.update(where)
