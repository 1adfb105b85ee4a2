"""The acting model in the loop: it acts, describes its frames, and learns from the labels that the plans gave."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from lavis.common.devices import autocast
from lavis.common.optims import LinearWarmupCosineLRScheduler
from lavis.models import StudentModel
from lavis.models.played import PlayedGames
from lavis.models.student import Question
from lavis.runners.parallel import Replicas
from xrl_alignment.agents.policies.base import Policy, process_images
from xrl_alignment.dagger.learner import Learner, TrainingMetrics
from xrl_alignment.runs.checkpoint import load_checkpoint, restore_model, save_checkpoint
from xrl_alignment.runs.replay import DPOReplayBuffer, ReplayBuffer
from xrl_alignment.settings.planning import AgentTraining

MAX_DESCRIPTION = 64  # tokens, of which a BOS counts as one


class LearningAgent:
    """`model` with the `policy` that acts with it; `write_prompt` writes what it reads (`language.prompt`).

    `earlier_games` are those that the weights have trained on before the loop.
    """

    def __init__(
        self,
        model: StudentModel,
        policy: Policy,
        *,
        vis_processor: Callable[[np.ndarray], torch.Tensor],
        write_prompt: Callable[..., str],
        earlier_games: PlayedGames,
        max_batch: int = 32,
    ) -> None:
        self.model = model
        self.policy = policy
        self.vis_processor = vis_processor
        self.write_prompt = write_prompt
        self.earlier_games = earlier_games
        self.max_batch = max_batch

    def describe(self, prompts: Sequence[str], images: Sequence[np.ndarray]) -> list[str]:
        """What the model writes after each prompt, which ends with an action; images are uint8 (H, W, 3)."""
        texts: list[str] = []
        for start in range(0, len(prompts), self.max_batch):
            rows = slice(start, start + self.max_batch)
            seen = zip(prompts[rows], process_images(self.vis_processor, images[rows]), strict=True)
            questions = [Question(prompt, (image,)) for prompt, image in seen]
            with torch.no_grad(), autocast(self.model.device):
                # Greedy, and without LAVIS's penalty on repetitions (1.5): a list of objects repeats `a … 1`.
                texts += self.model.act(
                    questions, num_beams=1, max_length=MAX_DESCRIPTION, repetition_penalty=1.0, length_penalty=0
                )
        return texts

    def learn(
        self,
        settings: AgentTraining,
        round: int,
        buffer: Path,
        reference: Path,
        report: Callable[[TrainingMetrics, int], None] = lambda metrics, batches: None,
    ) -> None:
        """Train on all shards in `buffer`: what follows depends on the weights, the shards and `settings` alone.

        `reference` is the checkpoint that DPO's reference is taken from. `report` gets each batch's figures, and how
        many batches there are.
        """
        dpo = settings.preferences(round)
        if dpo:  # its reference is the policy at the end of cloning, and stays frozen
            self.model.set_reference(load_checkpoint(reference)["model"])
        torch.manual_seed(settings.seed + round)  # so a loop that continues draws as one that was never stopped
        lr = settings.dpo_lr if dpo else settings.init_lr
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # Its moments begin at zero in each round: the checkpoint of a round holds the weights alone (`save`).
        optimizer = torch.optim.AdamW(trained, lr=lr, betas=(0.9, 0.999), weight_decay=settings.weight_decay)
        # A phase (cloning, then DPO) has a schedule of its own over all of its rounds.
        first, last = (settings.bc_rounds, settings.num_rounds) if dpo else (0, settings.bc_rounds)
        # All stored transitions, or for DPO only those in which the agent's own action is not the label.
        only_errors = dpo and settings.learn_from == "disagreements"
        kind = DPOReplayBuffer if dpo else ReplayBuffer
        stored = kind(buffer, capacity=sys.maxsize, seed=settings.seed + round, disagreements=only_errors)
        for shard in sorted(buffer.glob("round*.h5")):  # in one order on every machine: a draw is a place in the list
            stored.add_shard(shard.name)
        # Passes over what is stored are rounded up to whole batches.
        passes = -(-len(stored) * settings.epochs // settings.batch_size)
        updates = passes if settings.epochs else settings.updates
        learner = Learner(
            replicas=Replicas(self.model),
            vis_processor=self.vis_processor,
            buffer=stored,
            optimizer=optimizer,
            lr_scheduler=LinearWarmupCosineLRScheduler(
                optimizer=optimizer,
                max_epoch=max(last - first, 1),  # the cosine divides by it
                min_lr=0.0,
                init_lr=lr,
                warmup_steps=settings.warmup_steps,
                warmup_start_lr=0.0,
            ),
            batch_size=settings.batch_size,
            accum_grad_steps=1,
            updates=updates,
            preferences=dpo,
            rate_key="run.dpo_lr" if dpo else "run.init_lr",
        )
        learner.learn(round - first, lambda metrics: report(metrics, updates))

    def save(self, path: Path, round: int, games: PlayedGames) -> None:
        """Write what trains, and that it has trained on `games`, beside the earlier ones."""
        played = self.earlier_games.merged(games).as_dict()
        save_checkpoint(path, model=self.model, round=round, played=played)

    def restore(self, path: Path) -> None:
        """Take the weights of `save`. Raises CheckpointError, MissingFileError."""
        restore_model(self.model, load_checkpoint(path), path)
