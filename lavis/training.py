"""The one way in which weights are trained here: forward, scale, accumulate, check, clip, step.

The offline runner, the online learner, the planner and pretraining draw their batches in ways of their own and compute
losses of their own. What happens to a loss afterwards is `Updater`:

    for each of the n batches of an update:
        loss = …                                the caller's forward pass
        updater.add(loss / n, loss.item())      check the loss, scale it, add its gradient to `.grad`
    updater.update()                            average over processes, check the gradient, clip it, step

An update of n batches has the gradient g = 1/n Σ_i ∇ℓ_i, which is that of one batch n times as large if the ℓ_i are
means over as many items.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lavis.common.errors import ConfigError, DivergedError

LEAST_SCALE = 2.0**-10  # of float16's losses; from PyTorch's first, 2^16, 27 updates in a row are left out before


class Updater:
    """Makes the updates of `parameters` by `optimizer`, from losses that are added one after the other.

    `half` says that gradients are computed in float16. `average` replaces each gradient by its mean over the processes
    of a group (`Replicas.average_gradients`). `max_norm` is the largest norm of an update's gradient; 0: any norm.

    A loss or gradient that is not finite raises DivergedError before the weights change; with `half` a gradient does so
    once it is not finite at any scale. The error's text is "the loss is nan" followed by what the argument `where` of
    the method returns: the place in the run, and how to fix it. `half` with weights in float16 is a ConfigError.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        parameters: Sequence[nn.Parameter],
        *,
        half: bool = False,
        average: Callable[[], None] = lambda: None,
        max_norm: float = 0.0,
    ) -> None:
        if half and any(parameter.dtype == torch.float16 for parameter in parameters):
            raise ConfigError(
                "weights that train cannot be in float16, whose gradients cannot be scaled: set model.dtype (hf_vlm), "
                "or model.llm_dtype and model.vit_precision, to float32 or bfloat16, or train adapters alone"
            )
        self.optimizer = optimizer
        self.parameters = parameters
        self.average = average
        self.max_norm = max_norm
        # float16 has no number between 0 and 6e-8, so that small gradients become 0. The scaler multiplies the loss by
        # a power of 2 and divides the gradient by it (Micikevicius et al. 2018, arXiv:1710.03740, section 3.2).
        # bfloat16 has the range of float32 and needs no scaling; a scaler that is not enabled changes nothing.
        self.scaler = torch.amp.GradScaler(parameters[0].device.type, enabled=half)

    def add(self, loss: Tensor, value: float, where: Callable[[], str]) -> None:
        """Run the backward pass of a batch, whose gradient is added to those of the update's earlier batches.

        `loss` is a scalar: the batch's part of the update's loss, and in a process group this process's part of it.
        `value` is the whole batch's loss, which is checked.
        """
        require_finite("loss", value, where)
        self.scaler.scale(loss).backward()

    def update(self, where: Callable[[], str]) -> None:
        """Change the weights by the sum of the gradients since the last update."""
        # Copies of a model have the gradients of their own parts of the batch. The mean over processes makes all copies
        # take the same step. DDP and FSDP have averaged in the backward pass already.
        self.average()
        if self.max_norm or not self.scaler.is_enabled():
            self.scaler.unscale_(self.optimizer)  # `max_norm` is meant for the gradient itself
            gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
            # |g|, the L2 norm of all gradients as one vector: infinite or NaN if one number in them is.
            norm = torch.nn.utils.get_total_norm(gradients)
            if not self.scaler.is_enabled():
                # With FSDP every process holds a shard of the norm, too.
                whole = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
                require_finite("gradient's norm", whole.item(), where)
            if self.max_norm:  # g ← g · min(1, max_norm / |g|)
                torch.nn.utils.clip_grads_with_norm_(self.parameters, self.max_norm, norm)
        # In float16 an infinite gradient is no divergence: it says that the scale is too high. The scaler then leaves
        # this update out and halves the scale; after 2,000 updates without one it doubles the scale.
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.discard()
        if self.scaler.is_enabled() and self.scaler.get_scale() < LEAST_SCALE:
            raise DivergedError(f"the gradient is not finite, however small its scale {where()}")

    def discard(self) -> None:
        """Forget gradients that were added: after an error half an update must not join the next one."""
        self.optimizer.zero_grad(set_to_none=True)


def require_finite(what: str, value: float, where: Callable[[], str]) -> None:
    """DivergedError if `value`, of the quantity called `what`, is infinite or NaN."""
    if not math.isfinite(value):
        raise DivergedError(f"the {what} is {value} {where()}")
