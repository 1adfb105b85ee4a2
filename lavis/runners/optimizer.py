"""The optimiser of a run and its learning-rate schedule, from the settings."""

from __future__ import annotations

import logging
from typing import Any

import torch

from lavis.common import optims  # noqa: F401  (registers the schedules)
from lavis.common.errors import ConfigError
from lavis.common.registry import registry
from lavis.common.run_settings import RunSettings
from lavis.models import BaseModel

logger = logging.getLogger(__name__)


def make_optimizer(model: BaseModel, settings: RunSettings) -> torch.optim.AdamW:
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) over the model's groups; ConfigError if nothing trains."""
    groups = model.get_optimizer_params(settings.weight_decay)
    if not any(group["params"] for group in groups):
        raise ConfigError("nothing trains: every part of the model is frozen (model.freeze_…)")
    return torch.optim.AdamW(groups, lr=settings.init_lr, betas=(0.9, settings.beta2))


def make_schedule(
    optimizer: torch.optim.Optimizer, settings: RunSettings, max_epoch: int, batches_per_epoch: int
) -> Any:
    """The schedule called `run.lr_sched`; its `step(cur_epoch, cur_step)` comes before every batch."""
    if settings.warmup_steps > batches_per_epoch:
        cut = "run.warmup_steps=%s: the warm-up is cut at batch %s, for LAVIS warms up in the first epoch alone"
        logger.warning(cut, settings.warmup_steps, batches_per_epoch)
    return registry.get_lr_scheduler_class(settings.lr_sched)(
        optimizer=optimizer,
        max_epoch=max_epoch,
        min_lr=settings.min_lr,
        init_lr=settings.init_lr,
        decay_rate=settings.lr_decay_rate,
        warmup_start_lr=settings.warmup_lr,
        warmup_steps=settings.warmup_steps,
    )
