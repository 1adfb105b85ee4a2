"""From the command line of a root program to a runner, for one process of one or of many."""

from __future__ import annotations

import logging
import os
from argparse import Namespace
from pathlib import Path

from lavis.checkpoints import require_checkpoint
from lavis.common.config import Config
from lavis.common.devices import pick_device, set_seed, set_threads
from lavis.common.dist_utils import get_rank, init_distributed_mode, launched_world_size
from lavis.common.errors import ConfigError
from lavis.common.logger import import_wandb, setup_logger
from lavis.common.registry import registry
from lavis.common.run_settings import TEXTS, foreign_keys
from lavis.runners.runner_base import RunnerBase
from lavis.tasks import setup_task, task_class

logger = logging.getLogger(__name__)


def build_runner(arguments: Namespace) -> RunnerBase:
    """The runner that `arguments.cfg_path` and `arguments.options` describe, with its model and data.

    Joins the process group if `torch.distributed.run` started one. Raises an EmacError for settings or
    files that cannot be used.
    """
    cfg = Config(arguments, texts=TEXTS)
    settings = task_class(cfg).settings_of(cfg)
    if not settings.distributed and launched_world_size() > 1:
        # LAVIS puts the environment's answer in the key's place; several runs that write one folder are nobody's wish.
        raise ConfigError(
            f"run.distributed=False, but {launched_world_size()} processes were started: start one "
            "(python train.py …), or set run.distributed=True"
        )
    if "train_dataset_ratios" in cfg.run_cfg:  # the one key of LAVIS's runners that would change what is learned
        raise ConfigError(
            "run.train_dataset_ratios: training sets are joined, and each sample is drawn once an epoch: leave it out"
        )
    device = pick_device(settings.device)
    init_distributed_mode(device=device.type, world_size=settings.world_size, dist_url=settings.dist_url)
    setup_logger()
    if others := foreign_keys(cfg.run_cfg):
        logger.info("run.%s: no runner reads these, only the task run.task=%s", ", run.".join(others), settings.task)
    # Before data and weights are read, which may take minutes.
    runner_class = registry.get_runner_class(settings.runner)
    if settings.wandb_project:
        import_wandb()
    if not settings.evaluate:
        registry.get_lr_scheduler_class(settings.lr_sched)
        if (wanted := settings.resume_ckpt_path) and wanted != "latest":
            require_checkpoint(Path(wanted), setting="run.resume_ckpt_path")
    set_threads(settings.num_threads)
    # Loader processes are forked after the tokenizer was used; it warns unless told that it must not use threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    set_seed(settings.seed + get_rank())  # a process of its own draws its own random numbers, as in LAVIS
    task = setup_task(cfg)
    datasets = task.build_datasets(cfg) if task.needs_data else {}
    model = task.build_model(cfg)
    return runner_class(cfg=cfg, task=task, model=model, datasets=datasets)
