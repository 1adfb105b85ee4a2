"""Devices, threads and seeds: chosen in one way by every program."""

from __future__ import annotations

import random

import numpy as np
import torch

from lavis.common.dist_utils import local_rank
from lavis.common.errors import ConfigError

LARGEST_SEED = 2**32 - 1  # NumPy's
# What a lost device raises, where torch has a class for it. Out of memory is an error of the settings.
DEVICE_LOST: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()


def pick_device(name: str, key: str = "run.device") -> torch.device:
    """The device that `name` means: `cpu`, `cuda` (this process's GPU), `cuda:<index>`, or `auto` (a GPU if any).

    Raises ConfigError, which names the setting `key`, for a name that means none and for a GPU that is not there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"{key} is {name}, but torch {torch.__version__} sees no GPU: use {key}=cpu")
    try:
        device = torch.device(name, local_rank()) if name == "cuda" else torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"{key}: {name!r} is not one of auto, cpu, cuda, cuda:<index>") from error
    if device.type == "cuda" and (device.index or 0) >= (gpus := torch.cuda.device_count()):
        raise ConfigError(f"{key}: there is no {device}, this machine has {gpus} GPU(s), from cuda:0")
    return device


def set_threads(number: int) -> None:
    """Set the number of torch's threads; 0 leaves it to torch."""
    if number:
        torch.set_num_threads(number)


def set_seed(seed: int, key: str = "run.seed") -> None:
    """Seed Python's, NumPy's and torch's generators, and choose cuDNN's deterministic algorithms.

    Raises ConfigError, which names the setting `key`, for a seed that not all of them can have.
    """
    if not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(f"{key}: {seed} is not a number from 0 to {LARGEST_SEED}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
