"""The student's updates: behavioural cloning, or DPO, on samples of the replay buffer.

The optimiser, schedule and accumulation are the original's: AdamW with betas (0.9, 0.999), linear warm-up then cosine
over the rounds, `train_iters_per_epoch` updates of `accum_grad_steps` batches each, after every `run.train_every`-th
stored episode.

In a process group every process holds the model, or a shard of it (FSDP), draws the same batch, and computes its share;
the gradients are averaged, so all make the same update as one process would.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lavis.common.devices import DEVICE_LOST, autocast, half_type
from lavis.common.dist_utils import gathered, get_rank, get_world_size, summed
from lavis.common.optims import LinearWarmupCosineLRScheduler
from lavis.models import StudentModel
from lavis.models.references import Place, ReferenceLogps
from lavis.models.student import BcParts, DpoParts, Student
from lavis.runners.parallel import Replicas
from lavis.training import Updater
from xrl_alignment.agents.policies.base import process_images
from xrl_alignment.runs.replay import ReplayBuffer

logger = logging.getLogger(__name__)

NO_SHARDS_FAULT: tuple[type[Exception], ...] = (MemoryError, torch.OutOfMemoryError, *DEVICE_LOST)


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
    """Trains the model of `replicas` on what `buffer` holds. One call of `learn` makes the updates of one turn.

    `lr_scheduler` is LAVIS's: `step(cur_epoch, cur_step)` sets the optimiser's learning rate, which the setting
    `rate_key` decides. `run_log` is told which shards it learns nothing more from.
    """

    def __init__(
        self,
        *,
        replicas: Replicas[StudentModel],
        vis_processor: Callable[[np.ndarray], Any],
        buffer: ReplayBuffer,
        optimizer: torch.optim.Optimizer,
        lr_scheduler: LinearWarmupCosineLRScheduler,
        batch_size: int,
        accum_grad_steps: int,
        updates: int,
        preferences: bool,
        run_log: logging.Logger | None = None,
        rate_key: str = "run.init_lr",
    ) -> None:
        self.replicas = replicas
        self.model: Student = replicas.model
        self.vis_processor = vis_processor
        self.buffer = buffer
        self.optimizer = optimizer
        self.lr_scheduler = lr_scheduler
        self.batch_size = batch_size
        self.accum_grad_steps = accum_grad_steps
        self.updates = updates
        self.preferences = preferences
        self.rate_key = rate_key
        self.logs = [logger, run_log] if run_log else [logger]
        self.references = ReferenceLogps(self.model)  # not used with shards: processes would compute different ones
        self._referenced: set[str] = set()  # shards of which a restored state knows what the reference said
        # The model's own type of mixed precision wins over that of `autocast`. Only float16's gradients need scaling.
        device = self.model.device
        half = device.type == "cuda" and (self.model.amp or half_type(device)) == torch.float16
        self.updater = Updater(optimizer, replicas.parameters(), half=half, average=replicas.average_gradients)
        self.training_step = 0  # batches so far, the original's count

    def learn(self, epoch: int, report: Callable[[TrainingMetrics], None] = lambda metrics: None) -> None:
        """Run one turn's updates in round `epoch`, reporting every batch.

        Without a transition to draw (`run.learn_from=disagreements`, and there was none yet) it does nothing. Raises
        DivergedError before a loss or gradient that is not finite reaches the weights.
        """
        if not len(self.buffer):
            return

        def where() -> str:
            return (
                f"in round {epoch}, training step {self.training_step}: lower {self.rate_key}, or look at this batch "
                f"in {self.buffer.directory}: {self.buffer.describe_drawn()}"
            )

        self.model.train()
        try:
            for iteration in range(self.updates * self.accum_grad_steps):
                # Linear warm-up by steps, then a cosine by rounds (Loshchilov, Hutter 2017, arXiv:1608.03983).
                self.lr_scheduler.step(cur_epoch=epoch, cur_step=self.training_step)
                parts, share = self._forward()
                # A batch's figures are the sums of its shares, each of which one process has computed.
                loss, *rest = summed([part.item() * share for part in parts], self.model.device)
                # Gradients are averaged over the processes, so a share counts as often as there are processes. FSDP
                # averages them after every batch and not once an update, for only shards of them stay in memory.
                weight = share * get_world_size()
                self.updater.add(parts.loss * weight / self.accum_grad_steps, loss, where)
                if (iteration + 1) % self.accum_grad_steps == 0:
                    self.updater.update(where)
                report(TrainingMetrics(self.training_step, self.optimizer.param_groups[0]["lr"], loss, *rest))
                self.training_step += 1
        finally:
            self.updater.discard()  # no gradients stay of an update that an error has cut short
            self.model.eval()

    def _forward(self) -> tuple[BcParts | DpoParts, float]:
        """The parts of the loss for this process's share of a new batch, and how large a share of its loss that is.

        A shard that cannot be read or computed is drawn no more. But a process that fails alone in the forward pass of
        a sharded model, for which the others wait, raises its error: the launcher ends the group.
        """
        while True:
            # DAgger learns from the aggregate of all rounds' data, not from the newest episode (Ross et al. 2011).
            # Every process draws the same batch, for the buffer's generator has one seed, and takes every k-th row.
            places = self.buffer.draw(self.batch_size)[get_rank() :: get_world_size()]
            failure: Exception | None = None
            try:
                samples = self._read(places)
                if not self.replicas.fsdp:
                    output = self._output(samples, places)
            # Memory and devices fail at any batch: to refuse shards for that would lose good ones, one by one.
            except NO_SHARDS_FAULT:
                raise
            except Exception as error:
                failure = error
            reason = f"{type(failure).__name__}: {failure}" if failure else ""
            # One process's fault is everybody's: all must draw again, or none, for their gradients are averaged.
            reasons = [reason for reason in gathered(reason) if reason]
            if not reasons:
                if self.replicas.fsdp:  # every process has its samples
                    output = self._output(samples, places)
                if get_world_size() == 1:
                    return output, 1.0
                # The batch's loss is a mean over pairs (DPO) or over output tokens (BC): two processes' halves of 5
                # pairs are 3 / 5 and 2 / 5 of it, not a half each.
                count = len(samples["text_input"])
                if not self.preferences:
                    count = sum(map(self.model.answer_tokens, samples["text_output"]))
                return output, count / summed([count], self.model.device)[0]
            if not self._refuse_faulty(reasons[0]):
                raise failure or RuntimeError(f"another process of the learner failed: {reasons[0]}")

    def _read(self, places: Sequence[Place]) -> dict[str, Any]:
        samples: dict[str, Any] = self.buffer.read(places)
        samples["image"] = process_images(self.vis_processor, samples["image"])
        return samples

    def _output(self, samples: dict[str, Any], places: Sequence[Place]) -> BcParts | DpoParts:
        with autocast(self.model.device):
            if self.preferences and not self.replicas.fsdp:
                self.references.add_to(samples, places)
            return self.replicas.call("losses", samples, "dpo" if self.preferences else "bc")

    def _refuse_faulty(self, reason: str) -> bool:
        """Refuse the shards of the last batch at which the model fails by themselves; False if there are none.

        Also False if nothing else is left to learn from: then the fault is not one episode's.
        """
        # Each transition of the batch is tried alone. No random number may be drawn from the run's generators for it:
        # the next batch would be another one than in a run without the fault.
        device = self.model.device
        mine: set[str] = set()
        for place in dict.fromkeys(self.buffer.drawn):
            try:
                with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                    samples = self._read([place])
                    if not self.replicas.fsdp:
                        self._output(samples, [place])
            except Exception:  # whatever it is: the batch's error is the one that is told
                mine.add(place[0])
        faulty: set[str] = set().union(*gathered(mine))  # a disk may fail one process of a group alone
        left = [self.buffer.refuse(name) for name in sorted(faulty)]
        for name in sorted(faulty):
            for log in self.logs:
                log.error("%s: nothing more is learned from it: %s", name, reason)
        return bool(left) and left[-1]

    def add_shard(self, name: str) -> None:
        """Learn from a new episode's shard, too.

        A state that was restored may know another one of that name: an episode whose shard was lost, and which is
        played again. What it knows of that one, that it was refused or what the reference said of it, does not hold.
        """
        self.buffer.refused.discard(name)
        if name in self._referenced:
            self.references.forget([name])
            self._referenced.discard(name)
        if gone := self.buffer.add_shard(name):
            self.references.forget(gone)

    def random_state(self) -> dict:
        """What decides the next draws, as plain containers (see `checkpoint.py`): generators, and refused shards.

        In a process group every process must call it.
        """
        own = {"torch": torch.get_rng_state()}
        if self.model.device.type == "cuda":
            own["cuda"] = torch.cuda.get_rng_state(self.model.device)
        random = {"buffer": self.buffer.random.bit_generator.state, "refused": sorted(self.buffer.refused), **own}
        # Dropout draws as many numbers as a process's rows have tokens, so each process has a generator's state of its
        # own. The buffer's is the same in all.
        return {**random, "group": gathered(own)} if get_world_size() > 1 else random

    def restore(self, checkpoint: dict) -> None:
        """Continue from a checkpoint: optimiser, scaler, step, random states, references (not the model's weights)."""
        self.replicas.load_optimizer(self.optimizer, checkpoint["optimizer"])
        if checkpoint["scaler"]:  # empty if the run has not scaled so far: on a CPU, or in bfloat16
            self.updater.scaler.load_state_dict(checkpoint["scaler"])
        self.training_step = checkpoint["training_step"]
        if checkpoint.get("references"):
            self.references.restore(checkpoint["references"])
            self._referenced = set(checkpoint["references"]["shards"])
        random = checkpoint["random"]
        self.buffer.random.bit_generator.state = random["buffer"]
        self.buffer.refused = set(random.get("refused", ()))
        if get_rank() < len(group := random.get("group", ())):  # else of one process, of fewer, or of an older version
            random = group[get_rank()]
        torch.set_rng_state(random["torch"])
        if self.model.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"].cpu(), self.model.device)
