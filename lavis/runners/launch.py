"""From the command line of a root program to a runner, for one process of one or of many."""

from __future__ import annotations

import os
import random
from argparse import Namespace

import numpy as np
import torch

from lavis.common.config import Config
from lavis.common.dist_utils import get_rank, init_distributed_mode
from lavis.common.logger import setup_logger
from lavis.common.registry import registry
from lavis.runners.runner_base import RunnerBase, run_device
from lavis.runners.settings import TEXTS, RunSettings, read_settings
from lavis.tasks import setup_task


def build_runner(arguments: Namespace) -> RunnerBase:
    """The runner that `arguments.cfg_path` and `arguments.options` describe, with its model and data.

    Joins the process group if `torch.distributed.run` started one. Raises ValueError or FileNotFoundError for what
    cannot be run.
    """
    cfg = Config(arguments, texts=TEXTS)
    settings = read_settings(cfg.run_cfg)
    device = run_device(settings.device)
    init_distributed_mode(device=device.type, world_size=settings.world_size, dist_url=settings.dist_url)
    setup_logger()
    if settings.num_threads:
        torch.set_num_threads(settings.num_threads)
    # Loader processes are forked after the tokenizer was used; it warns unless told that it must not use threads.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    setup_seeds(settings)
    task = setup_task(cfg)
    datasets = task.build_datasets(cfg) if task.needs_data else {}
    model = task.build_model(cfg)
    return registry.get_runner_class(settings.runner)(cfg=cfg, task=task, model=model, datasets=datasets)


def setup_seeds(settings: RunSettings) -> None:
    """Seed Python's, NumPy's and torch's generators, differently in each process (as LAVIS does)."""
    seed = settings.seed + get_rank()
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
