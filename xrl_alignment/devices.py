"""Which device a setting means; needs nothing but torch."""

from __future__ import annotations

import torch

from xrl_alignment.config import ConfigError


def pick_device(name: str, key: str = "run.device") -> torch.device:
    """`auto` is the GPU where there is one; ConfigError, which names `key`, for a CUDA device that is not there."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"{key} is {name}, but torch {torch.__version__} sees no GPU; use {key}=cpu")
    return torch.device(name)
