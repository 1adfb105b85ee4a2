"""One step of pretraining: the learning rate of the moment, then `lavis.training.Updater`."""

from __future__ import annotations

from torch import Tensor

from lavis.training import Updater


def rate_factor(step: int, left: float, *, warm_up: int, decay: float) -> float:
    """What the learning rate is multiplied by: rising along a line for `warm_up` steps, 1, then falling to zero.

    `left` is the part of the run that is left, 1 at its beginning and 0 at its end; the rate falls along a line in the
    last `decay` of the run.
    """
    return min(1.0, (step + 1) / warm_up, max(0.0, left / decay))


def descend(updater: Updater, loss: Tensor, rate: float) -> None:
    """Change the weights by the gradient of `loss`, a scalar, at the learning rate `rate`; DivergedError if not finite.

    Its message ends "in pretraining: lower --lr".
    """
    for group in updater.optimizer.param_groups:
        group["lr"] = rate
    updater.add(loss, loss.item(), lambda: "in pretraining: lower --lr")
    updater.update(lambda: "in pretraining: lower --lr")
