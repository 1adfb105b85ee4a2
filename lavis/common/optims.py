"""Learning-rate schedules under LAVIS's names and with LAVIS's rules.

The caller calls `step(cur_epoch, cur_step)` before every training step. In epoch 0 the rate climbs linearly with the
step; in later epochs it follows the epoch alone, not the step.
"""

from __future__ import annotations

import math

from torch.optim import Optimizer

from lavis.common.registry import registry


def set_lr(optimizer: Optimizer, lr: float) -> None:
    """Give every parameter group the rate `lr`."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def warmup_lr_schedule(optimizer: Optimizer, step: int, max_step: int, init_lr: float, max_lr: float) -> None:
    """Linear from `init_lr` at step 0 to `max_lr` at `max_step`, then constant."""
    # `max_step` may be 0: as in LAVIS, step 0 still has `init_lr`, and the rate is `max_lr` from step 1 on.
    set_lr(optimizer, min(max_lr, init_lr + (max_lr - init_lr) * step / max(max_step, 1)))


def cosine_lr_schedule(optimizer: Optimizer, epoch: float, max_epoch: float, init_lr: float, min_lr: float) -> None:
    """Half a cosine from `init_lr` at epoch 0 to `min_lr` at `max_epoch` (Loshchilov and Hutter 2017, eq. 5)."""
    set_lr(optimizer, (init_lr - min_lr) * 0.5 * (1.0 + math.cos(math.pi * epoch / max_epoch)) + min_lr)


def step_lr_schedule(optimizer: Optimizer, epoch: int, init_lr: float, min_lr: float, decay_rate: float) -> None:
    """`init_lr * decay_rate ** epoch`, never below `min_lr`."""
    set_lr(optimizer, max(min_lr, init_lr * decay_rate**epoch))


class _LinearWarmup:
    """Warm-up over `warmup_steps` steps of epoch 0 from `warmup_start_lr` (negative: from `init_lr`) to `init_lr`.

    Without warm-up (`warmup_steps` of 0) the very first step still has the rate `warmup_start_lr`, as in LAVIS.
    Further keyword arguments are ignored, as in LAVIS, whose runner passes all it knows.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_epoch: int,
        min_lr: float,
        init_lr: float,
        warmup_steps: int = 0,
        warmup_start_lr: float = -1,
        **kwargs: object,
    ) -> None:
        self.optimizer = optimizer
        self.max_epoch = max_epoch
        self.min_lr = min_lr
        self.init_lr = init_lr
        self.warmup_steps = warmup_steps
        self.warmup_start_lr = warmup_start_lr if warmup_start_lr >= 0 else init_lr

    def step(self, cur_epoch: int, cur_step: int) -> None:
        """Set the rate for step `cur_step` of epoch `cur_epoch` (both from 0)."""
        # LAVIS warms up in the first epoch alone, even if that has fewer than `warmup_steps` steps.
        if cur_epoch == 0:
            warmup_lr_schedule(self.optimizer, cur_step, self.warmup_steps, self.warmup_start_lr, self.init_lr)
        else:
            self.after_warmup(cur_epoch)

    def after_warmup(self, epoch: int) -> None:
        """Set the rate for `epoch`, which is at least 1."""
        raise NotImplementedError


@registry.register_lr_scheduler("linear_warmup_cosine_lr")
class LinearWarmupCosineLRScheduler(_LinearWarmup):
    """Warm-up in epoch 0, then a cosine over the epochs from `init_lr` to `min_lr`."""

    def after_warmup(self, epoch: int) -> None:
        """From `init_lr` at epoch 0 to `min_lr` at `max_epoch`."""
        cosine_lr_schedule(self.optimizer, epoch, self.max_epoch, self.init_lr, self.min_lr)


@registry.register_lr_scheduler("linear_warmup_step_lr")
class LinearWarmupStepLRScheduler(_LinearWarmup):
    """Warm-up in epoch 0, then `decay_rate` times the rate of the epoch before, never below `min_lr`."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_epoch: int,
        min_lr: float,
        init_lr: float,
        decay_rate: float = 1,
        warmup_start_lr: float = -1,
        warmup_steps: int = 0,
        **kwargs: object,
    ) -> None:
        super().__init__(optimizer, max_epoch, min_lr, init_lr, warmup_steps, warmup_start_lr, **kwargs)
        self.decay_rate = decay_rate

    def after_warmup(self, epoch: int) -> None:
        """`decay_rate` to the power of the epoch."""
        step_lr_schedule(self.optimizer, epoch, self.init_lr, self.min_lr, self.decay_rate)


@registry.register_lr_scheduler("constant_lr")
class ConstantLRScheduler(_LinearWarmup):
    """`init_lr` at every step after the same warm-up in epoch 0, whose first step has the rate `warmup_start_lr`.

    So it has with `warmup_steps` of 0, too, unless `warmup_start_lr` is negative.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        init_lr: float,
        warmup_start_lr: float = -1,
        warmup_steps: int = 0,
        **kwargs: object,
    ) -> None:
        # Neither the number of epochs nor a smallest rate matters to a constant.
        super().__init__(optimizer, 0, init_lr, init_lr, warmup_steps, warmup_start_lr)

    def after_warmup(self, epoch: int) -> None:
        """The same for every epoch."""
        set_lr(self.optimizer, self.init_lr)
