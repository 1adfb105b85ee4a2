"""The student's updates: behavioural cloning, or DPO, on samples of the replay buffer.

The optimiser, schedule and accumulation are the original's: AdamW with betas (0.9, 0.999), linear warm-up then cosine
over the rounds, `train_iters_per_epoch` updates of `accum_grad_steps` batches each, after every episode.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lavis.common.errors import EmacError
from lavis.common.optims import LinearWarmupCosineLRScheduler
from lavis.models.blip2_models.blip2_emac import Blip2Emac
from lavis.models.references import ReferenceLogps
from xrl_alignment.dagger.replay import ReplayBuffer
from xrl_alignment.policies.base import autocast, stack_images


class DivergedError(EmacError, ValueError):
    """The loss is no longer finite; the text says where."""


@dataclass(frozen=True)
class TrainingMetrics:
    """One batch's figures; rewards and `nll` are None under behavioural cloning."""

    step: int
    lr: float
    loss: float
    chosen_reward: float | None = None
    rejected_reward: float | None = None
    nll: float | None = None

    def scalars(self) -> list[tuple[str, float]]:
        """The figures by name, for curves."""
        names = ("loss", "lr", "chosen_reward", "rejected_reward", "nll")
        return [(name, value) for name in names if (value := getattr(self, name)) is not None]

    def line(self, epoch: int) -> str:
        """The log line in the original's form."""
        text = f"Epoch: [{epoch}], Iter: [{self.step}], Lr: [{self.lr:.6f}], Loss: [{self.loss:.4f}]"
        if self.chosen_reward is not None:
            text += (
                f", W_reward: [{self.chosen_reward:.4f}], L_reward: [{self.rejected_reward:.4f}], NLL: [{self.nll:.4f}]"
            )
        return text


class Learner:
    """Trains `model` on what `buffer` holds; one call of `learn` is what follows one episode.

    `lr_scheduler` is LAVIS's: `step(cur_epoch, cur_step)` sets the optimiser's learning rate.
    """

    def __init__(
        self,
        *,
        model: Blip2Emac,
        vis_processor: Callable[[np.ndarray], torch.Tensor],
        buffer: ReplayBuffer,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: LinearWarmupCosineLRScheduler,
        batch_size: int,
        accum_grad_steps: int,
        updates: int,
        preferences: bool,
    ) -> None:
        self.model = model
        self.vis_processor = vis_processor
        self.buffer = buffer
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.batch_size = batch_size
        self.accum_grad_steps = accum_grad_steps
        self.updates = updates
        self.preferences = preferences
        self.references = ReferenceLogps(model)
        # fp16 gradients underflow without scaling; bf16 has fp32's range and needs none.
        half = model.device.type == "cuda" and model.amp != torch.bfloat16
        self.scaler = torch.amp.GradScaler("cuda", enabled=half)
        self.training_step = 0  # batches so far, the original's count

    def learn(self, epoch: int, report: Callable[[TrainingMetrics], None] = lambda metrics: None) -> None:
        """Run the updates that follow an episode of round `epoch`, reporting every batch."""
        self.model.train()
        try:
            for iteration in range(self.updates * self.accum_grad_steps):
                self.lr_scheduler.step(cur_epoch=epoch, cur_step=self.training_step)
                metrics = self._accumulate(epoch)
                if (iteration + 1) % self.accum_grad_steps == 0:
                    self.scaler.step(self.optimizer)
                    self.scaler.update()
                    self.optimizer.zero_grad(set_to_none=True)
                report(metrics)
                self.training_step += 1
        finally:
            self.model.eval()

    def _accumulate(self, epoch: int) -> TrainingMetrics:
        """Forward and backward of one batch, its gradient added to what the optimiser will use."""
        samples: dict[str, Any] = self.buffer.sample(self.batch_size)
        samples["image"] = stack_images(self.vis_processor, samples["image"]).to(self.model.device)
        with autocast(self.model.device):
            if self.preferences:
                self.references.add_to(samples, self.buffer.drawn)
                output = self.model.dpo_forward(samples)
            else:
                output = self.model(samples)
        loss = output["loss"].item()
        if not math.isfinite(loss):
            raise DivergedError(
                f"the loss is {loss} in round {epoch}, training step {self.training_step}: lower run.init_lr, or look "
                f"at this batch in {self.buffer.directory}: {self.buffer.describe_drawn()}"
            )
        self.scaler.scale(output["loss"] / self.accum_grad_steps).backward()
        rewards = {}
        if self.preferences:
            rewards = {
                "chosen_reward": float(output["chosen_reward"]),
                "rejected_reward": float(output["rejected_reward"]),
                "nll": float(output["chosen_entropy"]),
            }
        return TrainingMetrics(step=self.training_step, lr=self.optimizer.param_groups[0]["lr"], loss=loss, **rewards)

    def random_state(self) -> dict:
        """States of the generators that training draws from, as plain containers (see `checkpoint.py`)."""
        state = self.buffer.random.bit_generator.state
        return {"buffer": state, "torch": torch.get_rng_state()}

    def restore(self, checkpoint: dict) -> None:
        """Continue from a checkpoint: optimiser, scaler, step, random states, references (not the model's weights)."""
        self.optimizer.load_state_dict(checkpoint["optimizer"])
        self.scaler.load_state_dict(checkpoint["scaler"] or {})
        self.training_step = checkpoint["training_step"]
        if checkpoint.get("references"):
            self.references.restore(checkpoint["references"])
        self.buffer.random.bit_generator.state = checkpoint["random"]["buffer"]
        torch.set_rng_state(checkpoint["random"]["torch"])
