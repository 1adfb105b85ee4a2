"""The DPO loss of EMAC+ and the record that it returns."""

from __future__ import annotations

from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

from lavis.common.run_settings import DPO_BETA


class DpoParts(NamedTuple):
    """All parts of one DPO loss; each a scalar tensor, the last three without gradient."""

    loss: Tensor
    chosen_reward: Tensor
    rejected_reward: Tensor
    chosen_entropy: Tensor


def dpo_loss(
    policy_chosen: Tensor,
    policy_rejected: Tensor,
    reference_chosen: Tensor,
    reference_rejected: Tensor,
    *,
    beta: float = DPO_BETA,
    mix_ratio: float = 0.5,
) -> DpoParts:
    """Mean over the batch of `-log sigmoid(beta * (policy - reference)) - mix_ratio * policy_chosen`.

    All four inputs are log-probabilities of shape (N,). The first term is eq. 7 of Rafailov et al. 2023
    (arXiv:2305.18290), the second EMMA's behaviour-cloning term. Rewards are `beta * (policy - reference)`;
    `chosen_entropy` is the original's name for the mean negative log-probability of the chosen answer.
    """
    policy = policy_chosen - policy_rejected
    reference = reference_chosen - reference_rejected
    losses = -F.logsigmoid(beta * (policy - reference)) - mix_ratio * policy_chosen
    return DpoParts(
        loss=losses.mean(),
        chosen_reward=beta * (policy_chosen - reference_chosen).detach().mean(),
        rejected_reward=beta * (policy_rejected - reference_rejected).detach().mean(),
        chosen_entropy=-policy_chosen.detach().mean(),
    )
