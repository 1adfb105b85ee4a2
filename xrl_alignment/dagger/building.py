"""Builds, from the settings of a run, the learner and its place in it, and what clients are to play."""

from __future__ import annotations

from functools import partial

import torch

from alfworld_native import engine_name, known_games
from alfworld_native.household.mixture import checked_mixture
from lavis.common import optims  # noqa: F401  (registers the schedulers)
from lavis.common.devices import pick_device
from lavis.common.errors import ConfigError
from lavis.common.registry import registry
from lavis.models import StudentModel
from lavis.models.played import games_of_weights
from lavis.runners.parallel import Replicas, check_shardable
from xrl_alignment.builders.student import ImageProcessor, model_section
from xrl_alignment.dagger.learner import Learner
from xrl_alignment.dagger.training import Training, TrainingFiles
from xrl_alignment.runs.replay import DPOReplayBuffer, ReplayBuffer
from xrl_alignment.settings.loading import shareable
from xrl_alignment.settings.schema import DaggerConfig, RunConfig
from xrl_alignment.wire.expected import ExpectedGames, view_of


def expected_games(config: DaggerConfig) -> ExpectedGames:
    """What the clients of a run are to play, whose settings `builders.named.check_named` has passed.

    The games themselves are looked for when the first client has come: it may generate them on this machine.
    """
    settings = config.environment
    find = partial(
        known_games,
        settings.name,
        settings.split,
        data=settings.data or None,
        seed=settings.seed,
        num_train=settings.num_train,
        num_heldout=settings.num_heldout,
        levels=checked_mixture(settings.levels) if settings.levels else None,
    )
    return ExpectedGames(
        engine=engine_name(settings.name),
        split=settings.split,
        view=view_of(settings),
        find_games=partial(find, num=config.run.num_envs),
        # The whole split: a client that does not name its split may play any of its games (`ExpectedGames.difference`).
        find_split=partial(find, num=None),
        allow_other=settings.allow_other_games,
    )


def build_training(
    config: DaggerConfig, directory: TrainingFiles, model: StudentModel, vis_processor: ImageProcessor
) -> Training:
    """Training in this process."""
    run = config.run
    return Training(
        build_learner(config, directory, model, vis_processor),
        directory,
        train_every=run.train_every,
        save_ckpt=run.save_ckpt,
        state_interval_s=run.state_interval_s,
        config=shareable(config),
        earlier_games=games_of_weights(model_section(config.model)),
    )


def check_learner_devices(run: RunConfig) -> None:
    """ConfigError if this machine lacks the GPUs for a learner of its own: its processes would say so only later."""
    if run.learner != "decoupled":
        return
    device = pick_device(run.learner_device or run.device, "run.learner_device")
    if device.type == "cuda" and run.learner_processes > (gpus := torch.cuda.device_count()):
        raise ConfigError(
            f"run.learner_processes: {run.learner_processes} processes need a GPU each, this machine has {gpus}"
        )


def build_learner(
    config: DaggerConfig, directory: TrainingFiles, model: StudentModel, vis_processor: ImageProcessor
) -> Learner:
    """The original's optimiser and schedule over what trains; ConfigError if that cannot be sharded."""
    run = config.run
    # The model computes the loss, so the coefficient is its own.
    model.dpo_beta = run.dpo_beta
    if run.learner_fsdp:
        check_shardable(model, "run.learner_fsdp")
    # Without DDP, whose hooks make processes wait for each other in the backward pass: a process that fails alone at a
    # batch must not leave the others waiting (`Learner._forward`).
    replicas = Replicas(model, fsdp=run.learner_fsdp, ddp=False)
    parameters = replicas.parameters()
    optimizer = torch.optim.AdamW(parameters, lr=run.init_lr, betas=(0.9, 0.999), weight_decay=run.weight_decay)
    scheduler = registry.get_lr_scheduler_class("linear_warmup_cosine_lr")(
        optimizer=optimizer,
        max_epoch=run.num_rounds,
        min_lr=run.min_lr,
        init_lr=run.init_lr,
        warmup_steps=run.warmup_steps,
        warmup_start_lr=run.warmup_lr,
    )
    buffer_class = DPOReplayBuffer if run.enable_dpo else ReplayBuffer
    only_errors = run.learn_from == "disagreements"
    return Learner(
        replicas=replicas,
        vis_processor=vis_processor,
        buffer=buffer_class(directory.buffer, seed=run.seed, disagreements=only_errors, frames=model.frames),
        optimizer=optimizer,
        lr_scheduler=scheduler,
        batch_size=run.batch_size,
        accum_grad_steps=run.accum_grad_steps,
        updates=run.train_iters_per_epoch,
        preferences=run.enable_dpo,
        run_log=directory.logger,
    )
