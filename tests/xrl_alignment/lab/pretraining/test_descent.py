"""The learning rate of pretraining, and a step at it."""

from __future__ import annotations

import pytest
import torch

from lavis.common.errors import DivergedError
from lavis.training import Updater
from xrl_alignment.lab.pretraining.descent import descend, rate_factor


def test_the_rate_rises_stays_and_falls():
    factors = [rate_factor(step, 1 - step / 10, warm_up=2, decay=0.5) for step in range(11)]
    assert factors == pytest.approx([0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0])


def test_a_step_is_made_at_the_rate_and_none_for_a_loss_that_is_not_finite():
    weight = torch.nn.Parameter(torch.tensor([3.0]))
    updater = Updater(torch.optim.SGD([weight], lr=0.0), [weight], max_norm=1.0)
    descend(updater, 5 * weight.sum(), 0.25)
    assert weight.item() == pytest.approx(2.75)  # the gradient 5 is clipped to 1
    with pytest.raises(DivergedError, match="the loss is nan in pretraining: lower --lr"):
        descend(updater, weight.sum() * torch.nan, 0.25)
    assert weight.item() == pytest.approx(2.75)
