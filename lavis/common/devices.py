"""Devices, threads and seeds: chosen in one way by every program."""

from __future__ import annotations

import random
from functools import cache

import numpy as np
import torch

from lavis.common.dist_utils import local_rank
from lavis.common.errors import ConfigError
from lavis.common.settings import DEVICE, check

LARGEST_SEED = 2**32 - 1  # NumPy's
# What a lost device raises, if torch has a class for it. Out of memory is an error of the settings.
DEVICE_LOST: tuple[type[Exception], ...] = (torch.AcceleratorError,) if hasattr(torch, "AcceleratorError") else ()


def pick_device(name: str, key: str = "run.device") -> torch.device:
    """The device that `name` means: `cpu`, `cuda` (this process's GPU), `cuda:<index>`, or `auto` (a GPU if any).

    Raises ConfigError, which names the setting `key`, for a name that means none and for a GPU that is not there.
    """
    # Torch knows more devices (mps, xpu, meta, cpu:7), with which no program here has been tried.
    check(key, name, DEVICE.holds(name), DEVICE.text)
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError(f"{key} is {name}, but torch {torch.__version__} sees no GPU: use {key}=cpu")
    device = torch.device(name, local_rank()) if name == "cuda" else torch.device(name)
    if device.type == "cuda" and (device.index or 0) >= (gpus := torch.cuda.device_count()):
        raise ConfigError(f"{key}: there is no {device}, this machine has {gpus} GPU(s), from cuda:0")
    return device


@cache
def cpu_multiplies_bfloat16() -> bool:
    """Whether this CPU has instructions for products of bfloat16, or enough of others to lose nothing (AVX-512).

    Other CPUs, such as a laptop's with AVX2 alone, convert every number first: products of matrices take 8 times as
    long as in float32 (10 against 85 GFLOP/s: torch 2.13, one core of an EPYC without AVX-512).
    """
    supported = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)  # not in a build without oneDNN
    return supported is not None and bool(supported())


def half_type(device: torch.device) -> torch.dtype:
    """Type of mixed precision: bfloat16; float16 (the original's) or float32 if bfloat16 is only emulated.

    bfloat16 has the range of float32: a language model whose weights are bfloat16 overflows in float16. A CPU with
    instructions for it multiplies up to 5 times as fast as in float32; on other CPUs this is float32.
    """
    if device.type == "cpu":
        return torch.bfloat16 if cpu_multiplies_bfloat16() else torch.float32
    # NVIDIA's GPUs compute in bfloat16 from capability 8.0 (Ampere); older ones only emulate it, slowly.
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    return torch.float16 if old else torch.bfloat16


def mixed_precision(device: torch.device, wanted: torch.dtype | None) -> torch.dtype | None:
    """The type in which products are computed if `wanted` is asked for; None: in that of their weights.

    That is `wanted`, but float32, so None, instead of bfloat16 on a CPU that only emulates bfloat16.
    """
    emulated = device.type == "cpu" and wanted == torch.bfloat16 and not cpu_multiplies_bfloat16()
    return None if emulated or wanted == torch.float32 else wanted


def autocast(device: torch.device, wanted: torch.dtype | None = None) -> torch.autocast:
    """Mixed precision in `wanted`, or in `half_type`, as far as `mixed_precision` allows; none otherwise."""
    dtype = mixed_precision(device, wanted or half_type(device))
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


def set_threads(number: int) -> None:
    """Set the number of torch's threads; 0 leaves it to torch."""
    if number:
        torch.set_num_threads(number)


def set_seed(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators, and choose cuDNN's deterministic algorithms.

    Raises ConfigError, which names `run.seed`, for a seed that not all of them can have.
    """
    if not 0 <= seed <= LARGEST_SEED:
        raise ConfigError(f"run.seed: {seed} is not a number from 0 to {LARGEST_SEED}")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
